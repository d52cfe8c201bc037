"""What an agent runs before the first start of an elastic job: the job scalability analyser, on one device.

    python -m brim.cli.analysis FOLDER

FOLDER is that of the attempt: its ``launch.json`` says what to measure, and ``analysis.json`` is written there. The
script runs as under ``brim profile``, its learning rates zero, its checkpoints neither read nor written, but with the
micro-batches with which it trains: what is measured is what a policy will see.

Source:
    See ``beliefs.analyser``, which chooses the batches. That a live job waits for it at most a minute is ours.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from brim.agent import attempt_files
from brim.agent.attempt_files import AnalysisFile, LaunchFile
from brim.beliefs.analyser import Analysis, Steps, analyse
from brim.errors import BrimError, ConfigError
from brim.gang.fork_safety import parse_command
from brim.gang.processes import ended_by_signals
from brim.train.tools.profile.gang import Script, ScriptSteps

ANALYSIS_S: Final = 60
"""Longest time of an analysis. What was measured by then is used. Ours: a start of a large script takes half of it."""
MARK: Final = b"brim.train"
"""A script that does not name it is not run: it may not be one that can be measured, and would do its work twice."""


class _UntilTime:
    """Times steps until a signal says that the time is over; from then on, no batch is measured any more."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._is_over = False

    def step_s(self, local_batch: int, steps: int) -> Sequence[float] | None:
        """See ``Steps``."""
        if not self._is_over:
            try:
                return self._steps.step_s(local_batch, steps)
            except TimeoutError:
                self._is_over = True
        return None


def measure(launch: LaunchFile) -> Analysis:
    """Time the steps of a script at local batches from its share on the most ranks to the whole of its batch.

    Raises:
        BrimError: the script cannot be measured.
        TimeoutError: it made no step in time.
    """
    python = shutil.which(launch.command[0]) or launch.command[0]
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="brim-analysis-") as folder:
        what = Script(
            python=python, words=script_of(launch), folder=Path(folder), timeout_s=ANALYSIS_S, zygote=launch.zygote
        )
        with ScriptSteps(what, 1, shares=max(launch.batch, 0)) as steps:
            batch = min(launch.batch if launch.batch > 0 else steps.header.global_batch, steps.header.samples)
            low = max(1, -(-batch // launch.analyse))
            return analyse(
                _UntilTime(steps), batch_min=low, gpus_max=1, local_batch_max=batch, local_batch_min=low
            )


def script_of(launch: LaunchFile) -> tuple[str, ...]:
    """Return the script and its arguments.

    Raises:
        ConfigError: the command is no Python script, or one without a word of ``MARK``.
    """
    found = parse_command(launch.command[1:], launch.cwd)
    if isinstance(found, str) or found.kind != "script":
        raise ConfigError(f"only `python SCRIPT` can be measured, found `{' '.join(launch.command[:3])}`")
    try:
        text = Path(launch.cwd, found.target).read_bytes()
    except OSError as error:
        raise ConfigError(f"{found.target}: {error.strerror}") from None
    if MARK not in text:
        raise ConfigError(f"{found.target} does not name {MARK.decode()}, so it is not run to be measured")
    return found.target, *found.args


def _time_is_over(number: int, frame: object) -> None:
    del number, frame
    raise TimeoutError(f"no step was measured within {ANALYSIS_S} s")


def main(words: Sequence[str]) -> None:
    """Measure the job of the attempt in this folder."""
    folder = Path(words[0])
    launch = attempt_files.read_fields(folder, attempt_files.LAUNCH, LaunchFile)
    if launch is None:
        sys.exit(f"{folder}: found no {attempt_files.LAUNCH}")
    signal.signal(signal.SIGALRM, _time_is_over)
    signal.alarm(ANALYSIS_S)
    try:
        found = measure(launch)
    except (BrimError, TimeoutError) as error:
        sys.exit(str(error))
    steps = tuple(
        number for one in found.samples for number in (one.local_batch, max(1, round(one.step_s * 1_000_000)))
    )  # fmt: skip
    attempt_files.write_whole(folder, attempt_files.ANALYSIS, asdict(AnalysisFile(steps=steps)))


if __name__ == "__main__":
    main(sys.argv[1:])
