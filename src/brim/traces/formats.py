"""The trace formats that brim reads, one row each, in the order of preference in detection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from brim.core.trace import Trace
from brim.traces import acme, gavel, helios, itp, openb, own, pai, philly, philly_csv, pollux, sacct, swf
from brim.traces.report import ReadReport
from brim.traces.source import Source


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        name: Value of ``--format``.
        title: Descriptive name.
        score: Returns how much a file resembles the format, from 0 to 1.
        read: Reads a file.
        strict: Rows depend on each other, so brim refuses a file with an unusable row instead of leaving the row out.
    """

    name: str
    title: str
    score: Callable[[Source], float]
    read: Callable[[Source, ReadReport], Trace]
    strict: bool = False


FORMATS: Final = (
    Format(own.NAME, "brim's own Parquet or CSV", own.score, own.read, strict=True),
    Format(sacct.NAME, "Slurm sacct -P", sacct.score, sacct.read),
    Format(swf.NAME, "Standard Workload Format", swf.score, swf.read),
    Format(philly.NAME, "Microsoft Philly cluster_job_log", philly.score, philly.read),
    Format(philly_csv.NAME, "Microsoft Philly per-job extract", philly_csv.score, philly_csv.read),
    Format(helios.NAME, "SenseTime Helios cluster_log", helios.score, helios.read),
    Format(acme.NAME, "Shanghai AI Lab Acme (Seren, Kalos)", acme.score, acme.read),
    Format(itp.NAME, "Microsoft ITP (ElasticFlow)", itp.score, itp.read),
    Format(openb.NAME, "Alibaba openb 2023 pods", openb.score, openb.read),
    Format(pai.NAME, "Alibaba PAI 2020 tables", pai.score, pai.read, strict=True),
    Format(pollux.NAME, "Pollux workloads", pollux.score, pollux.read),
    Format(gavel.NAME, "Gavel .trace", gavel.score, gavel.read),
    Format(gavel.SHOCKWAVE, "Shockwave .trace", gavel.shockwave_score, gavel.read_shockwave),
)
