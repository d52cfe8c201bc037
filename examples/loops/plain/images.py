"""Images with a small residual network, meters and the best model kept, in the shape of PyTorch's ImageNet example.

The data are fake: noise around one pattern per class. With torchrun on several processes.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=64, help="over all processes")
parser.add_argument("--rate", type=float, default=0.1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--weight-decay", type=float, default=1e-4)
parser.add_argument("--print-freq", type=int, default=5)
parser.add_argument("--samples", type=int, default=1280)
parser.add_argument("--resume", action="store_true")
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
        if distributed:
            total = torch.tensor([self.sum, self.count], dtype=torch.float64, device=device)
            dist.all_reduce(total)
            self.sum, self.count = total[0].item(), int(total[1])

    def __str__(self):
        return f"{self.name} {self.sum / max(self.count, 1):7.3f}"


def right(output, target):
    """Numbers of right answers, the first and the first five: sums of whole numbers do not depend on their order."""
    found = output.topk(5).indices == target[:, None]
    return [int(found[:, :k].any(1).sum()) for k in (1, 5)]


def train(epoch):
    meters = Meter("loss"), Meter("top-1"), Meter("top-5")
    model.train()
    for number, (x, y) in enumerate(train_loader):
        x, y = x.to(device), y.to(device)
        output = model(x)
        loss = cross_entropy(output, y)
        for meter, value in zip(meters, (loss.item() * len(x), *right(output, y)), strict=True):
            meter.update(value, len(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % options.print_freq == 0 and rank == 0:
            print(f"epoch {epoch}  batch {number:3} ", *meters)


@torch.no_grad()
def validate():
    meters = Meter("loss"), Meter("top-1"), Meter("top-5")
    model.eval()
    for x, y in DataLoader(Subset(val_set, range(rank, len(val_set), ranks)), options.batch_size // ranks):
        x, y = x.to(device), y.to(device)
        output = model(x)
        for meter, value in zip(meters, (cross_entropy(output, y).item() * len(x), *right(output, y)), strict=True):
            meter.update(value, len(x))
    for meter in meters:
        meter.all_reduce()
    if rank == 0:
        print("validation ", *meters)
    return meters[1].sum / meters[1].count


distributed = "RANK" in os.environ
if distributed:
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
else:
    rank, ranks = 0, 1
device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)
options.out.mkdir(parents=True, exist_ok=True)
train_set, val_set = FakeImages(options.samples, flip=True), FakeImages(200, first=1_000_000)
sampler = DistributedSampler(train_set) if distributed else None
train_loader = DataLoader(train_set, options.batch_size // ranks, shuffle=sampler is None, sampler=sampler)
model = network().to(device)
if distributed:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(
    model.parameters(), options.rate, momentum=options.momentum, weight_decay=options.weight_decay
)
scheduler = StepLR(optimizer, 2)
first_epoch, best = 0, {"accuracy": 0.0}
if options.resume:
    state = torch.load(options.out / "last.pt", map_location=device)
    first_epoch, best = state["epoch"], state["best"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])

for epoch in range(first_epoch, options.epochs):
    if distributed:
        sampler.set_epoch(epoch)
    train(epoch)
    found = validate()
    scheduler.step()
    is_best = found > best["accuracy"]
    best["accuracy"] = max(found, best["accuracy"])
    if rank == 0:
        state = {
            "epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(), "best": best,
        }  # fmt: skip
        torch.save(state, options.out / "last.pt")
        if is_best:
            torch.save(model.state_dict(), options.out / "best.pt")
if distributed:
    dist.destroy_process_group()
