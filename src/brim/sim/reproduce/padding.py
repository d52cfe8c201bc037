"""PaddingTorch: how much longer, and how much cheaper, is training in the gaps of other jobs?

From the Alibaba PAI trace the paper takes the four windows of single GPUs with the most task switches, replays them on
four GPUs, and trains a protein-complex predictor in the gaps. Only its abstract was readable. Ours: windows of six
hours, each GPU's best, on four different GPUs; the tasks of all windows begin at the same time and repeat until the
padding job has ended.

Source:
    Du, Yu, Peng, Xu: PaddingTorch, Computer Science 51(9), 2024: the claims. Everything else: ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from brim.beliefs.throughput import step_s
from brim.core.arrays import IntArray
from brim.core.cluster import Cluster
from brim.core.prices import Prices
from brim.core.replay import Replay, Runs
from brim.core.trace import NONE, JobClass, Trace, trace_of
from brim.errors import ConfigError
from brim.sim.truths.parametric import ElasticJobs, Parametric
from brim.units import MS_PER_H, MS_PER_MIN, MS_PER_S

WINDOW_MS: Final = 6 * MS_PER_H
"""Length of a window; the paper's is not published. Ours."""
STEP_MS: Final = 10 * MS_PER_MIN
"""Distance between the windows that are looked at."""
GPUS: Final = 4
ALONE_MS: Final = 2 * MS_PER_H
"""Time of the padding job on four GPUs of its own: so that a third of a window's GPU time makes it last one window."""
REPEATS: Final = 16
"""How often the windows are repeated; a job that needs longer is said not to have ended."""
PRICE: Final = Prices(gpu_hour=1.0).of("padding")
"""Price of padding relative to a reserved GPU, as in bills: 0.16 / (1 + o) for an overhead o of a quarter."""
IMPLIED_IDLE: Final = 1.43 / 4
"""Share of GPU time that 2.8 times the time means for an overhead of 0: 4 / 2.8 of four GPUs are held on average."""
PUBLISHED: Final = {"time": 2.8, "cost": -0.84, "utilisation": 0.258}


@dataclass(frozen=True, slots=True)
class Model:
    """What the padding job trains: its step times, as in ``beliefs/throughput.py``, and its constant batch."""

    parameters: tuple[float, ...]
    batch: int


TRANSFORMER: Final = Model((0.02, 0.0070, 0.040, 0.008, 0.120, 0.020, 2.0), 128)
"""Step times of a transformer of 100 M parameters on sequences of 512 residues, as a stand-in for a protein model:
7 ms per sequence (6 x 100 M x 512 FLOP at 44 TFLOP/s), and 400 MB of gradients at some 10 GB/s, half of it hidden.
Computed, not measured."""
PROTEINS: Final = Model((0.01002, 0.0007000, 0.03047, 0.0, 0.03047, 0.0, 1.599), 64)
"""Step times of examples/train_proteins.py, at its batch: fitted to what ``brim profile --ranks 1,2 --batch 8-64``
measured on two cores of an AMD EPYC that other work kept busy (load average 10 to 15), the least of three medians at
each of 12 points; off by 10.8 % (root mean square). The exchange, 30 ms, contains waiting for a core; a quiet machine
would show less. One rank takes 55 ms, two take 48 ms; 43 and 40 ms on three and four are extrapolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one GPU did in one window.

    Attributes:
        gpu: Global index of the GPU in the replay of the trace.
        begin_ms: Begin of the window there.
        switches: Starts and ends of tasks in it.
        busy_ms: Intervals in which a task held the GPU, from the begin of the window, (B, 2).
        length_ms: Length of the window.
    """

    gpu: int
    begin_ms: int
    switches: int
    busy_ms: IntArray
    length_ms: int = WINDOW_MS

    @property
    def idle_share(self) -> float:
        """Share of the window in which no task holds the GPU."""
        return 1.0 - float((self.busy_ms[:, 1] - self.busy_ms[:, 0]).sum()) / self.length_ms


def busiest_windows(runs: Runs, end_ms: int, count: int = GPUS) -> list[Window]:
    """The windows with the most task switches, on different GPUs.

    Args:
        runs: What a replay of the whole trace recorded.
        end_ms: When it ended; windows reach no further.
        count: How many.

    Raises:
        ConfigError: fewer GPUs had a task, or the record is shorter than a window.
    """
    per_run = np.diff(runs.first_gpu)
    begin, end = np.repeat(runs.start_ms, per_run), np.repeat(runs.end_ms, per_run)
    best: list[tuple[int, int, int]] = []  # switches, GPU, begin
    last_ms = end_ms - WINDOW_MS
    for gpu in np.unique(runs.gpu).tolist():
        mine = runs.gpu == gpu
        times = np.sort(np.concatenate((begin[mine], end[mine])))
        opens = np.arange(0, max(last_ms, 0) + 1, STEP_MS)
        switches = np.searchsorted(times, opens + WINDOW_MS) - np.searchsorted(times, opens)
        at = int(np.argmax(switches))
        best.append((int(switches[at]), gpu, int(opens[at])))
    if last_ms < 0 or len(best) < count:
        raise ConfigError(
            f"the trace has tasks on {len(best)} GPUs in {end_ms / MS_PER_H:.1f} h: expected {count} GPUs and at least "
            f"{WINDOW_MS // MS_PER_H} h"
        )
    best.sort(key=lambda found: (-found[0], found[1]))
    return [
        Window(gpu=gpu, begin_ms=opens_ms, switches=switches,
               busy_ms=_busy(begin[runs.gpu == gpu] - opens_ms, end[runs.gpu == gpu] - opens_ms))
        for switches, gpu, opens_ms in best[:count]
    ]


def _busy(begin: IntArray, end: IntArray, length_ms: int = WINDOW_MS) -> IntArray:
    """The union of tasks within a window, as intervals."""
    found: list[list[int]] = []
    for first, last in sorted(zip(np.maximum(begin, 0).tolist(), np.minimum(end, length_ms).tolist(), strict=True)):
        if first >= last:
            continue
        if found and first <= found[-1][1]:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def changed(window: Window, idle_share: float | None, switches: float) -> Window:
    """The window with another idle share and another switch rate.

    Args:
        window: The window.
        idle_share: Gaps and tasks are stretched to this share; None to keep it, as where there is only one of both.
        switches: How many times as often it switches: everything is as many times as short.
    """
    edges = np.concatenate(([0], window.busy_ms.ravel(), [window.length_ms])).astype(np.float64)
    spans = np.diff(edges)  # gap, task, gap, task ... gap
    if idle_share is not None and 0 < window.idle_share < 1:
        spans[0::2] *= idle_share / window.idle_share
        spans[1::2] *= (1 - idle_share) / (1 - window.idle_share)
    ends = np.rint(np.cumsum(spans) / switches).astype(np.int64)
    length_ms = round(window.length_ms / switches)
    return replace(window, length_ms=length_ms, busy_ms=_busy(ends[0:-1:2], ends[1::2], length_ms))


def jobs_in(
    windows: list[Window], alone_ms: int = ALONE_MS, gpus_min: int = 1, gpus_max: int = GPUS,
    batch: int = TRANSFORMER.batch,
) -> Trace:
    """The tasks of the windows, side by side and repeated, as regular jobs of one GPU, and the padding job."""
    submit, run = [], []
    for window in windows:
        for again in range(-(-REPEATS * WINDOW_MS // window.length_ms)):
            submit += (window.busy_ms[:, 0] + again * window.length_ms).tolist()
            run += (window.busy_ms[:, 1] - window.busy_ms[:, 0]).tolist()
    names = [f"task{row}" for row in range(len(submit))]
    sizes = tuple(range(gpus_min, gpus_max + 1))
    return trace_of(
        name="windows", format="pai", synthetic=True, job_id=["padding", *names], submit_ms=[0, *submit],
        run_ms=[alone_ms, *run], gpus=[gpus_max, *([1] * len(submit))], batch=[batch, *([NONE] * len(submit))],
        profile=[0, *([NONE] * len(submit))], profiles=("protein",),
        job_class=[JobClass.PADDING, *([JobClass.REGULAR] * len(submit))], size_lists=(sizes,),
        size_list=[0, *([NONE] * len(submit))],
    )


def protein_truth(
    trace: Trace, cluster: Cluster, alone_ms: int = ALONE_MS, gpus_min: int = 1, gpus_max: int = GPUS,
    model: Model = TRANSFORMER,
) -> Parametric:
    """The padding job runs by the formula of its profile, the tasks as recorded."""
    row = trace.job_id.index("padding")
    parameters = np.array([model.parameters])
    step_ms = float(step_s(parameters, 1, GPUS, np.array([model.batch / GPUS]))[0]) * MS_PER_S
    one = np.array([model.batch])
    return Parametric(trace, cluster, ElasticJobs(
        row=np.array([row]), parameters=parameters, batch=one, batch_min=one, batch_max=one,
        local_batch_min=np.array([1]), local_batch_max=one, gpus_min=np.array([gpus_min]),
        gpus_max=np.array([gpus_max]), samples=np.array([alone_ms / step_ms * model.batch]), profile=np.array([0]),
    ))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to train in gaps.

    Attributes:
        name: Name in tables.
        gpus_min: Fewest GPUs it can use.
        gpus_max: Most GPUs it can use.
        in_place: Whether it changes its GPUs in place; if not, every change goes back to the last checkpoint.
        model: What it trains.
    """

    name: str
    gpus_min: int = 1
    gpus_max: int = GPUS
    in_place: bool = True
    model: Model = TRANSFORMER


OURS: Final = Way(name="padding")
WAYS: Final = (
    OURS, Way(name="roll back on each change", in_place=False),
    Way(name="stop and restart, 4 GPUs", gpus_min=GPUS, in_place=False), Way(name="fixed 1 GPU", gpus_max=1),
    Way(name="padding, train_proteins", model=PROTEINS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What came of the padding job, and of the tasks around it.

    Attributes:
        way: How it was trained.
        idle_share: Share of GPU time that the tasks left, until the padding job ended.
        switches_per_h: Starts and ends of tasks per GPU and hour.
        time_ratio: Its time over that on GPUs of its own; infinite if it did not end.
        overhead: GPU time that it held over that on GPUs of its own, less 1.
        lost_share: Part of the GPU time it held whose work was lost.
        changes: Times it got or lost GPUs.
        busy_before: Share of GPU time in which a task held the GPU.
        busy_after: The same with the padding job.
        jct_change: Change of the tasks' mean completion time because of the padding job.
        late_ms_max: Longest time by which a task started later because of it.
    """

    way: str
    idle_share: float
    switches_per_h: float
    time_ratio: float
    overhead: float
    lost_share: float
    changes: int
    busy_before: float
    busy_after: float
    jct_change: float
    late_ms_max: int

    def cost_ratio(self, price: float = PRICE) -> float:
        """Cost over that of reserved GPUs for the time on GPUs of its own: price (1 + overhead)."""
        return price * (1.0 + self.overhead)


def outcome(with_it: Replay, without: Replay, windows: list[Window], way: Way, alone_ms: int = ALONE_MS) -> Trained:
    """Sum up what came of the padding job.

    Args:
        with_it: The replay of ``jobs_in``.
        without: That of its tasks alone.
        windows: What both were made of.
        way: How the job was trained.
        alone_ms: Its time on GPUs of its own.
    """
    trace = with_it.trace
    first_ms = int(trace.submit_ms[trace.job_class != JobClass.PADDING].min(initial=REPEATS * WINDOW_MS))
    pad = trace.job_id.index("padding")
    regular = np.arange(len(trace)) != pad
    until_ms = int(with_it.finish_ms[pad])
    span = float(until_ms * GPUS)
    runs = with_it.runs
    held = float(with_it.service_gpu_ms[pad])
    before = without.runs
    busy = np.clip(np.minimum(before.end_ms + first_ms, until_ms) - (before.start_ms + first_ms), 0, None).sum() / span
    theirs = runs.job != pad
    busy_with = np.clip(np.minimum(runs.end_ms[theirs], until_ms) - runs.start_ms[theirs], 0, None).sum() / span
    jct, jct_without = (
        (found.finish_ms - found.trace.submit_ms)[rows] for found, rows in
        ((with_it, regular), (without, np.arange(len(without.trace))))
    )
    late = with_it.first_start_ms[regular] - first_ms - without.first_start_ms
    ended = until_ms <= REPEATS * WINDOW_MS
    return Trained(
        way=way.name, idle_share=1.0 - float(busy),
        switches_per_h=float(np.mean([window.switches * MS_PER_H / window.length_ms for window in windows])),
        time_ratio=until_ms / alone_ms if ended else np.inf, overhead=held / (GPUS * alone_ms) - 1.0,
        lost_share=float(with_it.lost_gpu_ms[pad]) / max(held, 1.0),
        changes=int(with_it.resizes[pad] + 2 * with_it.preemptions[pad]), busy_before=float(busy),
        busy_after=float(busy_with) + held / span,
        jct_change=float(jct.mean() / jct_without.mean() - 1.0), late_ms_max=int(late.max(initial=0)),
    )
