"""A training job whose losses come from a named curve, and whose steps take given times on a device and on CPU.

    python benchmarks/timed_curves.py CURVE SEED STEPS PLANNED GPU_S CPU_S

It trains a model of five parameters with ``brim.train``, so that it is stopped, saved and started as real jobs are;
what it reports as its loss is that of the curve. Its user has planned more steps (PLANNED) than it needs (STEPS): it
ends by itself, as one that has reached its target.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np

NOISE: Final = 0.003
"""Standard deviation of a loss around its curve, relative to it: that of a mean over ten batches with 1 % each."""


def falling(steps: int, planned: int, draw: np.random.Generator, noise: float = NOISE) -> np.ndarray:
    """A curve of the form of the papers, with noise: it has fallen by nine tenths at the end."""
    floor, k = draw.uniform(0.1, 0.4), np.arange(1, planned + 1)
    clean = 1.0 / (9.0 * k / steps + 1.0) + floor
    return clean * (1.0 + noise * draw.standard_normal(planned))


def noisy(steps: int, planned: int, draw: np.random.Generator) -> np.ndarray:
    """The same with the noise of single batches, 1 %."""
    return falling(steps, planned, draw, noise=0.01)


def steps_down(steps: int, planned: int, draw: np.random.Generator) -> np.ndarray:
    """Plateaus, with three drops at places that nothing announces."""
    places = np.sort(draw.uniform(0.05, 1.1, 3)) * steps
    levels = np.concatenate(([1.0], draw.uniform(0.3, 0.7, 3).cumprod()))
    at = np.searchsorted(places, np.arange(1, planned + 1))
    return levels[at] * (1.0 + NOISE * draw.standard_normal(planned))


def random_walk(steps: int, planned: int, draw: np.random.Generator) -> np.ndarray:
    """A random walk of the logarithm, with a standard deviation of one over the run."""
    return np.exp(np.cumsum(draw.standard_normal(planned)) / np.sqrt(steps))


def diverging(steps: int, planned: int, draw: np.random.Generator) -> np.ndarray:
    """It falls for a seventh of the run, and rises from then on."""
    k = np.arange(1, planned + 1) / steps
    clean = np.where(k < 1 / 7, 1.0 - 4.0 * k, 3.0 / 7.0 + 2.0 * (k - 1 / 7))
    return clean * (1.0 + 3 * NOISE * draw.standard_normal(planned))


def white_noise(steps: int, planned: int, draw: np.random.Generator) -> np.ndarray:
    """It does not learn."""
    return 1.0 + 0.2 * draw.standard_normal(planned)


def waves(steps: int, planned: int, draw: np.random.Generator) -> np.ndarray:
    """A learning rate that goes up and down: a loss that comes back, five times in the run."""
    k = np.arange(1, planned + 1) / steps
    phase = draw.uniform(0.0, 2 * np.pi)
    return (1.0 + 0.6 * np.sin(10 * np.pi * k + phase)) * (1.0 + NOISE * draw.standard_normal(planned))


def rising(steps: int, planned: int, draw: np.random.Generator) -> np.ndarray:
    """It diverges from the first step on: three times the loss at the end."""
    k = np.arange(1, planned + 1) / steps
    return (1.0 + 2.0 * k) * (1.0 + 0.1 * draw.standard_normal(planned))


def late_drop(steps: int, planned: int, draw: np.random.Generator) -> np.ndarray:
    """Nothing for most of the run, then all of it."""
    place = draw.uniform(0.7, 0.95) * steps
    clean = np.where(np.arange(1, planned + 1) < place, 1.0, 0.2)
    return clean * (1.0 + NOISE * draw.standard_normal(planned))


CURVES: Final[dict[str, Callable[[int, int, np.random.Generator], np.ndarray]]] = {
    one.__name__: one
    for one in (falling, noisy, white_noise, late_drop, rising, waves, random_walk, steps_down, diverging)
}
PREDICTABLE: Final = ("falling", "noisy")
UNPREDICTABLE: Final = ("white_noise", "late_drop", "rising")
"""Of the other ones, those that nobody can take for one that falls along a curve at any time before its end. The rest
look like one for a part of the run: after the last drop, on the way down of a wave, before it diverges."""


def losses(curve: str, seed: int, steps: int, planned: int) -> np.ndarray:
    """The loss after each step (planned,)."""
    return CURVES[curve](steps, planned, np.random.default_rng(seed))


def main() -> None:
    """Train until the end of the curve."""
    import torch

    import brim.train as bt

    curve, (seed, steps, planned) = sys.argv[1], map(int, sys.argv[2:5])
    step_s = float(sys.argv[6 if os.environ.get("BRIM_DEVICE") == "cpu" else 5])
    torch.set_num_threads(1)
    told = losses(curve, seed, steps, planned)
    run = bt.start(logical_workers=1, seed=1, checkpoint=os.environ["BRIM_CKPT_DIR"])
    model = torch.nn.Linear(4, 1)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    rows = [(torch.full((4,), n / 64), torch.ones(1)) for n in range(64)]
    loader = run.loader(rows, 16, workers=0)
    for _ in run.epochs(1_000_000, steps=planned):
        for x, y in run.steps(loader):
            time.sleep(step_s)
            run.backward(((model(x) - y) ** 2).mean())
            run.step()
            run.report(loss=float(told[run.steps_done - 1]))
            if run.steps_done >= steps:
                break
        if run.steps_done >= steps:
            break
    run.finish()
    print(f"{run.samples} samples, sha256 {run.digest()}")


if __name__ == "__main__":
    main()
