"""A real training job of a few seconds: a scikit-learn network learns the bundled digits images.

``python -m brim.live.digits --epochs 20 --hidden 64 --seed 1``

It knows what any preemptible job knows: on SIGTERM it finishes its epoch, writes its checkpoint to ``$BRIM_CKPT_DIR``
and exits with 75; started again it goes on from there, and ends with the same parameters as if nobody had stopped it.
To ``$BRIM_REPORT_FD``, where given, it writes ``epochs done/epochs``.

The images are few and an epoch of real work takes about 10 ms. So that a handful of these jobs behaves like long
training on a small machine, an epoch is stretched with idle time to at least ``--epoch-ms``: the learning, stopping and
resuming are real, the length is set.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

EX_TEMPFAIL = 75
"""Exit code for "resume me" (sysexits.h)."""


def main() -> int:
    """Train to the last epoch, or to the first epoch boundary after SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m brim.live.digits", description="Train on the digits images.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=64, help="units of the hidden layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epoch-ms", type=int, default=200, help="least wall time of an epoch")
    options = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    images = images / 16.0
    held_out = np.arange(len(images)) % 5 == 0
    train_x, train_y = images[~held_out], labels[~held_out]

    checkpoint = Path(os.environ.get("BRIM_CKPT_DIR", ".")) / "digits.pickle"
    model, first_epoch = _resume(checkpoint)
    if model is None:
        model = MLPClassifier((options.hidden,), random_state=options.seed, shuffle=False)

    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    _report(first_epoch, options.epochs)
    for epoch in range(first_epoch, options.epochs):
        began_s = time.monotonic()
        order = np.random.default_rng([options.seed, epoch]).permutation(len(train_x))
        model.partial_fit(train_x[order], train_y[order], classes=np.arange(10))
        time.sleep(max(0.0, options.epoch_ms / 1000 - (time.monotonic() - began_s)))
        _report(epoch + 1, options.epochs)
        if stopped and epoch + 1 < options.epochs:
            _save(checkpoint, model, epoch + 1)
            _say(f"stopped after epoch {epoch + 1} of {options.epochs}")
            return EX_TEMPFAIL

    accuracy = model.score(images[held_out], labels[held_out])
    _say(f"accuracy {accuracy:.4f} parameters {_fingerprint(model)}")
    return 0


def _resume(checkpoint: Path) -> tuple[Any, int]:
    """Return the model and the epochs done; (None, 0) without a checkpoint."""
    if not checkpoint.exists():
        return None, 0
    model, epochs_done = pickle.loads(checkpoint.read_bytes())
    return model, epochs_done


def _save(checkpoint: Path, model: object, epochs_done: int) -> None:
    """Write the checkpoint whole or not at all: optimizer state included, old one kept until the new one is there."""
    partial = checkpoint.with_suffix(".partial")
    with partial.open("wb") as file:
        pickle.dump((model, epochs_done), file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(checkpoint)


def _fingerprint(model: MLPClassifier) -> str:
    digest = hashlib.sha256()
    for array in (*model.coefs_, *model.intercepts_):
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _report(done: int, total: int) -> None:
    descriptor = os.environ.get("BRIM_REPORT_FD")
    if descriptor:
        os.write(int(descriptor), f"{done}/{total}\n".encode())


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
