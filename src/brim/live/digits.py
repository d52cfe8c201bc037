"""A real training job of a few seconds: a small network, written in NumPy, learns digits drawn by this module.

``python -m brim.live.digits --epochs 20 --hidden 64 --seed 1``

It behaves like any preemptible job: on SIGTERM it finishes its epoch, writes its checkpoint to ``$BRIM_CKPT_DIR`` and
exits with 75. Started again, it resumes from the checkpoint and ends with the same parameters as an uninterrupted run.
It writes ``epochs done/epochs`` to ``$BRIM_REPORT_FD``, if that is set.

An epoch of real work takes some 10 ms. Idle time stretches each epoch to at least ``--epoch-ms``, so that a few of
these jobs behave like long training on a small machine: learning, stopping and resuming are real, the length is set.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

EX_TEMPFAIL = 75
"""Exit code for "resume me" (sysexits.h)."""
GLYPHS: Final = (
    "01110 10001 10011 10101 11001 10001 01110", "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111", "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010", "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110", "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110", "01110 10001 10001 01111 00001 00010 01100",
)
"""Digits of 5 x 7 dots, drawn for this file."""
IMAGES: Final = 1_800
SIDE: Final = 9
NOISE: Final = 0.3
"""Standard deviation of the noise on each pixel: enough to make the task worth learning."""
BATCH: Final = 100
RATE: Final = 0.2
MOMENTUM: Final = 0.9

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


def drawn_digits() -> tuple[Floats, Ints]:
    """Images of digits (n, 81), each at a random position and with noise, and their labels (n,)."""
    random = np.random.default_rng(0)
    glyphs = np.array([[[int(dot) for dot in row] for row in glyph.split()] for glyph in GLYPHS], dtype=np.float64)
    labels = random.integers(len(glyphs), size=IMAGES)
    images = random.normal(0.0, NOISE, (IMAGES, SIDE, SIDE))
    down, right = random.integers(SIDE - 7 + 1, size=IMAGES), random.integers(SIDE - 5 + 1, size=IMAGES)
    for image, label, y, x in zip(images, labels, down, right, strict=True):
        image[y : y + 7, x : x + 5] += glyphs[label]
    return images.reshape(IMAGES, -1), labels


class Network:
    """Two layers, trained by gradient descent with momentum; ``arrays`` holds its whole state."""

    def __init__(self, hidden: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        pixels, digits = SIDE * SIDE, len(GLYPHS)
        weights = [
            random.normal(0.0, (2 / pixels) ** 0.5, (pixels, hidden)), np.zeros(hidden),
            random.normal(0.0, (1 / hidden) ** 0.5, (hidden, digits)), np.zeros(digits),
        ]
        self.arrays: list[Floats] = [*weights, *(np.zeros_like(array) for array in weights)]

    def forward(self, images: Floats) -> tuple[Floats, Floats]:
        """Activations of the hidden layer, and the probability of each digit."""
        weight_in, bias_in, weight_out, bias_out = self.arrays[:4]
        hidden = np.maximum(images @ weight_in + bias_in, 0.0)
        scores = hidden @ weight_out + bias_out
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)

    def step(self, images: Floats, labels: Ints) -> None:
        """Train one step on one batch."""
        hidden, error = self.forward(images)
        error[np.arange(len(labels)), labels] -= 1.0
        error /= len(labels)
        back = (error @ self.arrays[2].T) * (hidden > 0)
        gradients = images.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)
        for index, gradient in enumerate(gradients):
            self.arrays[4 + index] = MOMENTUM * self.arrays[4 + index] - RATE * gradient
            self.arrays[index] = self.arrays[index] + self.arrays[4 + index]

    def fingerprint(self) -> str:
        """A digest of the bits of the parameters."""
        digest = hashlib.sha256()
        for array in self.arrays[:4]:
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]


def main() -> int:
    """Train to the last epoch, or to the first epoch boundary after SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m brim.live.digits", description="Train on images of digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=64, help="units of the hidden layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epoch-ms", type=int, default=200, help="least wall time of an epoch")
    options = parser.parse_args()

    images, labels = drawn_digits()
    held_out = np.arange(len(images)) % 5 == 0
    train_x, train_y = images[~held_out], labels[~held_out]

    checkpoint = Path(os.environ.get("BRIM_CKPT_DIR", ".")) / "digits.npz"
    network = Network(options.hidden, options.seed)
    first_epoch = _resume(checkpoint, network)

    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    _report(first_epoch, options.epochs)
    for epoch in range(first_epoch, options.epochs):
        began_s = time.monotonic()
        order = np.random.default_rng([options.seed, epoch]).permutation(len(train_x))
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            network.step(train_x[rows], train_y[rows])
        time.sleep(max(0.0, options.epoch_ms / 1000 - (time.monotonic() - began_s)))
        _report(epoch + 1, options.epochs)
        if stopped and epoch + 1 < options.epochs:
            _save(checkpoint, network, epoch + 1)
            _say(f"stopped after epoch {epoch + 1} of {options.epochs}")
            return EX_TEMPFAIL

    right = network.forward(images[held_out])[1].argmax(axis=1) == labels[held_out]
    _say(f"accuracy {right.mean():.4f} parameters {network.fingerprint()}")
    return 0


def _resume(checkpoint: Path, network: Network) -> int:
    """Load the checkpoint, if there is one; returns the number of epochs done."""
    if not checkpoint.exists():
        return 0
    with np.load(checkpoint) as saved:
        network.arrays = [saved[f"array{index}"] for index in range(len(network.arrays))]
        return int(saved["epochs_done"])


def _save(checkpoint: Path, network: Network, epochs_done: int) -> None:
    """Write the checkpoint, with optimizer state, atomically: the old one is kept until the new one is complete."""
    partial = checkpoint.with_suffix(".partial")
    with partial.open("wb") as file:
        arrays = {f"array{index}": array for index, array in enumerate(network.arrays)}
        np.savez(file, epochs_done=np.int64(epochs_done), **arrays)  # type: ignore[arg-type]  # of its own keywords
        file.flush()
        os.fsync(file.fileno())
    partial.replace(checkpoint)


def _report(done: int, total: int) -> None:
    descriptor = os.environ.get("BRIM_REPORT_FD")
    if descriptor:
        os.write(int(descriptor), f"{done}/{total}\n".encode())


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
