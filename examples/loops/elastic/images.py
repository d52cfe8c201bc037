"""Images with a small residual network, meters and the best model kept: the loop of ../plain/images.py with brim.train.

The data are fake: noise around one pattern per class.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, Subset

import brim.train as bt

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=64, help="over all processes")
parser.add_argument("--rate", type=float, default=0.1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--weight-decay", type=float, default=1e-4)
parser.add_argument("--print-freq", type=int, default=5)
parser.add_argument("--samples", type=int, default=1280)
parser.add_argument("--out", type=Path, default=Path("out/images"))
options = parser.parse_args()

CLASSES = 20


class FakeImages(Dataset):
    """A pattern per class under noise, flipped at random; an image depends on its number, and on the flip."""

    def __init__(self, size, first=0, flip=False):
        self.size, self.first, self.flip = size, first, flip
        self.patterns = torch.randn(CLASSES, 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.first + index)
        label = int(torch.randint(CLASSES, (), generator=generator))
        image = self.patterns[label] + 2.0 * torch.randn(3, 16, 16, generator=generator)
        return image.flip(2) if self.flip and torch.rand(()) < 0.5 else image, label


class Block(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.first, self.second = nn.Conv2d(before, after, 3, 2, 1), nn.Conv2d(after, after, 3, 1, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.past = nn.Conv2d(before, after, 1, 2)

    def forward(self, x):
        h = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(h)) + self.past(x))


def network():
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(), Block(16, 32), Block(32, 32), *ends)


class Meter:
    """A mean."""

    def __init__(self, name):
        self.name, self.sum, self.count = name, 0, 0

    def update(self, total, count):
        self.sum += total
        self.count += count

    def all_reduce(self):
        self.sum, self.count = run.reduce(self.sum), run.reduce(self.count)

    def __str__(self):
        return f"{self.name} {self.sum / max(self.count, 1):7.3f}"


def right(output, target):
    """Numbers of right answers, the first and the first five: sums of whole numbers do not depend on their order."""
    found = output.topk(5).indices == target[:, None]
    return [int(found[:, :k].any(1).sum()) for k in (1, 5)]


def train(epoch):
    meters = Meter("loss"), Meter("top-1"), Meter("top-5")
    model.train()
    for x, y in run.steps(train_loader):
        if run.begins_step:  # again if the step is repeated
            number, seen = train_loader.step, []
        output = model(x)
        loss = cross_entropy(output, y)
        seen.append(((loss.item() * len(x), *right(output, y)), len(x)))
        run.backward(loss)
        if run.step():
            for values, count in seen:
                for meter, value in zip(meters, values, strict=True):
                    meter.update(value, count)
            if number % options.print_freq == 0 and run.rank == 0:
                print(f"epoch {epoch}  batch {number:3} ", *meters)


@torch.no_grad()
def validate():
    meters = Meter("loss"), Meter("top-1"), Meter("top-5")
    model.eval()
    shard = Subset(val_set, range(run.rank, len(val_set), run.world_size))
    for x, y in DataLoader(shard, options.batch_size // run.world_size):
        x, y = x.to(device), y.to(device)
        output = model(x)
        for meter, value in zip(meters, (cross_entropy(output, y).item() * len(x), *right(output, y)), strict=True):
            meter.update(value, len(x))
    for meter in meters:
        meter.all_reduce()
    if run.rank == 0:
        print("validation ", *meters)
    return meters[1].sum / meters[1].count


run = bt.start(logical_workers=4, seed=3, checkpoint=options.out)
device = run.device
options.out.mkdir(parents=True, exist_ok=True)
train_set, val_set = FakeImages(options.samples, flip=True), FakeImages(200, first=1_000_000)
train_loader = run.loader(train_set, options.batch_size, workers=0)
model = network()
optimizer = torch.optim.SGD(
    model.parameters(), options.rate, momentum=options.momentum, weight_decay=options.weight_decay
)
scheduler = StepLR(optimizer, 2)
best = run.carry("best", {"accuracy": 0.0})
model, optimizer = run.prepare(model, optimizer)
run.carry("scheduler", scheduler)

for epoch in run.epochs(options.epochs):
    train(epoch)
    found = run.evaluate(validate)
    scheduler.step()
    is_best = found > best["accuracy"]
    best["accuracy"] = max(found, best["accuracy"])
    if run.rank == 0 and is_best:
        torch.save(model.state_dict(), options.out / "best.pt")
