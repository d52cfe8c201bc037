"""How well the curve of ``beliefs/convergence.py`` says how real training runs end: those of AlgoPerf's competition.

    python benchmarks/loss_curves.py DATA [--loss train_loss|validation_loss]

DATA is a folder with ``curves/algoperf``. A run counts if it has eight losses. Seen are the losses of its first part;
predicted is the final loss. The error is over the drop since 5 % of the run: most of the drop before says
nothing. A run whose loss does not fall after 5 % is wrong for everybody, and so is one in whose first part fewer than
four losses lie. "Left" is the part of runs in which the samples left until the loss of the end are right within a
factor of two. Families are two halves: constants were chosen on the first.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from brim.beliefs.convergence import CannotSay, convergence
from brim.core.arrays import FloatArray

PARTS: Final = (0.1, 0.25, 0.5)
SINCE: Final = 0.05
LOSSES_MIN, SEEN_MIN = 8, 4
GOOD: Final = 0.1
FIRST: Final = ("criteo1tb", "fastmri", "wmt")
"""Families of workloads on which constants were chosen; imagenet and librispeech are the others."""


class Run(NamedTuple):
    """Losses of a run, in the order of its steps."""

    number: int
    family: str
    step: FloatArray
    loss: FloatArray


def runs_of(folder: Path, column: str) -> list[Run]:
    """The runs that count."""
    names = dict(pl.read_parquet(folder / "runs.parquet").select("run_id", "workload").rows())
    found = []
    evals = pl.read_parquet(folder / "evals.parquet").sort("run_id", "global_step")
    for (run,), rows in evals.group_by("run_id", maintain_order=True):
        step, loss = (rows[name].cast(pl.Float64).to_numpy() for name in ("global_step", column))
        known = np.isfinite(step) & np.isfinite(loss)
        known[1:] &= np.diff(step) > 0
        if known.sum() >= LOSSES_MIN:
            found.append(Run(run, names[run].split("_")[0], step[known], loss[known]))
    return found


def errors(run: Run, part: float) -> tuple[float, float, bool]:
    """Error of the curve and of the last loss seen, relative to the drop, and whether the steps left are right."""
    end, seen = run.loss[-1], int(np.searchsorted(run.step, part * run.step[-1], side="right"))
    drop = run.loss[np.searchsorted(run.step, SINCE * run.step[-1])] - end
    if seen < SEEN_MIN or drop <= 0:
        return np.inf, np.inf, False
    newest, now = run.loss[seen - 1], run.step[seen - 1]
    curve = convergence(run.step[:seen], run.loss[:seen])
    if isinstance(curve, CannotSay):
        return abs(newest - end) / drop, abs(newest - end) / drop, False
    left = run.step[seen + int(np.argmax(run.loss[seen:] <= end))] - now
    is_open = bool(run.loss[:seen].min() > end)
    found = curve.samples_left(end).value
    return (abs(curve.loss_at(run.step[-1]).value - end) / drop, abs(newest - end) / drop,
            is_open and left / 2 <= found <= left * 2)


def main() -> None:
    """Print a line for each part and half of the families."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--loss", default="train_loss", choices=("train_loss", "validation_loss"))
    options = parser.parse_args()
    runs = runs_of(options.data / "curves" / "algoperf", options.loss)
    print(f"{'families':>8} {'seen':>5} {'runs':>5}   curve: median, good   newest: median, good   left")
    for half, chosen in (("first", True), ("second", False)):
        some = [run for run in runs if (run.family in FIRST) is chosen]
        for part in PARTS:
            found = [errors(run, part) for run in some]
            curve, newest, left = (np.array(column) for column in zip(*found, strict=True))
            print(f"{half:>8} {part:>5.0%} {len(some):>5}   {np.median(curve):>13.3f} {np.mean(curve <= GOOD):>5.0%}"
                  f"   {np.median(newest):>14.3f} {np.mean(newest <= GOOD):>5.0%}   {np.mean(left):>4.0%}")


if __name__ == "__main__":
    main()
