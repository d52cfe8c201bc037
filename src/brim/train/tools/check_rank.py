"""Runs an unmodified script for `brim.train.check`: records its state after every step, and stops it after one.

    python -m brim.train.tools.check_rank FOLDER NAME STOP UNDONE CHECKPOINTS script.py its arguments

The run stops after STOP steps. It undoes step UNDONE once and repeats it, as when a rank dies; 0 stands for no step.

Rank 0 writes a record to ``FOLDER/NAME.jsonl``: its settings, then one line per step with the checksums of all
tensors. The first exception that ends a rank goes to ``FOLDER/NAME.failed``.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from brim.train.instrument import Instrument, attach
from brim.train.run import Run
from brim.train.state import State, hashes

NO_CHECKPOINTS: Final = "-"
"""Stands for no folder of checkpoints: the run starts from the beginning and saves nothing."""


class Recorder(Instrument):
    """Records the state between steps, and stops the run after ``stop`` steps.

    Args:
        record: File to append to.
        stop: Number of steps.
        undone: Step, counted from 1, that is undone once and repeated.
        checkpoints: Folder that the run uses in place of the script's own; None: it saves nothing.
    """

    def __init__(self, record: Path, stop: int, undone: int, checkpoints: str | None) -> None:
        self._record, self._stop, self._undone, self._checkpoints = record, stop, undone, checkpoints
        self._recorded: int | None = None

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Leave the script's own checkpoints alone."""
        return options | {"checkpoint": self._checkpoints}

    def between_steps(self, run: Run, state: State) -> bool:
        """Record each step once; end after the last one."""
        if run.rank == 0 and self._recorded != run.steps_done:
            self._append(run, state)
        return run.steps_done >= self._stop

    def undoes(self, step: int) -> bool:
        """Undo this one step."""
        return step == self._undone

    def _append(self, run: Run, state: State) -> None:
        with self._record.open("a", encoding="utf-8") as file:
            if self._recorded is None:
                gpus = torch.cuda.device_count() if run.device.type == "cuda" else 0
                file.write(json.dumps({"settings": run.settings(), "gpus": gpus}) + "\n")
            file.write(json.dumps({"step": run.steps_done, "sums": _sums(state)}) + "\n")
        self._recorded = run.steps_done


def _sums(state: State) -> dict[str, str]:
    """Return checksums: models first, then optimizers, then all other carried state."""
    found = state.hashes()
    for name, part in state.parts.items():
        found |= {f"{name}.{which}".rstrip("."): each for which, each in hashes(part.state_dict()).items()}
    return found


def main(words: Sequence[str]) -> None:
    """Run the script."""
    folder, name, stop, undone, checkpoints, script = words[:6]
    used = None if checkpoints == NO_CHECKPOINTS else checkpoints
    attach(Recorder(Path(folder, f"{name}.jsonl"), int(stop), int(undone), used))
    sys.argv = [script, *words[6:]]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            _write_failure(Path(folder, f"{name}.failed"), error, script)
        raise


def _write_failure(path: Path, error: BaseException, script: str) -> None:
    """Write the exception as one line, with the line number of the script that it came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
    where = f" (line {frames[-1].lineno})" if frames else ""
    with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
        file.write(_first_line(error) + where)


def _first_line(error: BaseException) -> str:
    """Return type and message; for a syntax error also its file and line, which Python prints before them."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[0]


if __name__ == "__main__":
    main(sys.argv[1:])
