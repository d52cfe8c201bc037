"""What commands that replay a trace read from their options: the trace, its cluster, the truth."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli.options import naming, waiting
from brim.errors import ConfigError, shown

if TYPE_CHECKING:
    from brim.core.cluster import Cluster
    from brim.core.trace import Trace
    from brim.policies.sockets import Policy
    from brim.sim.overheads import Overheads
    from brim.sim.sleepers import Sleep
    from brim.sim.truth_option import TruthOption


def truth_option(
    truth: str, profiles: Path | None, elastic_share: float | None, sharing: str, loading: str,
    policies: Iterable[str],
) -> TruthOption:
    """Return how jobs run, as the options say; jobs that a policy lets share GPUs are slowed down in any case."""
    from brim.policies.presets import find_policy
    from brim.sim.truth_option import TruthOption

    if not sharing and any(find_policy(name).shares_gpus for name in policies):
        sharing = "demand"
    return TruthOption(name=truth, profiles=profiles, elastic_share=elastic_share, sharing=sharing, loading=loading)


def warn_of_useless(policies: Sequence[Policy], trace: Trace, truth: TruthOption, *, shows: Container[str]) -> None:
    """Say on stderr which policies cannot do what they are for, or would not show it.

    Args:
        policies: The policies.
        trace: The jobs.
        truth: How jobs run.
        shows: ``power`` or ``price``, as far as they were given.
    """
    from brim.core.trace import NONE

    if truth.name == "rigid" and (names := _named(policies, "resizes_running")):
        print(f"brim: {names}: no job of this trace can change its number of GPUs (--truth rigid); "
              "--truth parametric --elastic-share 0.3 draws some that can", file=sys.stderr)
    if names := _named(policies, "shares_gpus"):
        columns = {"gpu_util_milli": trace.gpu_util_milli, "gpu_mem_mib": trace.gpu_mem_mib}
        lacking = " and ".join(name for name, column in columns.items() if (column == NONE).all())
        if lacking:
            print(f"brim: {names}: nobody shares GPUs, because no job of this trace records {lacking}", file=sys.stderr)
    for aim, option in (("energy", "power"), ("cost", "price")):
        if option not in shows and any(policy.name == f"brim-{aim}" for policy in policies):
            print(f"brim: brim-{aim}: without --{option} the replay shows no {aim}", file=sys.stderr)


def _named(policies: Sequence[Policy], what: str) -> str:
    return ", ".join(policy.name for policy in policies if getattr(policy, what))


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


def cluster_of(trace: Trace, given: Cluster | None, load: float, powered: Iterable[str] = ()) -> Cluster:
    """Return the given cluster, or the one that the record shows, and print on stderr what speaks against it.

    Args:
        trace: The recorded trace.
        given: The cluster of the command line, if any.
        load: Largest factor on the arrival rate among the replays.
        powered: GPU types whose power is known.
    """
    from brim import traces

    cluster = trace.cluster if given is None else given
    if cluster is None:
        raise ConfigError(f"{trace.name} does not show its cluster; give one, such as --cluster 64x8xH100")
    if given is None:
        print(f"brim: replaying on {cluster}, which the record shows; --cluster gives another", file=sys.stderr)
    elif unknown := _unknown_types(trace, cluster, powered):
        print(f"brim: cluster {cluster}: neither brim nor the trace knows {unknown}", file=sys.stderr)
    if said := traces.doubts(trace, cluster, load):
        print(f"brim: cluster {cluster} may not be the recorded one:", file=sys.stderr)
        for sentence in said:
            print(f"  {sentence}", file=sys.stderr)
        shown = trace.cluster
        if shown not in (None, cluster) and not traces.doubts(trace, shown, load):
            print(f"  without --cluster, the replay is on {shown}", file=sys.stderr)
    return cluster


def _unknown_types(trace: Trace, cluster: Cluster, powered: Iterable[str]) -> str:
    """Name the GPU types of a cluster that may be misspelt; of a trace that names types, its doubts tell."""
    from brim.beliefs.memory import GPU_MIB, gpu_mib
    from brim.core.gpu_names import is_of_type
    from brim.core.trace import NONE

    if (trace.gpu_type != NONE).any():
        return ""
    unknown = [
        name for name in cluster.gpu_types
        if name and gpu_mib(name) is None and not any(is_of_type(one, name) for one in powered)
    ]
    near = [match for name in unknown for match in difflib.get_close_matches(name.upper(), GPU_MIB, n=1)]
    hint = f" (nearest: {', '.join(dict.fromkeys(near))})" if near else ""
    return f"GPUs of type {', '.join(unknown)}{hint}" if unknown else ""


def overheads_of(truth: TruthOption, text: str) -> Overheads:
    """Return the costs of changes, times a factor such as ``x2`` or ``2``.

    Raises:
        ConfigError: the text is not a factor, or not one of those that ``Overheads.times`` takes.
    """
    with naming("--overheads"):
        try:
            factor = float(text.removeprefix("x"))
        except ValueError:
            raise ConfigError(f"found {shown(text)}, expected a factor such as x2") from None
        return truth.overheads().times(factor)


def sleep_of(suspend_time: str) -> Sleep | None:
    """Return when nodes without jobs sleep; None if they never do."""
    from brim.sim.sleepers import Sleep
    from brim.units import parse_duration_ms

    if not suspend_time:
        return None
    with naming("--suspend-time"):
        return Sleep(after_ms=parse_duration_ms(suspend_time))
