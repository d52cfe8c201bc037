"""Which compiled loop may run a replay: one that implements everything that decides it, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from brim.beliefs.runtime import RunTimes, TrueRunTimes, UserLimits
from brim.core.trace import NONE, Trace
from brim.policies.feed.even import Even
from brim.policies.fill.none import NoFill
from brim.policies.order.arrival import Arrival
from brim.policies.order.attained import Gittins, LeastAttained
from brim.policies.order.fair import MaxMin
from brim.policies.order.shortest import ShortestJob
from brim.policies.order.tiresias import ServiceQueues, TwoQueues
from brim.policies.place.parts import MISFIT, Consolidate, Fragmentation, Spread, WorstFit
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import Order, Policy
from brim.sim.compiled.as_shipped import AsShipped
from brim.sim.compiled.queues import run_queues
from brim.sim.compiled.replay import ORDERS, RUN_TIMES, run_loop
from brim.sim.compiled.scenario import Scenario
from brim.sim.loop import Progress
from brim.sim.truths.measured import Measured
from brim.sim.truths.parametric import Parametric
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.truth import Truth
from brim.units import WHOLE_GPU

_PLACES: Final = (Consolidate, Spread, Fragmentation, WorstFit)
_TRUTHS: Final = (Rigid, Measured, Parametric)
"""Truths whose paces depend on nothing but the job, its progress and its nodes; what else they set of a job
only elastic sizes read."""
_KNOWN: Final = (Policy, *ORDERS, AsAsked, *_PLACES, Even, NoFill, *RUN_TIMES, Rigid)
_MOST: Final = 1 << 53
_MOST_SERVICE: Final = 1 << 60
"""Above every product of GPUs, thousandths and ms that stays within 64 bits with what restarts and saves add."""
CompiledLoop: TypeAlias = Callable[[Scenario, Progress], dict[str, Any]]
"""``run_queues`` or ``run_loop``."""
_AS_SHIPPED: Final = AsShipped((
    *(base.__module__ for kind in _KNOWN for base in kind.__mro__[:-1] if base.__module__.startswith("brim.")),
    "brim.core.tables", "brim.core.usage", "brim.policies.place.free_resources", "brim.policies.place.inputs",
    "brim.policies.place.walk",
))
"""The modules that define these classes, and those whose functions they call."""


def eligible_loop(scenario: Scenario) -> CompiledLoop | None:
    """Return the faster of the compiled loops that implement everything that decides a replay, None without one.

    Types are compared exactly, because the loops implement only the parts they know, and a subclass may differ. So may
    a part after a policy file has replaced a function or constant in a module of brim. A truth is asked for the paces
    of a job to its end when it starts; one of another type may remember what it was asked, or depend on other jobs.
    """
    trace, truth = scenario.trace, scenario.truth
    if not (
        is_implemented(scenario.policy, scenario.run_times) and type(truth) in _TRUTHS and len(trace) > 0
        and _fits_64_bits(trace, truth)
    ):
        return None
    return run_queues if type(truth) is Rigid and _has_fixed_order(scenario) else run_loop


def is_implemented(policy: Policy, run_times: RunTimes) -> bool:
    """Whether ``run_loop`` decides as a policy does that receives these run times."""
    return (
        type(policy) is Policy and type(policy.order) in ORDERS
        and type(policy.size) is AsAsked and type(policy.place) in _PLACES
        and type(policy.feed) is Even and type(policy.fill) is NoFill and type(run_times) in RUN_TIMES
        and getattr(policy.place, "misfit", "") in MISFIT and _has_plain_constants(policy.order)
        and _AS_SHIPPED.holds()
    )


def _fits_64_bits(trace: Trace, truth: Truth) -> bool:
    """Whether the GPU time of each job can be counted in compiled code, where numbers wrap around."""
    return int(trace.gpus.max()) * int(truth.run_ms.max()) * WHOLE_GPU < _MOST_SERVICE


def _has_fixed_order(scenario: Scenario) -> bool:
    """Whether a job's place in the order is fixed when it is submitted, and rounds have no times of their own."""
    trace, policy, believed = scenario.trace, scenario.policy, scenario.run_times
    is_estimate_fixed = not policy.asks_run_times or type(believed) is TrueRunTimes or (
        type(believed) is UserLimits and bool((trace.time_limit_ms != NONE).all())
    )
    return (
        is_estimate_fixed and type(policy.order) in (Arrival, ShortestJob)
        and type(policy.place) in (Consolidate, Spread) and not policy.period_ms and not policy.gap_ms
        and bool((trace.after == NONE).all())
    )


def _has_plain_constants(order: Order) -> bool:
    """Whether the constants of an order are numbers with which compiled code calculates as NumPy does."""
    if isinstance(order, LeastAttained):
        return _is_whole(order.quantum_gpu_ms, least=1)
    if isinstance(order, Gittins):
        return _is_whole(order.jobs_min)
    if isinstance(order, TwoQueues):
        return _is_whole(order.threshold_gpu_ms)
    if isinstance(order, MaxMin):
        return _is_whole(order.horizon_ms) and _is_whole(order.quantum_ms)
    if isinstance(order, ServiceQueues):
        thresholds = order.thresholds_gpu_ms
        return (
            type(thresholds) is tuple and all(_is_whole(threshold) for threshold in thresholds)
            and list(thresholds) == sorted(thresholds)
            and type(order.promote_ratio) in (int, float) and 0 <= order.promote_ratio < _MOST
        )
    return True


def _is_whole(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value < _MOST
