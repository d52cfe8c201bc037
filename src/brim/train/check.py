"""Check whether a training script, stopped and resumed on another number of ranks, produces the same bits.

    python -m brim.train.check script.py its arguments
    python -m brim.train.check --sizes 2,4 --steps 50 script.py

The script runs 20 steps without a stop. Then it runs 10 steps, saves, ends, and resumes on another number of ranks.
There, one step is undone and repeated, as when a rank joins or dies.
After every step, all tensors of models and optimizers and all other state that `brim.train` carries are compared. The
script's own checkpoints are neither read nor written.

Exit code: 0 "resume exact: yes"; 1 "resume exact: no", with the first tensor that differs; 2 the check could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from brim.errors import UserError
from brim.gang.processes import ended_by_signals, terminate_launcher
from brim.units import counted

STEPS: Final = 20
"""Steps of a run; ours: enough for momentum, schedules and running statistics to have moved."""
TIMEOUT_S: Final = 600.0
"""Longest time of one of the three runs; ours."""
GRACE_S: Final = 5.0
"""From the end of that time to SIGKILL; ours."""
NO_CHECKPOINTS: Final = "-"
"""As in ``check_rank.py``, which imports torch."""

Sums = dict[str, str]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The record of one run: its settings, and checksums of tensors by step."""

    settings: dict[str, Any] = field(default_factory=dict)
    gpus: int = 0
    steps: dict[int, Sums] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """Number of steps done."""
        return max(self.steps, default=0)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference: its step and tensor.

    ``when`` is ``before``, ``restored`` or ``after`` the stop, or ``undone`` in the step that was undone and repeated.
    """

    when: str
    step: int
    name: str


@dataclass(frozen=True, slots=True)
class CheckedScript:
    """The script to run, and its options."""

    words: tuple[str, ...]
    folder: Path
    timeout_s: float
    zygote: str | None
    show: bool

    def run(
        self, name: str, *, size: int, stop: int, undone: int = 0, checkpoints: str = NO_CHECKPOINTS
    ) -> RecordedRun:
        """Run the script on ``size`` ranks, up to ``stop`` steps of the whole job; undo and repeat step ``undone``.

        Raises:
            UserError: the script failed, or took too long.
        """
        zygote = ["--zygote", self.zygote] if self.zygote else []
        command = [
            sys.executable, "-m", "brim.train.launch", "--nproc", str(size), "--grace", str(GRACE_S), *zygote, "-m",
            "brim.train.tools.check_rank", str(self.folder), name, str(stop), str(undone), checkpoints, *self.words,
        ]  # fmt: skip
        printed = self.folder / f"{name}.out"
        with printed.open("wb") as out:
            output = None if self.show else out
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            try:
                code = process.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                raise UserError(
                    f"{self.words[0]} on {counted(size, 'rank')} did not get to step {stop} in {self.timeout_s:g} s: "
                    "give it a smaller task, or the check a longer --timeout"
                ) from None
            finally:
                terminate_launcher(process, 2 * GRACE_S)
        seen = read(self.folder / f"{name}.jsonl")
        if code:
            self._explain(name, size, code, seen)
        return seen

    def _explain(self, name: str, size: int, code: int, seen: RecordedRun) -> None:
        failed = self.folder / f"{name}.failed"
        why = failed.read_text(encoding="utf-8") if failed.exists() else f"exit code {code}"
        after = counted(seen.last, "step")
        raise UserError(f"{self.words[0]} failed on {counted(size, 'rank')} after {after}: {why}; --show shows it all")


def read(path: Path) -> RecordedRun:
    """Read the record of a run, without an incomplete last line."""
    if not path.exists():
        return RecordedRun()
    header: dict[str, Any] = {}
    steps: dict[int, Sums] = {}
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        found = json.loads(line)
        if "settings" in found:
            header = header or found
        else:
            steps[found["step"]] = found["sums"]
    return RecordedRun(header.get("settings", {}), header.get("gpus", 0), steps)


def first_difference(undisturbed: RecordedRun, before: RecordedRun, after: RecordedRun, stop: int) -> Difference | None:
    """Find where the run with a stop first differs from the one without."""
    for step in sorted(undisturbed.steps):
        for seen, when in ((before, "before"), (after, "restored" if step == stop else "after")):
            expected_here = step <= stop if seen is before else step >= stop
            if not expected_here:
                continue
            name = _differing(undisturbed.steps[step], seen.steps.get(step, {}))
            if name is not None:
                return Difference(when, step, name)
    return None


def _differing(one: Sums, other: Sums) -> str | None:
    return next((name for name in (one | other) if one.get(name) != other.get(name)), None)


def step_to_undo(stop: int, last: int) -> int:
    """Return the step to undo and repeat: one between the stop and the end, and not the first; 0 if there is none."""
    return stop + 1 + (last - stop) // 2 if last - stop > 1 else 0


def second_size(seen: RecordedRun, first: int, wanted: int | None) -> int:
    """Return the number of ranks to resume on.

    Raises:
        UserError: that number of ranks is not possible.
    """
    workers = seen.settings.get("logical_workers")
    size = wanted if wanted is not None else (2 * first if workers is None or workers % (2 * first) == 0 else 1)
    if workers is not None and workers % size:
        raise UserError(f"--sizes: found {size} with logical_workers={workers}, expected a divisor of it")
    if seen.gpus and size > seen.gpus:
        raise UserError(
            f"resuming on {counted(size, 'rank')} takes as many GPUs, found {seen.gpus}: give "
            f"--sizes {first},{seen.gpus}, or CUDA_VISIBLE_DEVICES= to check on the CPU"
        )
    return size


def check(script: CheckedScript, *, steps: int, first: int, second: int | None) -> int:
    """Run the script three times and print the result; return the exit code."""
    undisturbed = script.run("undisturbed", size=first, stop=steps)
    if not undisturbed.steps:
        raise UserError(
            f"{script.words[0]} ended without a step of brim.train: expected a loop over run.steps(loader), as in "
            "docs/how-to-train-elastically.md"
        )
    if undisturbed.last < 2:
        made = counted(undisturbed.last, "step")
        raise UserError(f"{script.words[0]} made {made}: expected 2 at least, to stop between them")
    second = second_size(undisturbed, first, second)
    stop, checkpoints = undisturbed.last // 2, str(script.folder / "checkpoints")
    before = script.run("before", size=first, stop=stop, checkpoints=checkpoints)
    undone = step_to_undo(stop, undisturbed.last)
    after = script.run("after", size=second, stop=undisturbed.last, undone=undone, checkpoints=checkpoints)
    what = (
        f"{counted(undisturbed.last, 'step')} on {counted(first, 'rank')}; stopped after {stop}, resumed on "
        f"{counted(second, 'rank')}"
    )
    what += f"; step {undone} undone and repeated" if undone else ""
    found = first_difference(undisturbed, before, after, stop)
    if found is not None and found.step == undone:
        found = replace(found, when="undone")
    if found is None:
        sys.stdout.write(f"resume exact: yes ({what}; {len(undisturbed.steps[stop])} sums compared at every step)\n")
        if first == second:
            sys.stdout.write("  the number of ranks was the same: another one was not tried\n")
        for doubt in _caveats(undisturbed):
            sys.stdout.write(f"  not for sure: {doubt}\n")
        return 0
    sys.stdout.write(f"resume exact: no ({what})\n  first difference: {found.name} after step {found.step}\n")
    for hint in hints(found, undisturbed, after, first, second):
        sys.stdout.write(f"  {hint}\n")
    return 1


def hints(found: Difference, undisturbed: RecordedRun, after: RecordedRun, first: int, second: int) -> list[str]:
    """Return possible causes of a difference."""
    from brim.train.reproducibility import differences  # noqa: PLC0415  (imports torch)

    reasons = _caveats(undisturbed)
    if after.settings:
        reasons += [f"the runs differ in {each}" for each in differences(undisturbed.settings, after.settings)]
    if found.when == "before":
        return [
            "before the stop: two runs of the script are not equal. Something draws numbers that start() does not seed "
            "(your own generator, os.urandom, the time, the order of a set), or weights are made before start()",
            *reasons,
        ]  # fmt: skip
    if found.when == "restored":
        return ["what was restored is not what was saved: does something change it between two steps?", *reasons]
    if found.when == "undone":
        return [
            f"step {found.step} was undone once on purpose, as when a rank joins or dies, and its repetition differs: "
            "put code that runs once per step, such as setting a learning rate, behind run.begins_step, not behind "
            "the value that run.step() returns; compute what it needs from run.steps_done, or give it to run.carry",
            *reasons,
        ]  # fmt: skip
    if first != second:
        reasons.append(f"--sizes {first},{first} tells whether it is the stop or the number of ranks")
    return [
        "after the stop: state that run.prepare and run.carry were not given, numbers drawn outside of run.steps, or "
        "sums that depend on the number of ranks", *reasons,
    ]  # fmt: skip


def _caveats(seen: RecordedRun) -> list[str]:
    from brim.train.reproducibility import caveats  # noqa: PLC0415  (imports torch)

    return caveats(seen.settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m brim.train.check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--steps", type=int, default=STEPS, metavar="N", help=f"optimizer steps, stop in the middle (default {STEPS})")
    add("--sizes", default="1", metavar="A,B", help="ranks before and after the stop (default: 1 and, if it can be, 2)")
    add("--timeout", type=float, default=TIMEOUT_S, metavar="S", help=f"for each of three runs (default {TIMEOUT_S:g})")
    add("--zygote", metavar="PATH", help="use the zygote that listens on PATH (default: start one for each run)")
    add("--show", action="store_true", help="show what the script prints")
    add("script", help="a Python file that uses brim.train")
    add("args", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _sizes(text: str) -> tuple[int, int | None]:
    words = text.split(",")
    if len(words) > 2 or not all(word.isdecimal() and int(word) >= 1 for word in words):
        raise UserError(f"--sizes: found {text!r}, expected one or two numbers of ranks such as 1,2")
    return int(words[0]), int(words[1]) if len(words) == 2 else None


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parser().parse_args(words)
    try:
        first, second = _sizes(options.sizes)
        if options.steps < 2:
            raise UserError(f"--steps: found {options.steps}, expected at least 2")
        if options.timeout <= 0:
            raise UserError(f"--timeout: found {options.timeout:g}, expected more than 0 seconds")
        if not os.path.isfile(options.script):
            raise UserError(f"{options.script}: no such file")
        with ended_by_signals(), tempfile.TemporaryDirectory(prefix="brim-check-") as folder:
            script = CheckedScript(
                (options.script, *options.args), Path(folder), options.timeout, options.zygote, options.show
            )
            return check(script, steps=options.steps, first=first, second=second)
    except UserError as error:
        sys.stderr.write(f"brim: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
