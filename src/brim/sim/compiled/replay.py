"""A replay in the compiled loop: its tables, what it asks of Python between stretches of it, and its columns."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np

from brim.beliefs.runtime import TrueRunTimes, UserHistory, UserLimits
from brim.core.arrays import IntArray, frozen
from brim.core.replay import Runs
from brim.core.state import SERVICE_EDGES_GPU_MS
from brim.core.trace import NONE, Trace
from brim.errors import InvariantError
from brim.policies.order.arrival import Arrival
from brim.policies.order.attained import Gittins, LeastAttained
from brim.policies.order.fair import MaxMin
from brim.policies.order.shortest import ShortestJob, ShortestRemaining
from brim.policies.order.tiresias import ServiceQueues, TwoQueues
from brim.policies.place.parts import MISFIT as MISFITS
from brim.policies.place.parts import Consolidate, Fragmentation, Spread, WorstFit
from brim.sim.compiled import loop, orders
from brim.sim.compiled.loop import LoopInputs, LoopState
from brim.sim.compiled.orders import OrderState
from brim.sim.compiled.scenario import Scenario
from brim.sim.faults import Faults
from brim.sim.feasibility import checked_types
from brim.sim.loop import PROGRESS_EVERY, Progress
from brim.sim.specs import user_codes, user_names
from brim.sim.stall_detector import StallDetector
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.truth import ALONE, Truth
from brim.units import counted

ORDERS: Final[tuple[type, ...]] = (
    Arrival, ShortestJob, ShortestRemaining, LeastAttained, Gittins, ServiceQueues, TwoQueues, MaxMin
)
"""In the order of their codes in ``orders``."""
RUN_TIMES: Final[tuple[type, ...]] = (UserLimits, UserHistory, TrueRunTimes)
"""In the order of their codes in ``orders``."""


def run_loop(scenario: Scenario, on_progress: Progress) -> dict[str, Any]:
    """Replay with whole rounds in compiled code; same columns as the general loop.

    Raises:
        ConfigError: a job could not run even on the empty cluster, or the truth has no pace for it.
        PlanError: the policy lets no job make progress any more.
    """
    trace, policy, truth = scenario.trace, scenario.policy, scenario.truth
    state, inputs, order = loop_state(scenario), loop_inputs(scenario), order_state(scenario)
    batch = truth.columns().get("batch", trace.batch)
    stall_detector = StallDetector(trace, policy.name, scenario.overheads, Faults(), _Jobs(state.job))
    partial, status = False, loop.GOES_ON
    while status != loop.OVER and not partial:
        status = loop.advance(state, inputs, order, PROGRESS_EVERY)
        n = state.number
        now_ms, ended = int(n[loop.NOW]), int(n[loop.ENDED])
        if status == loop.BEGAN:
            state = _with_paces(state, truth, batch)
            loop.set_off(state)
        elif status == loop.FULL:
            state = with_space(state, inputs)
        elif status == loop.IDLE:
            raise InvariantError(
                f"{counted(len(trace) - ended, 'job')} still waiting at {now_ms} ms and nothing will happen (first: "
                f"job {trace.job_id[_Jobs(state.job).first_waiting()]}): policy {policy.name!r} gave them no GPUs"
            )
        elif status == loop.GOES_ON:
            _check(stall_detector, state)
            partial = not on_progress(ended, now_ms)
    on_progress(ended, now_ms)
    if partial:
        state = with_space(state, inputs)
        for j in np.flatnonzero(np.isin(state.job[:, orders.PHASE], (orders.STARTING, orders.RUNNING))).tolist():
            if state.job[j, orders.BEGIN] != now_ms:
                loop.close_run(state, inputs, j, now_ms)
    return _columns(trace, state, partial)


class _Jobs:
    """See ``stall_detector.Starts``."""

    def __init__(self, job: IntArray) -> None:
        self._job = job

    def first_waiting(self) -> int:
        return int(np.argmin(self._job[:, orders.FINISH] != NONE))

    def starts(self, job: int) -> int:
        return int(self._job[job, orders.RESTARTS] + (self._job[job, orders.FIRST_START] != NONE))


def _check(stall_detector: StallDetector, state: LoopState) -> None:
    """Tell what has happened since the last check, and ask whether jobs make progress."""
    n = state.number
    now_ms, futile_ms = int(n[loop.NOW]), int(n[loop.FUTILE_MS])
    if n[loop.PROGRESSED]:
        stall_detector.progress()
    stall_detector.futile(futile_ms, int(n[loop.FUTILE]))
    n[[loop.PROGRESSED, loop.FUTILE]] = 0
    since_ms = loop.under_way_since(state, now_ms)
    stall_detector.check(int(n[loop.EVENTS]), int(n[loop.ARRIVED]), now_ms, (since_ms,))


def loop_state(scenario: Scenario) -> LoopState:
    """The state before the first event. Every job has the one interval that it has under the truth ``rigid``."""
    trace, cluster, run_ms = scenario.trace, scenario.cluster, scenario.truth.run_ms
    gpu_type = checked_types(trace, cluster)
    J = len(trace)
    job = np.zeros((J, orders.COLUMNS), dtype=np.int64)
    kinds, kind_of = np.unique(np.stack((trace.gpus, trace.share_milli)), axis=1, return_inverse=True)
    for column, values in (
        (orders.CLASS, kind_of.ravel()), (orders.GPUS, trace.gpus), (orders.SHARE, trace.share_milli),
        (orders.CPU, trace.cpu_milli),
        (orders.MEM, trace.mem_mib), (orders.TYPE, gpu_type), (orders.SUBMIT, trace.submit_ms), (orders.RUN, run_ms),
        (orders.LIMIT, trace.time_limit_ms), (orders.USER, user_codes(trace)), (orders.AFTER, trace.after),
        (orders.AFTER_MS, trace.after_ms), (orders.GRANTS, np.cumsum(trace.gpus) - trace.gpus),
    ):
        job[:, column] = values
    job[:, orders.PHASE] = orders.HELD
    job[:, [orders.FIRST_START, orders.FINISH]] = NONE
    number = np.zeros(loop.NUM_COUNTERS, dtype=np.int64)
    number[[loop.SINCE_MS, loop.FUTILE_MS]] = NONE
    of_jobs, of_gpus = np.zeros((4, J), dtype=np.int64), np.zeros((2, int(trace.gpus.sum())), dtype=np.int64)
    return LoopState(
        number=number, job=job, heap=np.zeros((J + 1, 4), dtype=np.int64), alive=of_jobs[0], order=of_jobs[1],
        row_of=of_jobs[2], begun=of_jobs[3], done=np.zeros(J), until=run_ms.astype(np.float64)[:, None],
        per_ms=np.ones((J, 1)), node=of_gpus[0], gpu=of_gpus[1], leaving_ms=np.zeros(cluster.num_gpus, dtype=np.int64),
        run=np.zeros((J + 1, 4), dtype=np.int64), run_gpu=np.zeros(of_gpus.shape[1] + 1, dtype=np.int64),
        classes=np.vstack((kinds, np.zeros_like(kinds[:1]))).T.copy(),
    )


def loop_inputs(scenario: Scenario) -> LoopInputs:
    """What the scenario does not change."""
    trace, cluster, policy, overheads = scenario.trace, scenario.cluster, scenario.policy, scenario.overheads
    assert isinstance(policy.place, Consolidate | Spread | Fragmentation | WorstFit)  # as eligible_loop checked
    waits = np.flatnonzero(trace.after != NONE)
    counts = np.bincount(trace.after[waits], minlength=len(trace))
    number = np.zeros(loop.NUM_SETTINGS, dtype=np.int64)
    number[loop.GAP], number[loop.PERIOD] = max(scenario.gap_ms, policy.gap_ms), policy.period_ms
    number[loop.FIXED], number[loop.START_MS] = policy.fixed_rounds, overheads.start_ms
    number[loop.SAVE_MS], number[loop.RESTART_MS] = overheads.save_ms, overheads.restart_ms
    number[loop.MISFIT], number[loop.RULE] = MISFITS[policy.place.misfit], policy.place.rule
    number[loop.TYPES], number[loop.DEPENDENTS_MAX] = len(cluster.gpu_types), counts.max(initial=0)
    number[loop.PACED] = type(scenario.truth) is Rigid
    return LoopInputs(
        number=number, node_type=cluster.gpu_type_N.copy(), node_gpus=cluster.gpus_N.copy(),
        node_cpu=cluster.cpu_milli_N.copy(), node_mem=cluster.mem_mib_N.copy(),
        node_open=np.ones(cluster.num_nodes, dtype=np.bool_), withheld=np.zeros((0, 0), dtype=np.bool_),
        offset=cluster.gpu_offset_N.copy(), dependent=waits[np.argsort(trace.after[waits], kind="stable")],
        first_dependent=np.concatenate(([0], np.cumsum(counts))),
    )


def order_state(scenario: Scenario) -> OrderState:
    """What the order part reads, before the first event."""
    trace, order = scenario.trace, scenario.policy.order
    code, J, users = ORDERS.index(type(order)), len(trace), user_names(trace)
    given = dict(getattr(order, "weights", ()))
    whole = [
        getattr(order, name)
        for name in ("quantum_gpu_ms", "jobs_min", "threshold_gpu_ms", "quantum_ms") if hasattr(order, name)
    ]
    ratio = getattr(order, "promote_ratio", getattr(order, "horizon_ms", 0))
    return OrderState(
        order=np.array([code]), source=np.array([RUN_TIMES.index(type(scenario.run_times))]),
        ints=np.array(whole or [0]), floats=np.array([ratio, 0.5], dtype=np.float64),
        thresholds=np.array(getattr(order, "thresholds_gpu_ms", ()), dtype=np.int64),
        weight=np.array([given.get(name, 1.0) for name in users], dtype=np.float64), usage=np.zeros(len(users)),
        usage_ms=np.zeros(1, dtype=np.int64), runs=np.full((len(users), 2), NONE, dtype=np.int64),
        edges=SERVICE_EDGES_GPU_MS.copy(), ended=np.zeros(len(SERVICE_EDGES_GPU_MS), dtype=np.int64),
        rank=np.zeros(len(SERVICE_EDGES_GPU_MS)), stale=np.ones(1, dtype=np.bool_),
        lead=np.zeros(J, dtype=np.bool_), key=np.zeros(J),
    )


def _with_paces(state: LoopState, truth: Truth, batch: IntArray) -> LoopState:
    """Ask the truth for the paces of the jobs that were started, on the nodes they got, from what they have done on.

    Args:
        state: The state.
        truth: A truth under which a pace does not depend on other jobs.
        batch: Global batch of each job (J,).

    Returns:
        The state, with longer arrays if a job has more intervals of equal pace than any before.
    """
    for j in state.begun[: state.number[loop.BEGUN]].tolist():
        first, gpus = state.job[j, [orders.GRANTS, orders.GPUS]].tolist()
        nodes = tuple(Counter(state.node[first : first + gpus].tolist()).values())
        done, ends, intervals = float(state.done[j]), False, []
        while not ends:
            pace = truth.pace(j, done, nodes, int(batch[j]), ALONE)
            done, ends = pace.until, pace.ends
            intervals.append((pace.per_ms, done))
        more = len(intervals) - state.until.shape[1]
        if more > 0:
            state = state._replace(**{
                name: np.pad(getattr(state, name), ((0, 0), (0, more))) for name in ("until", "per_ms")
            })
        state.job[j, [orders.INTERVAL, orders.LAST_INTERVAL]] = 0, len(intervals) - 1
        state.per_ms[j, : len(intervals)], state.until[j, : len(intervals)] = zip(*intervals, strict=True)
    return state


def with_space(state: LoopState, inputs: LoopInputs) -> LoopState:
    """The same state, with arrays at least twice as long as what the next event or round may need."""
    n = state.number
    holding, granted = n[loop.HOLDING], n[loop.GRANTED]
    pushes = 2 * n[loop.WAITING] + holding + inputs.number[loop.DEPENDENTS_MAX]
    return state._replace(
        heap=_longer(state.heap, n[loop.HEAP] + pushes), run=_longer(state.run, n[loop.RUNS] + holding),
        run_gpu=_longer(state.run_gpu, n[loop.RUN_GPUS] + granted),
    )


def _longer(array: IntArray, rows: int) -> IntArray:
    if rows <= len(array):
        return array
    return np.concatenate((array, np.zeros((2 * rows - len(array), *array.shape[1:]), dtype=np.int64)))


def _columns(trace: Trace, state: LoopState, partial: bool) -> dict[str, Any]:
    n, job = state.number, state.job
    run = state.run[: n[loop.RUNS]]
    run = run[np.lexsort((run[:, 0], run[:, 1]))]
    counts = trace.gpus[run[:, 0]]
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    picks = np.repeat(run[:, 3] - offsets[:-1], counts) + np.arange(offsets[-1])
    none = np.zeros(len(trace), dtype=np.int64)
    columns = {
        "first_start_ms": orders.FIRST_START, "finish_ms": orders.FINISH, "service_gpu_ms": orders.HELD_FOR,
        "useful_gpu_ms": orders.USEFUL, "preemptions": orders.PREEMPTIONS, "restarts": orders.RESTARTS,
    }
    return {
        **{name: frozen(job[:, column].copy()) for name, column in columns.items()},
        **dict.fromkeys(("lost_gpu_ms", "resizes", "failed", "rejected", "unmeasured"), frozen(none)),
        "rejected_ms": frozen(none + NONE),
        "runs": Runs(
            job=frozen(run[:, 0].copy()), start_ms=frozen(run[:, 1].copy()), end_ms=frozen(run[:, 2].copy()),
            share_milli=frozen(trace.share_milli[run[:, 0]]), first_gpu=frozen(offsets),
            gpu=frozen(state.run_gpu[picks]), cores_milli=frozen(trace.cpu_milli[run[:, 0]] * np.diff(offsets)),
        ),
        "end_ms": int(n[loop.NOW]), "partial": partial, "rounds": int(n[loop.ROUNDS]), "round_s": np.zeros(0),
    }
