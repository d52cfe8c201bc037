"""Microsoft Philly (2017), the per-job extract of the Pollux authors: one CSV row per job, without ids.

Jobs are numbered in the order of (submission, virtual cluster, GPUs, duration); identical rows are separate
jobs. Users and states are not in the extract. Times are the cluster's wall clock.
Source: github.com/petuum/adaptdl, branch osdi21-artifact, simulator/traces/philly.csv.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.core.trace import Trace, trace_of
from brim.traces.lifecycle import at_least_a_second
from brim.traces.report import ReadReport
from brim.traces.source import Source
from brim.traces.table import MAX_RUN_MS, csv_table, header_share

NAME: Final = "philly-csv"
COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")


def score(source: Source) -> float:
    """Return how much the content resembles this format, from 0 to 1."""
    return header_share(source.first_line, COLUMNS)


def read(source: Source, report: ReadReport) -> Trace:
    """Read the extract.

    Raises:
        TraceError: a column is missing, or a value is corrupt.
    """
    table = csv_table(source, report)
    table.require(*COLUMNS)
    submit_ms = table.clock_ms("timestamp")
    run_ms = table.seconds_ms("duration", high_ms=MAX_RUN_MS)
    gpus = table.gpus("num_gpus")
    group, groups = table.names("cluster")
    order = np.lexsort((run_ms, gpus, group, submit_ms))
    alike = table.frame.select(COLUMNS).is_duplicated()
    repeats = int(alike.sum()) - table.frame.select(COLUMNS).filter(alike).n_unique()
    report.repair("exact repeats of a row, kept as separate jobs", repeats)
    return trace_of(
        name=source.name, format=NAME, origin_ms=0, job_id=numbered(len(table)), submit_ms=submit_ms[order],
        gpus=gpus[order], run_ms=at_least_a_second(run_ms[order], report), group=group[order], groups=groups,
    )  # fmt: skip


def numbered(size: int) -> list[str]:
    """Return ids for jobs that have none: 1 to ``size``."""
    return [str(number) for number in range(1, size + 1)]
