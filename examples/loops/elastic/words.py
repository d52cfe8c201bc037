"""A word-level LSTM whose hidden state goes on from batch to batch: the loop of ../plain/words.py with brim.train.

The rate is divided by four when the validation loss does not fall; the best model is kept and tested.
"""

import argparse
import math
import re
import sysconfig
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import brim.train as bt

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--words", type=int, default=30_000, help="of the training text")
parser.add_argument("--rate", type=float, default=20.0)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--out", type=Path, default=Path("out/words"))
options = parser.parse_args()

COLUMNS, EVAL_COLUMNS, LENGTH, WORDS, WORKERS = 16, 8, 20, 500, 4


class Words(nn.Module):
    """One LSTM; the hidden state goes in and out."""

    def __init__(self, width=48):
        super().__init__()
        self.width, self.dropout = width, nn.Dropout(0.2)
        self.embedding, self.lstm = nn.Embedding(WORDS, width), nn.LSTM(width, width)
        self.out = nn.Linear(width, WORDS)

    def forward(self, x, hidden):
        output, hidden = self.lstm(self.dropout(self.embedding(x)), hidden)
        return self.out(self.dropout(output)).flatten(0, 1), hidden

    def init_hidden(self, columns):
        zeros = self.embedding.weight.new_zeros(1, columns, self.width)
        return zeros, zeros


def corpus():
    """Words of the standard library's source text by number, the rarer ones as 0: for training, validation and test."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("a*.py"))
    words = re.findall(r"\w+|[^\w\s]", "".join(path.read_text(encoding="utf-8") for path in paths))
    words = words[: options.words * 6 // 5]
    known = {word: number for number, (word, _) in enumerate(Counter(words).most_common(WORDS - 1), start=1)}
    numbers = torch.tensor([known.get(word, 0) for word in words])
    train, val = options.words, options.words * 11 // 10
    return numbers[:train], numbers[train:val], numbers[val:]


def batchify(numbers, columns):
    """The text in so many columns, to be read downwards."""
    rows = len(numbers) // columns
    return numbers[: rows * columns].view(columns, rows).t().contiguous().to(device)


def repackage(hidden):
    return tuple(part.detach() for part in hidden)


def get_batch(source, start):
    length = min(LENGTH, len(source) - 1 - start)
    return source[start : start + length], source[start + 1 : start + 1 + length]


class Columns(Dataset):
    """One column of one batch after the other, so that a batch of COLUMNS samples is a batch of the text."""

    def __len__(self):
        return len(range(0, len(train_data) - 1, LENGTH)) * COLUMNS

    def __getitem__(self, index):
        x, y = get_batch(train_data, index // COLUMNS * LENGTH)
        return x[:, index % COLUMNS], y[:, index % COLUMNS]


def train(epoch):
    model.train()
    for x, y in run.steps(loader):
        x, y, number = x.t(), y.t(), loader.step
        if run.begins_step:
            sums["loss"] += run.loss if number > 0 else 0.0  # of the step before
            if number % 10 == 0:
                if number > 0 and run.rank == 0:
                    print(f"epoch {epoch}  batch {number:3}  loss {sums['loss'] / 10:.3f}")
                sums["loss"] = 0.0
        before = hidden.value if number > 0 else model.init_hidden(COLUMNS // WORKERS)
        output, hidden.value = model(x, before)
        loss = cross_entropy(output, y.flatten())
        run.backward(loss)
        run.step()


@torch.no_grad()
def evaluate(source):
    model.eval()
    hidden, total = model.init_hidden(EVAL_COLUMNS), 0.0
    for start in range(0, len(source) - 1, LENGTH):
        x, y = get_batch(source, start)
        output, hidden = model(x, hidden)
        total += len(x) * cross_entropy(output, y.flatten()).item()
    return total / (len(source) - 1)


run = bt.start(logical_workers=WORKERS, seed=1111, checkpoint=options.out)
device = run.device
train_data, val_data, test_data = (
    batchify(part, columns) for part, columns in zip(corpus(), (COLUMNS, EVAL_COLUMNS, EVAL_COLUMNS), strict=True)
)
options.out.mkdir(parents=True, exist_ok=True)
model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=options.rate)
best = run.carry("best", {"loss": math.inf})
sums = run.carry("sums", {"loss": 0.0})
hidden = run.per_worker("hidden", model.init_hidden(COLUMNS // WORKERS))
model, optimizer = run.prepare(model, optimizer)
run.clip(options.clip)
loader = run.loader(Columns(), COLUMNS, shuffle=False, workers=0)

for epoch in run.epochs(options.epochs):
    train(epoch)
    loss = evaluate(val_data)
    if run.rank == 0:
        print(f"epoch {epoch}  valid loss {loss:.3f}  perplexity {math.exp(loss):.1f}")
    if loss < best["loss"]:
        best["loss"] = loss
        if run.rank == 0:
            torch.save(model.state_dict(), options.out / "best.pt")
    else:
        for group in optimizer.param_groups:
            group["lr"] /= 4.0

if run.rank == 0:
    model.load_state_dict(torch.load(options.out / "best.pt"))
    loss = evaluate(test_data)
    print(f"test loss {loss:.3f}  perplexity {math.exp(loss):.1f}")
