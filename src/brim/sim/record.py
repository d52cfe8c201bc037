"""The columns of ``Replay`` while a replay runs."""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np

from brim.core.arrays import frozen
from brim.core.reasons import Reason
from brim.core.replay import Runs, Sleeps
from brim.core.trace import NONE
from brim.units import WHOLE_GPU


class Record:
    """What has happened to each job so far; the lists are columns of ``Replay``, one entry per job.

    Attributes:
        ended: Jobs that have ended or were rejected.
        other_shares: Jobs that were granted another share of their GPUs than they asked for.
        shared_by: Starts beside other jobs, by the basis on which their slowdown was predicted.
    """

    def __init__(self, jobs: int) -> None:
        self.ended = 0
        self.other_shares: set[int] = set()
        self.shared_by: Counter[Reason] = Counter()
        self.first_start_ms, self.finish_ms, self.rejected_ms = ([NONE] * jobs for _ in range(3))
        self.service_gpu_ms, self.useful_gpu_ms, self.lost_gpu_ms = ([0] * jobs for _ in range(3))
        self.preemptions, self.restarts, self.resizes = ([0] * jobs for _ in range(3))
        self.failed, self.rejected, self.unmeasured = ([0] * jobs for _ in range(3))
        self._job, self._start, self._end = array("q"), array("q"), array("q")
        self._first, self._gpu, self._share, self._cores = array("q", [0]), array("q"), array("q"), array("q")
        self._busy = array("d")
        self._slept: list[tuple[int, int, int, int]] = []

    def start(self, job: int, begin_ms: int) -> None:
        """Record that a job was started or moved."""
        if self.first_start_ms[job] == NONE:
            self.first_start_ms[job] = begin_ms
        else:
            self.restarts[job] += 1

    def run(
        self, job: int, begin_ms: int, end_ms: int, gpus: tuple[int, ...], share_milli: int, cores_milli: int,
        busy: tuple[float, float],
    ) -> None:
        """Record that a job held GPUs; an interval of no length is left out.

        Of its GPUs and milli-cores, so many computed (``busy``), mean over the interval.

        A job whose interval ends before it begins never got the GPUs, since the jobs leaving them were still leaving:
        its start does not count.
        """
        if end_ms < begin_ms:
            if self.first_start_ms[job] == begin_ms:
                self.first_start_ms[job] = NONE
            else:
                self.restarts[job] -= 1
        elif end_ms > begin_ms:
            self.service_gpu_ms[job] += (end_ms - begin_ms) * len(gpus) * share_milli // WHOLE_GPU
            self._job.append(job)
            self._start.append(begin_ms)
            self._end.append(end_ms)
            self._share.append(share_milli)
            self._cores.append(cores_milli)
            self._busy.extend(busy)
            self._gpu.extend(gpus)
            self._first.append(len(self._gpu))

    def sleep(self, node: int, start_ms: int, end_ms: int, awake_ms: int) -> None:
        """Record that a node slept; see ``Sleeps``."""
        self._slept.append((start_ms, node, end_ms, awake_ms))

    def starts(self, job: int) -> int:
        """How often a job has got GPUs."""
        return self.restarts[job] + (self.first_start_ms[job] != NONE)

    def first_waiting(self) -> int:
        """The first job, in order of submission, that has not ended."""
        over = np.array(self.finish_ms) != NONE
        return int(np.argmin(over | (np.array(self.rejected) > 0)))

    def columns(self) -> dict[str, object]:
        """The job columns and the runs, in order of start."""
        names = ("first_start_ms", "finish_ms", "service_gpu_ms", "useful_gpu_ms", "lost_gpu_ms", "preemptions",
                 "restarts", "resizes", "failed", "rejected", "rejected_ms", "unmeasured")
        return {
            **{name: frozen(np.array(getattr(self, name), dtype=np.int64)) for name in names},
            "runs": self._runs(), "sleeps": self._sleeps(),
        }

    def _sleeps(self) -> Sleeps:
        block = np.array(sorted(self._slept), dtype=np.int64).reshape(-1, 4).T
        start, node, end, awake = (frozen(np.ascontiguousarray(column)) for column in block)
        return Sleeps(node=node, start_ms=start, end_ms=end, awake_ms=awake)

    def _runs(self) -> Runs:
        """The runs in order of (start, job)."""
        job, start, end, first, gpu, share, cores = (np.array(values, dtype=np.int64) for values in (
            self._job, self._start, self._end, self._first, self._gpu, self._share, self._cores
        ))
        busy = np.array(self._busy).reshape(-1, 2)
        order = np.lexsort((job, start))
        told = order[:0] if np.isnan(busy).any() else order
        counts = np.diff(first)[order]
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        picks = np.repeat(first[:-1][order] - offsets[:-1], counts) + np.arange(len(gpu))
        return Runs(
            job=frozen(job[order]), start_ms=frozen(start[order]), end_ms=frozen(end[order]),
            share_milli=frozen(share[order]), first_gpu=frozen(offsets), gpu=frozen(gpu[picks]),
            cores_milli=frozen(cores[order]), gpus_busy=frozen(busy[told, 0]), cores_busy_milli=frozen(busy[told, 1]),
        )
