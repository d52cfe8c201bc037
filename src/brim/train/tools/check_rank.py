"""Runs an unmodified script for `brim.train.check`: records its state after every step, and stops it after one.

    python -m brim.train.tools.check_rank FOLDER NAME STOP UNDONE CHECKPOINTS script.py its arguments

The run stops after STOP steps. It undoes step UNDONE once and repeats it, as when a rank dies; 0 stands for no step.

Rank 0 writes a record to ``FOLDER/NAME.jsonl``: a certificate, then one line per step with the checksums of all
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

from brim.train import run as session
from brim.train.membership.process_group import BrokenGroupError
from brim.train.state import hashes

NO_CHECKPOINTS: Final = "-"
"""Stands for no folder of checkpoints: the run starts from the beginning and saves nothing."""


def watched(record: Path, stop: int, undone: int, checkpoints: str | None) -> type[session.Run]:
    """Return a `Run` that records its state between steps, stops after ``stop`` steps, and saves to ``checkpoints``.

    It undoes step ``undone``, counted from 1, at the end of the first attempt.
    """

    class Watched(session.Run):
        """A `Run` that records its state; it does not touch the script's own checkpoints."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options | {"checkpoint": checkpoints})
            self._recorded: int | None = None
            self._was_undone = False

        def _boundary(self) -> None:
            super()._boundary()
            if self.rank == 0:
                self._record()
            if self._step >= stop:
                self._stop()

        def _is_undone(self) -> bool:
            return self._step + 1 == undone and not self._was_undone

        def _can_be_undone(self) -> bool:
            return super()._can_be_undone() or self._is_undone()

        def _finish_step(self) -> bool:
            if not self._is_undone():
                return super()._finish_step()
            self._was_undone = True
            self._drop_step(BrokenGroupError("brim.train.check undoes this step"))
            return False

        def _stop(self) -> None:
            """End like a job that is done."""
            self.finish()
            self.close()
            raise SystemExit(0)

        def _record(self) -> None:
            if self._recorded == self._step:
                return
            with record.open("a", encoding="utf-8") as file:
                if self._recorded is None:
                    gpus = torch.cuda.device_count() if self.device.type == "cuda" else 0
                    file.write(json.dumps({"certificate": self.certificate(), "gpus": gpus}) + "\n")
                file.write(json.dumps({"step": self._step, "sums": self._sums()}) + "\n")
            self._recorded = self._step

        def _sums(self) -> dict[str, str]:
            """Return checksums: models first, then optimizers, then all other carried state."""
            found = self.hashes()
            for name, part in self._state.parts.items():
                found |= {f"{name}.{which}".rstrip("."): each for which, each in hashes(part.state_dict()).items()}
            return found

    return Watched


def main(words: Sequence[str]) -> None:
    """Run the script."""
    folder, name, stop, undone, checkpoints, script = words[:6]
    kept = None if checkpoints == NO_CHECKPOINTS else checkpoints
    session.Run = watched(Path(folder, f"{name}.jsonl"), int(stop), int(undone), kept)  # type: ignore[misc]
    sys.argv = [script, *words[6:]]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            _tell(Path(folder, f"{name}.failed"), error, script)
        raise


def _tell(path: Path, error: BaseException, script: str) -> None:
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
