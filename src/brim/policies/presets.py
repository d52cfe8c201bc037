"""The preset table, with one row for every policy that brim ships. A user's policy is a file with one ``Policy``."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Final

from brim.errors import ConfigError
from brim.policies.feed.even import Even
from brim.policies.feed.shares import EqualPerJob, EqualPerRank, Fixed
from brim.policies.feed.throughput import Throughput
from brim.policies.fill.none import NoFill
from brim.policies.fill.padding import Padding
from brim.policies.loading import offered, owner, policy_of, policy_of_file
from brim.policies.order.arrival import Arrival
from brim.policies.order.attained import Gittins, LeastAttained
from brim.policies.order.borda import Borda, RemainingOrAttained
from brim.policies.order.fair import MaxMin
from brim.policies.order.mlfq import MultiLevelQueue
from brim.policies.order.shortest import ShortestJob, ShortestRemaining
from brim.policies.order.tiresias import ServiceQueues, TwoQueues
from brim.policies.place.energy_sharing import BestPartners, EnergySharing
from brim.policies.place.packing import PackedPairs, RandomPairs
from brim.policies.place.parts import Consolidate, Fragmentation, Misfit, Spread, WorstFit
from brim.policies.place.repack import Repack
from brim.policies.place.workers_and_servers import WorkersAndServers
from brim.policies.size.as_asked import AsAsked
from brim.policies.size.completion_time import CompletionTime
from brim.policies.size.dynamic_program import DynamicProgram
from brim.policies.size.exchange import UnitExchange
from brim.policies.size.goodput import Goodput, PolluxFitness
from brim.policies.size.marginal import MarginalGain
from brim.policies.size.servers import MarginalServers, ServersAsAsked
from brim.policies.sockets import Order, Place, Policy, Size
from brim.units import MS_PER_DAY, MS_PER_MIN, MS_PER_S


def _rigid(
    name: str, order: Order, misfit: Misfit, source: str, *, period_ms: int = 0, oracle: bool = False
) -> Policy:
    return Policy(
        name=name, order=order, size=AsAsked(), place=Consolidate(misfit), feed=Even(), fill=NoFill(),
        period_ms=period_ms, oracle=oracle, source=source,
    )


def _shared(name: str, place: Place, source: str) -> Policy:
    """A policy that lets jobs share GPUs."""
    return Policy(
        name=name, order=Arrival(), size=AsAsked(), place=place, feed=Even(), fill=NoFill(), source=source,
    )


def _elastic(
    name: str, size: Size, source: str, *, period_ms: int, gap_ms: int = 30 * MS_PER_S, oracle: bool = False
) -> Policy:
    """A policy that resizes running jobs, with rounds at least 30 s apart: the rate limit of the scheduler Voda."""
    return Policy(
        name=name, order=Arrival(), size=size, place=Repack(), feed=Even(), fill=NoFill(), period_ms=period_ms,
        gap_ms=gap_ms, oracle=oracle, source=source,
    )


BRIM: Final = "brim"
OBJECTIVES: Final = ("jct", "energy", "cost", "balanced")
"""What the preset ``brim`` may aim at; the first unless another is named."""
_AIMS: Final = {
    "jct": "elastic sizes for the shortest completion times",
    "energy": "fewest GPUs, shared where that saves energy",
    "cost": "fewest GPUs, shared where that saves GPU time",
    "balanced": "sizes as asked, shared where that saves energy",
}
_FEWEST: Final = Goodput(gpus_max=1)
"""Each elastic job on the fewest GPUs that it runs on, where a GPU-second does the most work."""


def _brim(objective: str) -> Policy:
    """All five decisions for one objective (docs/decisions/0021).

    Completion times: elastic sizes, no sharing, because a shared step is never shorter. The others: sharing where
    energy and time of a step together (alpha 0.5, as in EaCO) fall most, or GPU time does, which costs the same however
    busy the GPU is (alpha 1, idle_fraction 1). For energy and cost, on the fewest GPUs; else on as many as asked for.
    For energy, a node that sleeps is woken for a padding job that has waited for a day, not for another one.
    """
    parts: dict[str, tuple[Size, Place]] = {
        "jct": (CompletionTime(), Repack()),
        "energy": (_FEWEST, BestPartners(alpha=0.5)),
        "cost": (_FEWEST, BestPartners(alpha=1.0, idle_fraction=1.0)),
        "balanced": (AsAsked(), BestPartners(alpha=0.5)),
    }
    size, place = parts[objective]
    return Policy(
        name=BRIM if objective == OBJECTIVES[0] else f"{BRIM}-{objective}", order=Arrival(), size=size, place=place,
        feed=Throughput(), fill=Padding(wakes_after_ms=MS_PER_DAY if objective == "energy" else 0),
        period_ms=MS_PER_MIN, gap_ms=30 * MS_PER_S,
        source=f"ours: {_AIMS[objective]}, loader cores, padding",
    )


def _servers(name: str, order: Order, size: Size, source: str) -> Policy:
    """A policy of jobs with parameter servers, in rounds at least every 4 minutes (successor of AITurbo).

    Jobs without servers keep the size that was asked for.
    """
    return Policy(
        name=name, order=order, size=size, place=WorkersAndServers(), feed=Even(), fill=NoFill(),
        period_ms=4 * MS_PER_MIN, source=source,
    )


_PAPER: Final = "Effective Elastic Scaling, MASCOTS 2020"
_ROWS: Final = (
    _rigid("fifo", Arrival(), "stop", "strict first come, first served"),
    _rigid("backfill", Arrival(), "reserve", "EASY: Lifka, JSSPP 1995"),
    _rigid("sjf", ShortestJob(), "skip", "shortest job first, estimated run times"),
    _rigid("sjf-oracle", ShortestJob(), "skip", "shortest job first, true run times", oracle=True),
    _rigid("srtf", ShortestRemaining(), "skip", "shortest remaining time first, estimated run times"),
    _rigid("srtf-oracle", ShortestRemaining(), "skip", "shortest remaining time first, true run times", oracle=True),
    _rigid("las", LeastAttained(), "skip", "least attained service", period_ms=5 * MS_PER_MIN),
    _rigid("gittins", Gittins(), "skip", "2D-Gittins: Tiresias, NSDI 2019", period_ms=5 * MS_PER_MIN),
    _rigid("tiresias", ServiceQueues(), "skip", "discretised 2D-LAS: Tiresias, NSDI 2019", period_ms=MS_PER_MIN),
    replace(
        _rigid("tiresias-pollux", TwoQueues(), "skip",
               "Tiresias as Pollux compares with it: one threshold of 16 GPU-h, OSDI 2021", period_ms=MS_PER_MIN),
        place=WorstFit(), gap_ms=MS_PER_MIN, fixed_rounds=True,
    ),
    _rigid("fair", MaxMin(), "skip", "weighted max-min of GPU time over users", period_ms=5 * MS_PER_MIN),
    replace(
        _rigid("adloader", Arrival(), "stop", "ours, after A-Dloader, IEEE CLOUD 2022", period_ms=MS_PER_MIN),
        feed=Throughput(),
    ),
    replace(
        _rigid("adloader-even", Arrival(), "stop", "A-Dloader's baseline: equal cores for each job of a node"),
        feed=EqualPerJob(),
    ),
    _shared("eaco", EnergySharing(), "EaCO, arXiv 2412.08294"),
    _shared("gandiva-pack", RandomPairs(), "Gandiva's packing as EaCO compares with it, arXiv 2412.08294"),
    _shared("fifo-packed", PackedPairs(), "FIFO_packed as EaCO compares with it, arXiv 2412.08294"),
    _elastic("elastic", DynamicProgram(), _PAPER, period_ms=10 * MS_PER_MIN),
    _elastic("elastic-fixed", DynamicProgram("asked"), f"{_PAPER}: batch as asked", period_ms=10 * MS_PER_MIN),
    _elastic("elastic-max", DynamicProgram("largest"), f"{_PAPER}: largest batch", period_ms=10 * MS_PER_MIN),
    _elastic("elastic-random", DynamicProgram("random"), f"{_PAPER}: random batch", period_ms=10 * MS_PER_MIN),
    _elastic("optimus", MarginalGain(), "Optimus, EuroSys 2018; true remaining work", period_ms=MS_PER_MIN,
             gap_ms=MS_PER_MIN, oracle=True),
    _elastic("pollux", PolluxFitness(), "Pollux, OSDI 2021", period_ms=MS_PER_MIN, gap_ms=MS_PER_MIN),
    _elastic("goodput", Goodput(), "ours: exact search on goodput, young jobs first", period_ms=MS_PER_MIN),
    _servers("aiturbo", RemainingOrAttained(), UnitExchange(), "ours, after AITurbo, HPDC 2021"),
    replace(  # its ranks change as jobs run, so that rounds close together would let jobs take turns for nothing
        _servers("aiturbo-borda", Borda(), UnitExchange("service", "present", all_jobs=False),
                 "AITurbo, HPDC 2021: Borda ranks, exchange of service among predictable jobs"),
        fixed_rounds=True,
    ),
    _servers("optimus-servers", Arrival(), MarginalServers(), "Optimus, EuroSys 2018, with parameter servers"),
    replace(
        _rigid("tiresias-servers", ServiceQueues(), "skip", "Tiresias, NSDI 2019, with parameter servers as asked",
               period_ms=MS_PER_MIN),
        size=ServersAsAsked(), place=WorkersAndServers(),
    ),
    _servers("mlfq", MultiLevelQueue(), ServersAsAsked(), "AITurbo, HPDC 2021: its queues alone"),
    *map(_brim, OBJECTIVES),
)
PARTS: Final[dict[str, tuple[type, ...]]] = {
    "order": (Arrival, ShortestJob, ShortestRemaining, LeastAttained, Gittins, ServiceQueues, TwoQueues, MaxMin,
              MultiLevelQueue, Borda, RemainingOrAttained),
    "size": (AsAsked, DynamicProgram, MarginalGain, PolluxFitness, Goodput, CompletionTime, ServersAsAsked,
             MarginalServers, UnitExchange),
    "place": (
        Consolidate, Spread, Fragmentation, WorstFit, Repack, EnergySharing, BestPartners, RandomPairs, PackedPairs,
        WorkersAndServers,
    ),
    "feed": (Even, EqualPerJob, EqualPerRank, Fixed, Throughput),
    "fill": (NoFill, Padding),
}
"""The parts that a policy file may combine, by socket."""
PRESETS: Final[dict[str, Policy]] = {policy.name: policy for policy in _ROWS}


PADDED: Final = "+padding"
"""What follows the name of a policy, or of its file, to fill what it leaves with padding jobs."""


def find_policy(name: str, *, afresh: bool = False) -> Policy:
    """Find a policy: a preset, an entry point of the group ``brim.policies``, or a Python file.

    With ``+padding`` behind it, what the policy leaves is filled with padding jobs.

    Args:
        name: Name of the policy, or path of the file.
        afresh: Whether to execute the module of an entry point anew, as a file is each time.

    Raises:
        ConfigError: there is no such policy (the message suggests the nearest name), more than one package has it, or
            the file or module does not hold one.
    """
    if name.endswith(PADDED) and name != PADDED:
        return padded(find_policy(name.removesuffix(PADDED), afresh=afresh))
    if name.endswith(".py"):
        return policy_of_file(name, PRESETS.values())
    points = [point for point in offered() if point.name == name]
    owners = [BRIM] * (name in PRESETS) + [owner(point) for point in points]
    if len(owners) > 1:
        raise ConfigError(
            f"policy {name}: found in {' and in '.join(owners)}, expected in one: rename the entry point, or uninstall "
            "its package"
        )
    if points:
        return policy_of(points[0], PRESETS.values(), afresh=afresh)
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "see `brim policy list`"
    raise ConfigError(f"unknown policy {name!r}: {hint}")


def with_objective(name: str, objective: str | None) -> str:
    """The name of the preset ``brim`` for an objective; the name as it is without one.

    Raises:
        ConfigError: there is no such objective, or the policy takes none.
    """
    if objective is None:
        return name
    if objective not in OBJECTIVES:
        raise ConfigError(f"--objective: found {objective!r}, expected one of {', '.join(OBJECTIVES)}")
    if name != BRIM:
        raise ConfigError(f"--objective: policy {name} takes none, expected --policy {BRIM}")
    return _brim(objective).name


def padded(policy: Policy) -> Policy:
    """The same policy, with padding jobs on the GPUs that it leaves.

    Raises:
        ConfigError: the policy has a fill part of its own.
    """
    if not isinstance(policy.fill, NoFill):
        raise ConfigError(
            f"policy {policy.name}{PADDED}: {policy.name} has the fill part {type(policy.fill).__name__}, expected "
            "none: there is one part in each socket"
        )
    return replace(policy, name=f"{policy.name}{PADDED}", fill=Padding())
