"""Handwritten digits with Adadelta, dropout and a rate per epoch: the loop of ../plain/digits.py with brim.train."""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import brim.train as bt

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=14)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--rate", type=float, default=1.0)
parser.add_argument("--gamma", type=float, default=0.7, help="factor on the rate per epoch")
parser.add_argument("--log-interval", type=int, default=10)
parser.add_argument("--out", type=Path, default=Path("out/digits"))
options = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.hidden, self.out = nn.Linear(32 * 4 * 4, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.second(torch.relu(self.first(x))))
        x = self.dropout(nn.functional.max_pool2d(x, 2)).flatten(1)
        return self.out(self.dropout(torch.relu(self.hidden(x))))


def data():
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    return TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])


def train(epoch):
    model.train()
    for x, y in run.steps(train_loader):
        number = train_loader.step
        loss = cross_entropy(model(x), y)
        run.backward(loss)
        if run.step() and number % options.log_interval == 0 and run.rank == 0:
            print(f"epoch {epoch}  batch {number:3}  loss {run.loss:.4f}")


@torch.no_grad()
def test():
    model.eval()
    loss, right = 0.0, 0
    for x, y in test_loader:
        x, y = x.to(device), y.to(device)
        output = model(x)
        loss += cross_entropy(output, y, reduction="sum").item()
        right += (output.argmax(1) == y).sum().item()
    if run.rank == 0:
        print(f"test loss {loss / len(test_set):.4f}  right {right} of {len(test_set)}")


run = bt.start(logical_workers=4, seed=1, checkpoint=options.out)
device = run.device
options.out.mkdir(parents=True, exist_ok=True)
train_set, test_set = data()
train_loader = run.loader(train_set, options.batch_size, workers=0)
test_loader = DataLoader(test_set, 256)
model = Net()
optimizer = torch.optim.Adadelta(model.parameters(), lr=options.rate)
scheduler = StepLR(optimizer, 1, options.gamma)
model, optimizer = run.prepare(model, optimizer)
run.carry("scheduler", scheduler)

for epoch in run.epochs(options.epochs):
    train(epoch)
    test()
    scheduler.step()
if run.rank == 0:
    torch.save(model.state_dict(), options.out / "digits.pt")
