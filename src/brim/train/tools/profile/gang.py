"""Starts, tunes and ends the gangs whose steps `brim profile` measures, and reads their measurements.

`ScriptSteps` and `BoxExchange` implement ``Steps`` and ``Exchange`` of beliefs/analyser.py. A batch with which the gang
runs out of memory does not fit; a new gang is started for the next one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, TextIO

from brim.errors import BrimError, UserError
from brim.gang.client import send_request
from brim.gang.messages import TuneSettings
from brim.gang.processes import end_with_parent, terminate_launcher
from brim.units import counted

GRACE_S: Final = 5.0
"""Time between asking a gang to end and SIGKILL. Our choice."""
POLL_S: Final = 0.01
"""Time between two reads of the record; short beside the start of a gang. Our choice."""
SAID_BYTES_MAX: Final = 1 << 16
"""Most bytes shown of the stderr of a script that failed. Our choice."""
NOT_GIVEN: Final = "-"
"""For a count or a batch. Equal to ``NONE`` in ``rank.py``, which cannot be imported here because it imports torch."""

_number = count()


class ScriptError(BrimError):
    """The script failed; ``stderr`` is what it wrote there, ``exit_code`` its exit code."""

    def __init__(self, stderr: str, exit_code: int) -> None:
        super().__init__(stderr)
        self.stderr, self.exit_code = stderr, exit_code


class TooLargeError(BrimError):
    """The batch does not fit in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The script to measure.

    Attributes:
        python: The interpreter.
        words: Script and arguments.
        folder: Folder for what gangs write; used by nothing else, with a short path.
        timeout_s: Longest time until the next step; for the first one, from the start of the process.
        zygote: Socket of a running zygote, which saves start-up time; None: every gang starts its own.
    """

    python: str
    words: tuple[str, ...]
    folder: Path
    timeout_s: float
    zygote: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Properties of a script and its machine, known before the first step.

    Attributes:
        device: "cpu" or "cuda".
        device_name: Model name of the device.
        gpus: Number of visible GPUs; 0 on a CPU.
        memory_bytes: GPU memory that this process may use; None on a CPU.
        cpus: Number of processors it may use.
        threads: PyTorch's intra-op threads per rank.
        torch: PyTorch's version.
        python: Python's version.
        samples: Samples in the dataset.
        global_batch: Global batch that the script sets.
        local_batch: Samples per rank of the first step measured.
        loader_workers: Number of loader workers when the script begins.
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
    """Start the launcher with ``size`` ranks; it ends them all when this process ends, for whatever reason."""
    zygote = ["--zygote", script.zygote] if script.zygote else []
    command = [
        sys.executable, "-m", "brim.train.launch", "--nproc", str(size), "--control", str(script.folder / name),
        "--grace", str(GRACE_S), *zygote, "--command", script.python, *words,
    ]  # fmt: skip
    with (script.folder / f"{name}.err").open("wb") as errors:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            process_group=0,  # Ctrl-C reaches this process only; a gang that it then ends has not failed
            preexec_fn=end_with_parent,  # noqa: PLW1509  (a single system call, which must be made in the child)
        )  # fmt: skip


def stderr_of(script: Script, name: str) -> str:
    """Return what a gang wrote to stderr, without the launcher's line that names the control socket."""
    text = (script.folder / f"{name}.err").read_bytes()[-SAID_BYTES_MAX:].decode(errors="replace")
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("brim: control "))


class Gang:
    """The script running on ``size`` ranks.

    Args:
        script: The script.
        size: Number of ranks.
        local_batch: Samples per rank of the first step; 0: derived from the script's own batch.
        drain: Numbers of loader workers whose supply is measured before the first step.
        shares: Global batch of which micro-batches are shares as in training, 0 for the script's own; None: each step
            of a rank is one micro-batch.

    Attributes:
        header: Properties of the script and its machine.
        supply: The measured supply, one record for each number in ``drain``.

    Raises:
        TooLargeError: it ran out of memory before the first step.
        ScriptError: the script failed.
        UserError: the script ended, or made no step in time.
    """

    def __init__(
        self, script: Script, size: int, local_batch: int, drain: Sequence[int] = (), shares: int | None = None
    ) -> None:
        self._script, self._size, self._name = script, size, f"gang-{next(_number)}"
        self._record = script.folder / f"{self._name}.jsonl"
        self._file: TextIO | None = None
        self._half = ""
        self._steps = 0
        counts = ",".join(map(str, drain)) or NOT_GIVEN
        rank = ["-m", "brim.train.tools.profile.rank", str(self._record), str(local_batch), counts,
                NOT_GIVEN if shares is None else str(shares)]  # fmt: skip
        self._process = launch(script, size, [*rank, *script.words], self._name)
        try:
            self.header = Header(**self._next("header")["header"])
            self.supply = [self._next("supply") for _ in drain]
        except BaseException:
            self.end()
            raise
        self._local_batch = self.header.local_batch

    def steps(self, local_batch: int, number: int) -> list[dict[str, Any]]:
        """Return the measurements of the next ``number`` steps at this local batch.

        Raises:
            TooLargeError: the batch does not fit in memory.
            ScriptError: the script failed.
            UserError: the script ended, or made no step in time.
        """
        if local_batch != self._local_batch:
            with contextlib.suppress(OSError):  # the gang has ended; _next raises the reason
                send_request(str(self._script.folder / self._name), TuneSettings(global_batch=local_batch * self._size))
            self._local_batch = local_batch
        found: list[dict[str, Any]] = []
        while len(found) < number:
            step = self._next("step_s")
            self._steps += 1
            if step["local_batch"] == local_batch:
                found.append(step)
        return found

    def end(self) -> None:
        """End all its processes and wait until they are gone."""
        terminate_launcher(self._process, 2 * GRACE_S)
        if self._file is not None:
            self._file.close()

    def _next(self, what: str) -> dict[str, Any]:
        """Wait for the next record that has this key and return it."""
        until_s = time.monotonic() + self._script.timeout_s
        while True:
            over = self._process.poll() is not None  # checked before reading, so that no line is missed
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
                    f"{script} made no step of brim.train in {timeout_s:g} s{self._after()}: it needs a loop over "
                    "run.steps(loader), or a longer --timeout"
                )
            time.sleep(POLL_S)

    def _after(self) -> str:
        return f" after {counted(self._steps, 'step')}" if self._steps else ""

    def _line(self) -> dict[str, Any] | None:
        """Return the next complete line of the record, or None."""
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
            raise ScriptError(stderr_of(self._script, self._name), code if code > 0 else 128 - code)
        if self._record.exists():
            raise UserError(
                f"{script} ended after {counted(self._steps, 'step')}: only run.epochs(n, steps=N)"
                " may end training (a profile overrides it), not break or exit"
            )
        raise UserError(
            f"{script} ended without a step of brim.train: it needs a loop over run.steps(loader), as in "
            "docs/how-to-train-elastically.md"
        )


@dataclass(slots=True)
class StepMeasures:
    """Other measurements at one local batch.

    Attributes:
        waits_s: Seconds of each step spent waiting for the loader.
        memory_bytes: Peak memory.
        power_w: Last power measured; None if not available.
    """

    waits_s: list[float] = field(default_factory=list)
    memory_bytes: int = 0
    power_w: float | None = None

    def add(self, step: dict[str, Any]) -> None:
        """Add the measurements of one step."""
        self.waits_s.append(step["loader_wait_s"])
        self.memory_bytes = max(self.memory_bytes, step["memory_bytes"])
        self.power_w = step["power_w"] if step["power_w"] is not None else self.power_w


class ScriptSteps:
    """Step times of a script on ``size`` ranks; implements ``Steps`` of the analyser.

    Times do not include waiting for the loader. For the arguments see ``Gang``.

    Attributes:
        header: Properties of the script and its machine.
        supply: Samples per second that the loader supplies, by number of workers.
        seen: Other measurements, by local batch.

    Raises:
        ScriptError: the script failed.
        UserError: the script ended, made no step in time, or ran out of memory before its first step.
    """

    def __init__(
        self, script: Script, size: int, local_batch: int = 0, drain: Sequence[int] = (), shares: int | None = None
    ) -> None:
        self._script, self._size, self._shares = script, size, shares
        try:
            self._gang: Gang | None = Gang(script, size, local_batch, drain, shares)
        except TooLargeError:
            raise UserError(f"{script.words[0]} ran out of memory before its first step") from None
        self.header = self._gang.header
        self.supply: dict[int, float] = {line["workers"]: line["supply"] for line in self._gang.supply}
        self.seen: dict[int, StepMeasures] = {}

    def step_s(self, local_batch: int, steps: int) -> Sequence[float] | None:
        """Return the seconds of each of ``steps`` steps; None if the batch does not fit in memory.

        Raises:
            ScriptError: the script failed.
            UserError: the script ended, or made no step in time.
        """
        try:
            if self._gang is None:
                self._gang = Gang(self._script, self._size, local_batch, shares=self._shares)
            found = self._gang.steps(local_batch, steps)
        except TooLargeError:
            self.end()
            return None
        for step in found:
            self.seen.setdefault(local_batch, StepMeasures()).add(step)
        return [step["step_s"] for step in found]

    def end(self) -> None:
        """End the gang, if one is running."""
        if self._gang is not None:
            self._gang.end()
            self._gang = None

    def __enter__(self) -> ScriptSteps:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class BoxExchange:
    """All-reduce times on this machine; implements ``Exchange`` of the analyser.

    All sizes for a number of ranks are measured in one gang, when the first of them is requested.

    Args:
        script: Its interpreter and folder are used.
        device: "cpu" or "cuda".
        sizes: All sizes that may be requested, in bytes.
        repetitions: All-reduces per size, of which the first is a warm-up.
    """

    def __init__(self, script: Script, device: str, sizes: Sequence[int], repetitions: int) -> None:
        self._script, self._device, self._sizes, self._repetitions = script, device, tuple(sizes), repetitions
        self._found: dict[int, dict[str, float]] = {}

    def all_reduce_s(self, num_bytes: int, gpus: int, nodes: int) -> float:
        """Return the seconds of one all-reduce of ``num_bytes`` on ``gpus`` ranks.

        Raises:
            BrimError: ``nodes`` is not 1, or the ranks failed or took too long.
        """
        if nodes != 1:
            raise BrimError(f"cannot measure an all-reduce on {nodes} nodes: this is one machine")
        if gpus not in self._found:
            self._found[gpus] = self._measure(gpus)
        return self._found[gpus][str(num_bytes)]

    def _measure(self, gpus: int) -> dict[str, float]:
        name = f"exchange-{next(_number)}"
        out = self._script.folder / f"{name}.json"
        sizes = ",".join(map(str, self._sizes))
        words = ["-m", "brim.train.tools.profile.exchange", str(out), self._device, str(self._repetitions), sizes]
        process = launch(self._script, gpus, words, name)
        try:
            code = process.wait(self._script.timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            terminate_launcher(process, 2 * GRACE_S)
        if code != 0:
            how = f"took over {self._script.timeout_s:g} s" if code is None else f"ended with code {code}"
            last = (stderr_of(self._script, name).strip().splitlines() or ["nothing on stderr"])[-1]
            raise BrimError(f"all-reduce on {gpus} ranks {how}: {last}")
        found: dict[str, float] = json.loads(out.read_text(encoding="utf-8"))
        return found


def largest_that_fits(seen: dict[int, int], memory_bytes: int) -> int:
    """Extrapolate the largest local batch that fits in memory.

    Args:
        seen: Peak memory in bytes by local batch, at least two; a line through the smallest and largest batch is used.
        memory_bytes: Memory of the device.

    Returns:
        Samples per rank; 0 if larger batches took no more memory, so that nothing can be extrapolated.
    """
    (one, one_bytes), *_, (other, other_bytes) = sorted(seen.items())
    per_sample = (other_bytes - one_bytes) / (other - one)
    if per_sample <= 0:
        return 0
    return other + math.floor((memory_bytes - other_bytes) / per_sample)


def interpreter(word: str) -> str:
    """Return the interpreter of a command: the given path or, for a bare name such as ``python``, the current one."""
    return word if os.path.dirname(word) else sys.executable
