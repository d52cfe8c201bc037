"""Compile what a policy of a new kind calls: before anything else, once on a machine, with a progress line."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brim.compiled import is_ready, lock, set_ready

if TYPE_CHECKING:
    from brim.cli.replays import Task

ESTIMATE: Final = "up to 40 s of CPU time"
"""Measured from an empty cache: 20 to 30 s for one policy, 40 s for seven, rigid and elastic, in one comparison. A
later policy compiles only what those before it did not call."""
QUIET_S: Final = 1.0
"""Compiling that takes less is not reported: a policy of a new kind may need nothing new."""
JOBS: Final = 64
"""Jobs of the trace that are replayed so that everything a policy calls gets compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step to run once so that everything it calls is compiled."""

    name: str
    key: str
    run: Callable[[], object]


def compile_first(steps: Sequence[Step]) -> None:
    """Run the steps that never ran on this machine, one process at a time, and report it on stderr."""
    if all(is_ready(step.key) for step in steps):
        return
    with lock(waits=lambda: _say("waiting for another process that compiles the scheduling kernels")):
        cold = [step for step in steps if not is_ready(step.key)]
        if cold:
            _compile(cold)


def _compile(steps: Sequence[Step]) -> None:
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    what = f"once for each kind of policy: {ESTIMATE}"
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


def steps_of(tasks: Sequence[Task]) -> list[Step]:
    """One step for each kind of policy and truth among the tasks: a replay of the first jobs, and its bounds."""
    from brim.policies.presets import find_policy

    found: dict[str, Step] = {}
    for task in tasks:
        policy = find_policy(task.policy) if isinstance(task.policy, str) else task.policy
        parts = (policy.order, policy.size, policy.place, policy.feed, policy.fill)
        words = [f"{type(part).__module__}.{type(part).__qualname__}" for part in parts]
        truth = getattr(task.truth, "name", type(task.truth).__qualname__)
        key = hashlib.sha256(" ".join([*words, truth]).encode()).hexdigest()[:16]
        found.setdefault(key, Step(name=policy.name, key=key, run=lambda task=task: _replay_a_few(task)))  # type: ignore[misc]
    return list(found.values())


def _replay_a_few(task: Task) -> None:
    from dataclasses import replace

    from brim import traces
    from brim.cli.replays import replay_task
    from brim.reports.summary import summarise

    summarise([replay_task(replace(task, trace=traces.limit(task.trace, JOBS)))])


def _say(text: str) -> None:
    print(f"brim: {text}", file=sys.stderr, flush=True)
