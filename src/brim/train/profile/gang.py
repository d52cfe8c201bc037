"""A script's steps, timed from outside: a gang that is started, tuned, listened to and ended.

`ScriptSteps` and `BoxExchange` are what the analyser measures with (``Steps`` and ``Exchange`` of beliefs/analyser.py).
A batch that ends the gang for lack of memory does not fit; the next one gets a new gang.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, TextIO

from brim.errors import BrimError, UserError
from brim.gang.asking import ask
from brim.gang.processes import end_launcher
from brim.gang.protocol import AskTune

GRACE_S: Final = 5.0
"""From asking a gang to end to SIGKILL; ours."""
POLL_S: Final = 0.01
"""Between two looks at the record; ours, short beside what starting a gang takes."""
SAID_BYTES_MAX: Final = 1 << 16
"""What is shown at most of what a failing script wrote to stderr; ours."""
NO_DRAIN: Final = "-"
"""As in ``rank.py``, which imports torch."""
_PR_SET_PDEATHSIG: Final = 1

_libc = ctypes.CDLL(None)
_number = count()


class ScriptError(BrimError):
    """The script failed; ``said`` is what it wrote to stderr, ``exit_code`` its own."""

    def __init__(self, said: str, exit_code: int) -> None:
        super().__init__(said)
        self.said, self.exit_code = said, exit_code


class TooLargeError(BrimError):
    """The batch does not fit the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What to run.

    Attributes:
        python: The interpreter.
        words: Script and arguments.
        folder: For what gangs write; of ours alone, with a short path.
        timeout_s: Longest time to the next step, the first from the start of the process on.
        zygote: One that listens, to save start-up time; None: one for each gang.
    """

    python: str
    words: tuple[str, ...]
    folder: Path
    timeout_s: float
    zygote: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a script says of itself and of where it runs, before its first step.

    Attributes:
        device: "cpu" or "cuda".
        device_name: As its maker calls it.
        gpus: Visible ones; 0 on a CPU.
        memory_bytes: Of a GPU, for this process; None on a CPU.
        cpus: Processors it may use.
        threads: PyTorch's, of one rank.
        torch: Version.
        python: Version.
        samples: Of the dataset.
        global_batch: The script's own.
        local_batch: The first that was tried.
        loader_workers: The script's own.
    """

    device: str
    device_name: str
    gpus: int
    memory_bytes: int | None
    cpus: int
    threads: int
    torch: str
    python: str
    samples: int
    global_batch: int
    local_batch: int
    loader_workers: int


def launch(script: Script, size: int, words: Sequence[str], name: str) -> subprocess.Popen[bytes]:
    """Start the launcher with so many ranks; it ends them all when we end, however that comes about."""
    zygote = ["--zygote", script.zygote] if script.zygote else []
    command = [
        sys.executable, "-m", "brim.train.launch", "--nproc", str(size), "--control", str(script.folder / name),
        "--grace", str(GRACE_S), *zygote, "--command", script.python, *words,
    ]  # fmt: skip
    with (script.folder / f"{name}.err").open("wb") as errors:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            process_group=0,  # Ctrl-C is for us; what we end in answer has not failed
            preexec_fn=_end_with_parent,  # noqa: PLW1509  (one call of the kernel; there is no other way to ask for it)
        )  # fmt: skip


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def said(script: Script, name: str) -> str:
    """What a gang wrote to stderr, without our own word about where to reach it."""
    text = (script.folder / f"{name}.err").read_bytes()[-SAID_BYTES_MAX:].decode(errors="replace")
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("brim: control "))


class Gang:
    """The script on ``size`` ranks, from its start on, at this local batch (0: the first that it finds itself)."""

    def __init__(self, script: Script, size: int, local_batch: int, drain: Sequence[int] = ()) -> None:
        self._script, self._size, self._name = script, size, f"gang-{next(_number)}"
        self._record = script.folder / f"{self._name}.jsonl"
        self._file: TextIO | None = None
        self._half = ""
        self._steps = 0
        counts = ",".join(map(str, drain)) or NO_DRAIN
        rank = ["-m", "brim.train.profile.rank", str(self._record), str(local_batch), counts]
        self._process = launch(script, size, [*rank, *script.words], self._name)
        try:
            self.header = Header(**self._next("header")["header"])
            self.supply = [self._next("supply") for _ in drain]
        except BaseException:
            self.end()
            raise
        self._local_batch = self.header.local_batch

    def steps(self, local_batch: int, number: int) -> list[dict[str, Any]]:
        """So many steps at this local batch, the next ones.

        Raises:
            TooLargeError: it does not fit the memory.
            ScriptError: the script failed.
            UserError: the script ended, or made no step in time.
        """
        if local_batch != self._local_batch:
            with contextlib.suppress(OSError):  # it has ended: the record says how
                ask(str(self._script.folder / self._name), AskTune(global_batch=local_batch * self._size))
            self._local_batch = local_batch
        found: list[dict[str, Any]] = []
        while len(found) < number:
            step = self._next("step_s")
            self._steps += 1
            if step["local_batch"] == local_batch:
                found.append(step)
        return found

    def end(self) -> None:
        """Until none of its processes is left."""
        end_launcher(self._process, 2 * GRACE_S)
        if self._file is not None:
            self._file.close()

    def _next(self, what: str) -> dict[str, Any]:
        """The next line that says this."""
        until_s = time.monotonic() + self._script.timeout_s
        while True:
            over = self._process.poll() is not None  # before reading: nothing is added once it is
            while (line := self._line()) is not None:
                if "out_of_memory" in line:
                    raise TooLargeError("out of memory")
                if what in line:
                    return line
            if over:
                self._explain()
            if time.monotonic() > until_s:
                script, timeout_s = self._script.words[0], self._script.timeout_s
                raise UserError(
                    f"{script} made no step of brim.train in {timeout_s:g} s{self._after()}: expected a loop over "
                    "run.steps(loader), or a longer --timeout"
                )
            time.sleep(POLL_S)

    def _after(self) -> str:
        return f" after {self._steps} steps" if self._steps else ""

    def _line(self) -> dict[str, Any] | None:
        """The next line of the record; None: none that is whole."""
        if self._file is None:
            if not self._record.exists():
                return None
            self._file = self._record.open(encoding="utf-8")
        self._half += self._file.readline()
        if not self._half.endswith("\n"):
            return None
        line, self._half = self._half, ""
        found: dict[str, Any] = json.loads(line)
        return found

    def _explain(self) -> None:
        code, script = self._process.returncode, self._script.words[0]
        if code:
            raise ScriptError(said(self._script, self._name), code if code > 0 else 128 - code)
        if self._record.exists():
            raise UserError(
                f"{script} ended after {self._steps} steps: expected it to end by run.epochs(n, steps=N) alone, which "
                "a profile overrides, and not by break or exit"
            )
        raise UserError(
            f"{script} ended without a step of brim.train: expected a loop over run.steps(loader), as in "
            "docs/how-to-train-elastically.md"
        )


@dataclass(slots=True)
class Seen:
    """What else was seen at one local batch: waits for the loader (s), most memory, the last power."""

    waits_s: list[float] = field(default_factory=list)
    memory_bytes: int = 0
    power_w: float | None = None

    def add(self, step: dict[str, Any]) -> None:
        """One more step."""
        self.waits_s.append(step["loader_wait_s"])
        self.memory_bytes = max(self.memory_bytes, step["memory_bytes"])
        self.power_w = step["power_w"] if step["power_w"] is not None else self.power_w


class ScriptSteps:
    """``Steps`` of the analyser, of a script on ``size`` ranks: ``local_batch`` is what each of them computes.

    Times are those of a step without waiting for the loader.

    Args:
        script: What to run.
        size: Ranks.
        local_batch: The first; 0: a part of the script's own.
        drain: Numbers of loading processes whose supply is timed before the first step.

    Attributes:
        header: Of the first gang.
        supply: Samples per second by number of loading processes.
        seen: By local batch.
    """

    def __init__(self, script: Script, size: int, local_batch: int = 0, drain: Sequence[int] = ()) -> None:
        self._script, self._size = script, size
        try:
            self._gang: Gang | None = Gang(script, size, local_batch, drain)
        except TooLargeError:
            raise UserError(f"{script.words[0]} ran out of memory before its first step") from None
        self.header = self._gang.header
        self.supply: dict[int, float] = {line["workers"]: line["supply"] for line in self._gang.supply}
        self.seen: dict[int, Seen] = {}

    def step_s(self, local_batch: int, steps: int) -> Sequence[float] | None:
        """Seconds of each of so many steps; None where the batch does not fit the memory.

        Raises:
            ScriptError: the script failed.
            UserError: the script ended, or made no step in time.
        """
        try:
            if self._gang is None:
                self._gang = Gang(self._script, self._size, local_batch)
            found = self._gang.steps(local_batch, steps)
        except TooLargeError:
            self.end()
            return None
        for step in found:
            self.seen.setdefault(local_batch, Seen()).add(step)
        return [step["step_s"] for step in found]

    def end(self) -> None:
        """End what runs."""
        if self._gang is not None:
            self._gang.end()
            self._gang = None

    def __enter__(self) -> ScriptSteps:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class BoxExchange:
    """``Exchange`` of the analyser, on this machine: all sizes for a number of ranks are timed in one gang.

    Args:
        script: Whose interpreter and folder are used.
        device: "cpu" or "cuda".
        sizes: Bytes that will be asked for.
        repetitions: All-reduces of each size, of which the first warms up.
    """

    def __init__(self, script: Script, device: str, sizes: Sequence[int], repetitions: int) -> None:
        self._script, self._device, self._sizes, self._repetitions = script, device, tuple(sizes), repetitions
        self._found: dict[int, dict[str, float]] = {}

    def all_reduce_s(self, num_bytes: int, gpus: int, nodes: int) -> float:
        """Seconds of one all-reduce.

        Raises:
            BrimError: the ranks failed, or took too long.
        """
        if nodes != 1:
            raise BrimError(f"exchange on {nodes} nodes: this is one")
        if gpus not in self._found:
            self._found[gpus] = self._measure(gpus)
        return self._found[gpus][str(num_bytes)]

    def _measure(self, gpus: int) -> dict[str, float]:
        name = f"exchange-{next(_number)}"
        out = self._script.folder / f"{name}.json"
        sizes = ",".join(map(str, self._sizes))
        words = ["-m", "brim.train.profile.exchange", str(out), self._device, str(self._repetitions), sizes]
        process = launch(self._script, gpus, words, name)
        try:
            code = process.wait(self._script.timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_launcher(process, 2 * GRACE_S)
        if code != 0:
            how = f"took over {self._script.timeout_s:g} s" if code is None else f"ended with code {code}"
            last = (said(self._script, name).strip().splitlines() or ["it said nothing"])[-1]
            raise BrimError(f"all-reduce on {gpus} ranks {how}: {last}")
        found: dict[str, float] = json.loads(out.read_text(encoding="utf-8"))
        return found


def largest_that_fits(seen: dict[int, int], memory_bytes: int) -> int:
    """The local batch at which memory would be full: bytes by batch, two at least, are followed as a line.

    Returns 0 where more samples took no more memory: nothing can be said.
    """
    (one, one_bytes), *_, (other, other_bytes) = sorted(seen.items())
    per_sample = (other_bytes - one_bytes) / (other - one)
    if per_sample <= 0:
        return 0
    return other + math.floor((memory_bytes - other_bytes) / per_sample)


def interpreter(word: str) -> str:
    """The interpreter that ``python`` in a command means: ours, or the one whose path is given."""
    return word if os.path.dirname(word) else sys.executable
