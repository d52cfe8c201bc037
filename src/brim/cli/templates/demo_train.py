"""A job of `brim demo`: classify scanned digits with convolutions, on any number of processes.

    python demo_train.py --steps 300 --checkpoint FOLDER

The data: 1,797 digits of 43 people, 8 x 8 pixels (E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits,
UCI Machine Learning Repository, CC BY 4.0), as rows of 64 pixels from 0 to 16 and the digit.
"""

import argparse
import gzip
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import brim.train as bt

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=300, help="number of optimizer steps")
parser.add_argument("--checkpoint", metavar="FOLDER", help="save to this folder when stopped, and resume from it")
parser.add_argument("--sample-ms", type=float, default=0.0, help="least time for a sample: a larger model's stand-in")
options = parser.parse_args()

data = gzip.decompress(Path(__file__).with_name("digits.gz").read_bytes())
rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, 65)
images, labels = rows[:, :64].view(-1, 1, 8, 8) / 16, rows[:, 64].long()
training, held_out = slice(0, 1437), slice(1437, None)  # the last fifth, written by other people

run = bt.start(logical_workers=4, seed=0, checkpoint=options.checkpoint)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
loader = run.loader(TensorDataset(images[training], labels[training]), global_batch=64, workers=0)

for _ in run.epochs(1_000, steps=options.steps):
    began_s = time.monotonic()
    for x, y in run.steps(loader):
        run.backward(cross_entropy(model(x), y))
        time.sleep(max(0.0, len(x) * options.sample_ms / 1000 - (time.monotonic() - began_s)))
        run.step()
        began_s = time.monotonic()
    with torch.no_grad():
        right = (model(images[held_out]).argmax(1) == labels[held_out]).float().mean().item()
    if run.rank == 0:
        print(f"step {run.steps_done:4}  loss {run.loss:.4f}  accuracy on digits not seen {right:.3f}", flush=True)

if run.rank == 0:
    print(f"{run.steps_done} steps, sha256 {run.digest()}")
