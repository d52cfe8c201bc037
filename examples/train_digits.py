"""Classify scanned digits (8x8 pixels, from `pip install scikit-learn`) with convolutions and batch-norm.

Alone:         python examples/train_digits.py --steps 60
On two ranks:  python -m brim.train.launch --nproc 2 examples/train_digits.py --steps 60

Both print the same SHA-256. Lines marked "brim" differ from a plain loop.
"""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import brim.train as bt

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=300, help="total number of optimizer steps (default 300)")
parser.add_argument("--checkpoint", metavar="FOLDER", default=os.environ.get("BRIM_CKPT_DIR"),
                    help="save to this folder, and resume from it; by default, the job's own under `brim up`")
options = parser.parse_args()


def network() -> nn.Module:
    """Two convolutions and a linear layer: 5,226 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.1), nn.Linear(32, 10),
    )


digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
labels = torch.tensor(digits.target)
training, held_out = slice(0, 1437), slice(1437, None)  # the last fifth, written by other people

run = bt.start(logical_workers=4, seed=0, checkpoint=options.checkpoint)  # brim: first, so that weights are seeded
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer = run.prepare(model, optimizer)  # brim
loader = run.loader(TensorDataset(images[training], labels[training]), global_batch=64, workers=0)  # brim: DataLoader

for _ in run.epochs(100, steps=options.steps):  # brim: for _ in range(100)
    model.train()
    for x, y in run.steps(loader):  # brim: for x, y in loader
        loss = cross_entropy(model(x), y)
        run.backward(loss)  # brim: loss.backward()
        run.step()  # brim: optimizer.step(); optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        found = model(images[held_out].to(run.device)).argmax(1).cpu()
    accuracy = (found == labels[held_out]).float().mean().item()
    run.report(accuracy=accuracy)
    if run.rank == 0:
        print(f"step {run.steps_done:4}  loss {run.loss:.4f}  accuracy on digits not seen {accuracy:.3f}")

if run.rank == 0:
    print(f"{run.steps_done} steps, sha256 {run.digest()}")
