"""What commands that replay a trace read from their options: the trace, its cluster, the truth."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli.options import waiting
from brim.errors import ConfigError

if TYPE_CHECKING:
    from brim.core.cluster import Cluster
    from brim.core.trace import Trace
    from brim.sim.sleepers import Sleep
    from brim.sim.truth_option import TruthOption


def truth_option(
    truth: str, profiles: Path | None, elastic_share: float | None, sharing: str, loading: str
) -> TruthOption:
    """Return how jobs run, as the options say."""
    from brim.sim.truth_option import TruthOption

    return TruthOption(name=truth, profiles=profiles, elastic_share=elastic_share, sharing=sharing, loading=loading)


def read_trace(
    path: str, format: str | None, limit: int | None, from_date: str | None, anonymise: bool
) -> tuple[Trace, bool]:
    """Return the jobs to replay, and whether the trace has others."""
    from brim import traces
    from brim.cli.trace import print_reading

    with waiting(f"reading {path}"):
        trace, report = traces.read(path, format)
    print_reading(report)
    jobs = len(trace)
    if anonymise:
        trace = traces.anonymise(trace, traces.own_key())
    if from_date:
        with naming("--from"):
            trace = traces.since(trace, from_date)
    if limit:
        trace = traces.limit(trace, limit)
    return trace, len(trace) < jobs


def cluster_of(trace: Trace, given: Cluster | None, load: float) -> Cluster:
    """Return the given cluster, or the one that the record shows, and print on stderr what speaks against it."""
    from brim import traces

    cluster = trace.cluster if given is None else given
    if cluster is None:
        raise ConfigError(f"{trace.name} does not show its cluster; give one, such as --cluster 64x8xH100")
    if given is None:
        print(f"brim: replaying on {cluster}, which the record shows; --cluster gives another", file=sys.stderr)
    if said := traces.doubts(trace, cluster, load):
        print(f"brim: cluster {cluster} may not be the recorded one:", file=sys.stderr)
        for sentence in said:
            print(f"  {sentence}", file=sys.stderr)
        shown = trace.cluster
        if shown not in (None, cluster) and not traces.doubts(trace, shown, load):
            print(f"  without --cluster, the replay is on {shown}", file=sys.stderr)
    return cluster


def sleep_of(suspend_time: str) -> Sleep | None:
    """Return when nodes without jobs sleep; None if they never do."""
    from brim.sim.sleepers import Sleep
    from brim.units import parse_duration_ms

    if not suspend_time:
        return None
    with naming("--suspend-time"):
        return Sleep(after_ms=parse_duration_ms(suspend_time))


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Begin the message of an error in the value of an option with the option's name."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None
