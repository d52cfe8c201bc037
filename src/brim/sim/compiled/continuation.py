"""A continuation in the compiled loop: the loop's tables filled from the state of a live engine, and its course.

Same course as that of the general loop (``tests/sim/test_continuation.py``), in a hundredth of the time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from brim.core.arrays import IntArray
from brim.core.lifecycle import Phase
from brim.core.trace import NONE, trace_of
from brim.engine.scheduler import Scheduler
from brim.engine.trigger import JOBS_OF_NONE
from brim.sim.compiled import loop, orders
from brim.sim.compiled.eligible import is_implemented
from brim.sim.compiled.loop import LoopState
from brim.sim.compiled.orders import OrderState
from brim.sim.compiled.replay import loop_inputs, loop_state, order_state, with_space
from brim.sim.compiled.scenario import Scenario
from brim.sim.overheads import Overheads
from brim.sim.truths.rigid import Rigid
from brim.units import WHOLE_GPU

LOOK_EVERY: Final = 64
"""Events and rounds between two looks at whether what is asked for has happened; ours."""


class Continuation:
    """What the compiled loop begins from; see ``of``.

    Args:
        scheduler: The engine, whose jobs have the ids 0 to J - 1.
        overheads: Costs of changes.
        now_ms: Time at which it begins.
    """

    def __init__(self, scheduler: Scheduler, overheads: Overheads, now_ms: int) -> None:
        state, trigger = scheduler.state, scheduler.trigger
        snapshot = state.freeze(now_ms)
        jobs, users, held = snapshot.jobs, snapshot.users, snapshot.grants
        self._jobs, self._now_ms, self._overheads = jobs, now_ms, overheads
        trace = trace_of(
            name="the queue", format="live", job_id=[str(row) for row in range(len(jobs))], users=users.name,
            submit_ms=np.zeros(len(jobs), dtype=np.int64), gpus=jobs.gpus, run_ms=jobs.run_ms + 1, user=jobs.user,
            share_milli=jobs.share_milli, cpu_milli=jobs.cpu_milli, mem_mib=jobs.mem_mib,
            time_limit_ms=jobs.time_limit_ms,
        )
        scenario = Scenario(
            trace=trace, cluster=state.cluster, policy=scheduler.policy, truth=Rigid(trace),
            run_times=scheduler.beliefs.run_times, overheads=overheads, gap_ms=trigger.gap_ms,
        )
        self._inputs = loop_inputs(scenario)
        self._inputs.number[loop.GAP] = trigger.gap_ms
        if not (scheduler.policy.changes_running and state.has_elastic):
            self._inputs.number[loop.GAP_US] = JOBS_OF_NONE * trigger.gap_job_us
            self._inputs.number[loop.GAP_JOB_US] = trigger.gap_job_us
        self._state, self._order = loop_state(scenario), order_state(scenario)
        job = self._state.job
        holds = np.isin(jobs.phase, (Phase.STARTING, Phase.RUNNING))
        runs = jobs.phase == Phase.RUNNING
        since_ms = np.where(holds, now_ms - jobs.since_ms, 0)
        start_ms = np.maximum(np.where(jobs.attempt == 1, overheads.start_ms, overheads.restart_ms), 1)
        from_ms = np.where(runs, now_ms, now_ms + start_ms)  # of those that hold GPUs
        memory = snapshot.memory.of("order", len(jobs), 1)
        for column, values in (
            (orders.TYPE, jobs.gpu_type), (orders.PHASE, jobs.phase), (orders.SINCE, jobs.since_ms),
            (orders.UNDER_WAY, np.where(runs, jobs.running_since_ms, 0)),
            (orders.PROGRESS, jobs.run_ms - np.where(runs, now_ms - jobs.running_since_ms, 0)),
            (orders.SERVICE, jobs.service_gpu_ms - since_ms * jobs.gpus_now * jobs.share_now // WHOLE_GPU),
            (orders.MEMO, memory), (orders.PLACEMENTS, jobs.placements), (orders.BEGIN, now_ms),
            (orders.FROM, from_ms), (orders.INTERVAL_MS, from_ms),
            (orders.FIRST_START, np.where(jobs.attempt > 0, 0, NONE)),
        ):
            job[:, column] = values
        by_job = np.argsort(held.job, kind="stable")
        row = held.job[by_job]
        at = job[row, orders.GRANTS] + np.arange(len(row)) - np.searchsorted(row, row)
        self._state.node[at], self._state.gpu[at] = held.node[by_job], held.gpu[by_job]
        rows = np.arange(len(jobs))
        self._state.alive[:], self._state.order[:] = rows, rows
        self._state.done[:] = jobs.run_ms
        np.add.at(self._state.classes[:, 2], job[:, orders.CLASS], 1)
        n = self._state.number
        for counter, number in (
            (loop.ARRIVED, len(jobs)), (loop.ALIVE, len(jobs)), (loop.WAITING, (jobs.phase == Phase.PENDING).sum()),
            (loop.HOLDING, holds.sum()), (loop.GRANTED, jobs.gpus_now[holds].sum()), (loop.NOW, now_ms),
            (loop.APPLIED, state.now_ms), (loop.SINCE_MS, NONE if trigger.since_ms is None else trigger.since_ms),
            (loop.LAST, trigger.last_ms or 0), (loop.ROUNDS, trigger.last_ms is not None),
        ):
            n[counter] = number
        self._order.usage[: len(users)], self._order.usage_ms[0] = users.usage_gpu_ms, now_ms
        self._order.runs[: len(users)] = np.stack((users.last_run_ms, users.previous_run_ms), axis=1)
        self._order.ended[:] = snapshot.ended_service

    @staticmethod
    def of(scheduler: Scheduler, overheads: Overheads, now_ms: int) -> Continuation | None:
        """Return the continuation of an engine, None if the compiled loop does not implement all that decides it."""
        snapshot, trigger = scheduler.state.freeze(now_ms), scheduler.trigger
        jobs, nodes = snapshot.jobs, snapshot.nodes
        if (
            not is_implemented(scheduler.policy, scheduler.beliefs.run_times) or not len(jobs)
            or trigger.backs_off or not nodes.is_open.all() or nodes.withheld.any()
            or (jobs.phase == Phase.HELD).any() or (jobs.cpu_ranks_max > 0).any()
        ):
            return None
        return Continuation(scheduler, overheads, now_ms)

    def course(
        self, run_ms: Sequence[int], starts_of: Collection[int] | None, until_ms: int, events_max: int
    ) -> tuple[IntArray, IntArray, int]:
        """Return when each job next begins to hold GPUs and when it ends, NONE for never (J,), and events and rounds.

        Args:
            run_ms: Whole run time of each job in ms, above what it has run already.
            starts_of: Rows of which only the next start is asked for; None for all starts and ends.
            until_ms: Time after which nothing is looked at.
            events_max: Events and rounds after which it is cut off.
        """
        state = LoopState._make(array.copy() for array in self._state)
        order = OrderState._make(array.copy() for array in self._order)
        job, n = state.job, state.number
        job[:, orders.RUN] = run_ms
        state.until[:, 0] = run_ms
        state = self._with_events(state)
        wanted = None if starts_of is None else np.array(sorted(starts_of), dtype=np.int64)
        placements = job[:, orders.PLACEMENTS].copy()
        status = loop.GOES_ON
        while status != loop.OVER and n[loop.NOW] <= until_ms and n[loop.EVENTS] < events_max:
            status = loop.advance(state, self._inputs, order, LOOK_EVERY)
            if status == loop.FULL:
                state = with_space(state, self._inputs)
            elif status == loop.IDLE or (
                wanted is not None and (job[wanted, orders.PLACEMENTS] > placements[wanted]).all()
            ):
                break
        start_ms, end_ms = (np.where(times_ms > until_ms, NONE, times_ms) for times_ms in self._times(state))
        return start_ms, end_ms, int(n[loop.EVENTS])

    def _with_events(self, state: LoopState) -> LoopState:
        """Expect the stops, starts and ends of the jobs that leave or have GPUs, in the order of the general loop."""
        jobs, stops = self._jobs, np.flatnonzero(self._jobs.phase == Phase.STOPPING)
        begins, holds = (np.flatnonzero(np.isin(jobs.phase, phases))
                         for phases in ((Phase.STARTING,), (Phase.STARTING, Phase.RUNNING)))
        from_ms = state.job[:, orders.FROM]
        end_ms = from_ms + np.ceil(state.until[:, 0] - state.done).astype(np.int64)
        rows = np.concatenate((stops, begins, holds))
        kind = np.repeat((loop.STOPPED, loop.STARTED, loop.FINISHED), (len(stops), len(begins), len(holds)))
        stop_ms = np.full(len(stops), self._now_ms + self._overheads.save_ms)
        time_ms = np.concatenate((stop_ms, from_ms[begins], end_ms[holds]))
        placement = np.where(kind == loop.STOPPED, 0, jobs.placements[rows])
        sequence = np.empty(len(rows), dtype=np.int64)
        sequence[np.lexsort((kind == loop.FINISHED, rows))] = np.arange(1, len(rows) + 1)  # job by job
        key = kind * loop.SEQUENCES + sequence
        sorted_ = np.lexsort((key, time_ms))  # which is a heap
        heap = np.zeros((4 * len(jobs) + 1, 4), dtype=np.int64)
        heap[: len(rows)] = np.stack((time_ms, key, rows, placement), axis=1)[sorted_]
        state.number[[loop.HEAP, loop.SEQUENCE]] = len(rows)
        return state._replace(heap=heap)

    def _times(self, state: LoopState) -> tuple[IntArray, IntArray]:
        job = state.job
        has_gpus = np.isin(job[:, orders.PHASE], (orders.STARTING, orders.RUNNING))
        start_ms = np.where(has_gpus, job[:, orders.BEGIN], NONE)
        run = state.run[: state.number[loop.RUNS]]
        start_ms[run[::-1, 0]] = run[::-1, 1]  # the first of each job is written last
        return start_ms, job[:, orders.FINISH].copy()
