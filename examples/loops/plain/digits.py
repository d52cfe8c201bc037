"""Handwritten digits with Adadelta, dropout and a rate per epoch, in the shape of the MNIST example of PyTorch."""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

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
    for number, (x, y) in enumerate(train_loader):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if number % options.log_interval == 0:
            print(f"epoch {epoch}  batch {number:3}  loss {loss.item():.4f}")


@torch.no_grad()
def test():
    model.eval()
    loss, right = 0.0, 0
    for x, y in test_loader:
        x, y = x.to(device), y.to(device)
        output = model(x)
        loss += cross_entropy(output, y, reduction="sum").item()
        right += (output.argmax(1) == y).sum().item()
    print(f"test loss {loss / len(test_set):.4f}  right {right} of {len(test_set)}")


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)
options.out.mkdir(parents=True, exist_ok=True)
train_set, test_set = data()
train_loader = DataLoader(train_set, options.batch_size, shuffle=True)
test_loader = DataLoader(test_set, 256)
model = Net().to(device)
optimizer = torch.optim.Adadelta(model.parameters(), lr=options.rate)
scheduler = StepLR(optimizer, 1, options.gamma)

for epoch in range(options.epochs):
    train(epoch)
    test()
    scheduler.step()
torch.save(model.state_dict(), options.out / "digits.pt")
