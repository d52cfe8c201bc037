"""Compile the kernels of replays: before anything else, once for each version of them, with a progress line."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from brim.kernel_cache import is_ready, lock, set_ready

ESTIMATE: Final = "1 to 2 minutes of CPU time"
"""Less where the demo has compiled some. 81 s measured by ``make demo`` from an empty cache on a quiet machine of two
cores, 103 s on a busy one. The shares were 29 s for the loop with queues and the bounds, 38 s for whole rounds and 7 s
for elastic policies, measured earlier with both cores busy; places of workers and servers came later, and take 3 s."""
QUIET_S: Final = 1.0
"""Steps that take less are not reported: their kernels were compiled before, by a process that was then stopped."""
JOBS: Final = 24
"""Jobs that a step replays: enough that some wait, are preempted and resized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileStep:
    """A step to run once so that everything it calls is compiled."""

    name: str
    key: str
    run: Callable[[], object]


def compile_first(steps: Sequence[CompileStep], estimate: str = ESTIMATE) -> None:
    """Run the steps that never ran with this cache, one process at a time, and report it on stderr."""
    if all(is_ready(step.key) for step in steps):
        return
    with lock(waits=lambda: _say("waiting for another process that compiles the scheduling kernels")):
        cold = [step for step in steps if not is_ready(step.key)]
        if cold:
            _compile(cold, estimate)


def _compile(steps: Sequence[CompileStep], estimate: str) -> None:
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    what = f"once for this version of brim: {estimate}"
    on_terminal = sys.stderr.isatty()
    announced = threading.Timer(QUIET_S, _say, [f"compiling the scheduling kernels, {what}"])
    announced.daemon = True
    if not on_terminal:
        announced.start()
    try:
        for number, step in enumerate(steps, 1):
            if on_terminal:
                _show(f"compiling the scheduling kernels ({number} of {len(steps)}: {step.name}), {what}")
            step.run()
            set_ready(step.key)
    except KeyboardInterrupt:  # it names a policy that the user did not ask for
        raise KeyboardInterrupt("while the scheduling kernels were compiled") from None
    finally:
        announced.cancel()
    if on_terminal:
        print("\r\x1b[K", end="", file=sys.stderr)
    if time.monotonic() - began_s >= QUIET_S:
        _say(f"compiled the scheduling kernels in {time.process_time() - began_cpu_s:.0f} s of CPU time")


def _show(text: str) -> None:
    """Replace the line that the terminal shows; text that is wrapped could not be replaced, so it is cut."""
    columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    print("\r\x1b[K" + f"brim: {text}"[: columns - 1], end="", file=sys.stderr, flush=True)


def kernels() -> list[CompileStep]:
    """The steps that compile every kernel of a replay. They are the same whatever is replayed.

    They replay a trace of their own under shipped policies: the lock is held meanwhile, so a user's part that never
    returns, or a large trace, would keep every other user of this cache waiting.
    """
    return [
        CompileStep(name="policies of a fixed order", key="queues", run=lambda: _replay_a_few("fifo")),
        CompileStep(name="rounds", key="rounds", run=lambda: _replay_a_few("srtf")),
        CompileStep(name="workers and servers", key="servers", run=_search_places),
        CompileStep(name="elastic policies", key="elastic", run=lambda: _replay_a_few("elastic-fixed", "parametric")),
    ]


def _replay_a_few(policy: str, truth: str = "rigid") -> None:
    """Replay a few made-up jobs and compute their bounds."""
    from brim.core.cluster import parse_cluster
    from brim.policies.presets import PRESETS
    from brim.reports.summary import summarise
    from brim.sim.truth_option import TruthOption
    from brim.sim.twin import replay
    from brim.traces.synth import synthesize

    cluster = parse_cluster("2x4xV100")
    trace = synthesize("philly", JOBS, 0, cluster, 1.5)
    jobs = TruthOption(name=truth).build(trace, cluster, 0)
    summarise([replay(trace, cluster, PRESETS[policy], truth=jobs)])


def _search_places() -> None:
    """Place a gang of nothing: a replay of a few jobs need not call every kernel."""
    import numpy as np

    from brim.policies.place import gang_places

    nodes, ranks, asked = (np.zeros(shape, dtype=np.int64) for shape in (
        (1, 1 + gang_places.EXTRA), (0, gang_places.RANK_COLUMNS), gang_places.GPU_TYPE + 1,
    ))
    gang_places.num_gpus(nodes, asked[gang_places.SHARE_MILLI])
    gang_places.search(nodes, asked, -1, ranks)
    gang_places.write_ranks(nodes, asked, ranks)
    gang_places.fits(nodes, ranks)
    gang_places.change(nodes, ranks, 1)


def _say(text: str) -> None:
    print(f"brim: {text}", file=sys.stderr, flush=True)
