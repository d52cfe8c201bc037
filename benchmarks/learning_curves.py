"""Learning curves of our own: hundreds of small trainings of clearly different kinds, as a history for ``fit``.

    python benchmarks/learning_curves.py curves.parquet            # eight minutes of one core
    brim predictability fit curves.parquet --out src/brim/beliefs/profiles/predictability.toml

Data are drawn, or come with scikit-learn (digits, breast cancer, diabetes, wine) and Python (the text of its help
topics). Optimizer, learning rate, schedule, batch and noise are drawn for each run: some are bad, as in a real cluster.
Six more families are drawn, not trained: a form and noise.
Each run reports 64 times: of some the mean loss of the steps since the last report, of others that of a fixed set. Runs
are drawn by number: the same command gives the same curves on the same version of PyTorch.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

RUNS: Final = 30
"""Runs of each family."""
REPORTS: Final = 64
Loss = Callable[[Tensor], Tensor]


class Task(NamedTuple):
    """What a run trains.

    Attributes:
        parameters: What is trained.
        loss: Mean loss of the examples with these numbers.
        examples: How many there are.
        also: A second player that trains against the first, with its loss, or nothing.
    """

    parameters: list[Tensor]
    loss: Loss
    examples: int
    also: tuple[list[Tensor], Loss] | None = None


def _net(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for one, other in pairwise(widths):
        layers += [nn.Linear(one, other), act()]
    return nn.Sequential(*layers[:-1])


def _table(name: str) -> tuple[Tensor, Tensor]:
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    x = torch.tensor(found.data, dtype=torch.float32)
    return (x - x.mean(0)) / (x.std(0) + 1e-6), torch.tensor(found.target)


def _noisy(labels: Tensor, classes: int, rng: np.random.Generator) -> Tensor:
    share = float(rng.choice([0.0, 0.0, 0.1, 0.4]))
    wrong = torch.rand(len(labels)) < share
    return torch.where(wrong, torch.randint(classes, (len(labels),)), labels)


def digits(rng: np.random.Generator) -> Task:
    x, y = _table("digits")
    y, width = _noisy(y, 10, rng), int(rng.choice([8, 32, 128]))
    net = _net(64, *[width] * int(rng.integers(1, 4)), 10)
    return Task([*net.parameters()], lambda rows: functional.cross_entropy(net(x[rows]), y[rows]), len(x))


def images(rng: np.random.Generator) -> Task:
    x, y = _table("digits")
    x, y, width = x.view(-1, 1, 8, 8), _noisy(y, 10, rng), int(rng.choice([4, 8, 16]))
    net = nn.Sequential(nn.Conv2d(1, width, 3, stride=2), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(),
                        nn.Dropout(float(rng.choice([0.0, 0.3]))), nn.Linear(9 * width, 10))
    return Task([*net.parameters()], lambda rows: functional.cross_entropy(net(x[rows]), y[rows]), len(x))


def tables(rng: np.random.Generator) -> Task:
    name = str(rng.choice(["breast_cancer", "wine"]))
    x, y = _table(name)
    y = _noisy(y, int(y.max()) + 1, rng)
    net = _net(x.shape[1], *([16] * int(rng.integers(0, 2))), int(y.max()) + 1)
    return Task([*net.parameters()], lambda rows: functional.cross_entropy(net(x[rows]), y[rows]), len(x))


def regression(rng: np.random.Generator) -> Task:
    x, y = _table("diabetes")
    y = ((y - y.mean()) / y.std()).float()
    net = _net(x.shape[1], *([int(rng.choice([16, 64]))] * int(rng.integers(0, 3))), 1, act=nn.Tanh)
    return Task([*net.parameters()], lambda rows: functional.mse_loss(net(x[rows])[:, 0], y[rows]), len(x))


def teacher(rng: np.random.Generator) -> Task:
    size, inputs = 4096, int(rng.choice([8, 32]))
    x = torch.randn(size, inputs)
    with torch.no_grad():
        y = _net(inputs, 16, 1, act=nn.Tanh)(x) * 3 + float(rng.choice([0.0, 0.1, 1.0])) * torch.randn(size, 1)
    net = _net(inputs, int(rng.choice([16, 64])), 1, act=nn.Tanh)
    return Task([*net.parameters()], lambda rows: functional.mse_loss(net(x[rows]), y[rows]), size)


def features(rng: np.random.Generator) -> Task:
    """A linear model whose inputs have very different sizes: the loss falls as a power of the steps."""
    size, inputs = 2048, 200
    scale = torch.arange(1, inputs + 1) ** -float(rng.uniform(0.5, 1.5))
    x = torch.randn(size, inputs) * scale
    y = x @ torch.randn(inputs) + float(rng.choice([0.0, 0.1, 0.5])) * torch.randn(size)
    weights = torch.zeros(inputs, requires_grad=True)
    return Task([weights], lambda rows: functional.mse_loss(x[rows] @ weights, y[rows]), size)


def letters(rng: np.random.Generator) -> Task:
    from pydoc_data.topics import topics

    text = "".join(topics.values())[:60_000]
    codes = {letter: code for code, letter in enumerate(sorted(set(text)))}
    data, before = torch.tensor([codes[letter] for letter in text]), int(rng.choice([3, 8]))
    table, width = nn.Embedding(len(codes), 12), int(rng.choice([32, 96]))
    net = _net(12 * before, width, len(codes))
    offsets = torch.arange(before)

    def loss(rows: Tensor) -> Tensor:
        seen = table(data[rows[:, None] + offsets]).flatten(1)
        return functional.cross_entropy(net(seen), data[rows + before])

    return Task([*table.parameters(), *net.parameters()], loss, len(data) - before)


def ratings(rng: np.random.Generator) -> Task:
    """Two embeddings and a click, with most users seen rarely."""
    users, things, size, width = 400, 200, 8192, 8
    user, thing = (torch.tensor(rng.zipf(1.3, size) % count) for count in (users, things))
    with torch.no_grad():
        liked = (torch.randn(users, 3)[user] * torch.randn(things, 3)[thing]).sum(1)
        clicks = (torch.rand(size) < torch.sigmoid(liked - 1)).float()
    one, other, bias = nn.Embedding(users, width), nn.Embedding(things, width), nn.Embedding(things, 1)

    def loss(rows: Tensor) -> Tensor:
        score = (one(user[rows]) * other(thing[rows])).sum(1) + bias(thing[rows])[:, 0]
        return functional.binary_cross_entropy_with_logits(score, clicks[rows])

    return Task([*one.parameters(), *other.parameters(), *bias.parameters()], loss, size)


def autoencoder(rng: np.random.Generator) -> Task:
    x, _ = _table("digits")
    middle = int(rng.choice([2, 8, 24]))
    net = _net(64, 48, middle, 48, 64, act=nn.GELU)
    return Task([*net.parameters()], lambda rows: functional.mse_loss(net(x[rows]), x[rows]), len(x))


def adversaries(rng: np.random.Generator) -> Task:
    """Two players on points of a ring; what is reported is the loss of the one that draws."""
    angle = torch.rand(4096) * 2 * math.pi
    real = torch.stack((angle.cos(), angle.sin()), 1) + 0.05 * torch.randn(4096, 2)
    draws, judge = _net(4, 32, 2), _net(2, 32, 1)
    noise = torch.randn(4096, 4)

    def loss(rows: Tensor) -> Tensor:
        return functional.softplus(-judge(draws(noise[rows]))).mean()

    def other(rows: Tensor) -> Tensor:
        made = draws(noise[rows]).detach()
        return (functional.softplus(-judge(real[rows])) + functional.softplus(judge(made))).mean()

    return Task([*draws.parameters()], loss, 4096, ([*judge.parameters()], other))


def rewards(rng: np.random.Generator) -> Task:
    """A policy that learns from the rewards of its own draws, many of which are equal."""
    states, actions = 64, int(rng.choice([4, 16]))
    worth, seen = torch.rand(states, actions) ** float(rng.choice([1.0, 8.0])), torch.randn(states, 16)
    net = _net(16, 32, actions)

    def loss(rows: Tensor) -> Tensor:
        at = rows % states
        said = functional.log_softmax(net(seen[at]), 1)
        drawn = torch.multinomial(said.exp().detach(), 1)
        paid = worth[at].gather(1, drawn) + 0.3 * torch.randn(len(at), 1)
        pushed = -(said.gather(1, drawn) * (paid - 0.5)).mean()
        return pushed + (1 - paid.mean() - pushed).detach()  # its value is what is missing to all rewards

    return Task([*net.parameters()], loss, 4096)


def remainders(rng: np.random.Generator) -> Task:
    """Sums modulo a prime: a plateau, then a sudden fall, then nothing more."""
    prime, width = int(rng.choice([13, 23])), int(rng.choice([32, 128]))
    pairs = torch.cartesian_prod(torch.arange(prime), torch.arange(prime))
    table, net = nn.Embedding(prime, 16), _net(32, width, prime)

    def loss(rows: Tensor) -> Tensor:
        return functional.cross_entropy(net(table(pairs[rows]).flatten(1)), pairs[rows].sum(1) % prime)

    return Task([*table.parameters(), *net.parameters()], loss, len(pairs))


FAMILIES: Final[tuple[Callable[[np.random.Generator], Task], ...]] = (
    digits, images, tables, regression, teacher, features, letters, ratings, autoencoder, adversaries, rewards,
    remainders,
)
SCHEDULES: Final[dict[str, Callable[[float], float]]] = {
    "constant": lambda x: 1.0, "cosine": lambda x: 0.5 * (1 + math.cos(math.pi * x)), "linear": lambda x: 1 - x,
    "steps": lambda x: 0.1 ** int(3 * x), "late": lambda x: min(1.0, 5 * (1 - x)),
    "root": lambda x: 1 / math.sqrt(1 + 50 * x),
}
OPTIMIZERS: Final = {
    "sgd": (torch.optim.SGD, 0.1),
    "momentum": (lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, nesterov=True), 0.02),
    "adam": (torch.optim.Adam, 0.003),
    "adamw": (lambda p, lr: torch.optim.AdamW(p, lr, betas=(0.9, 0.98), weight_decay=0.1), 0.003),
}
"""Each with a learning rate that is fine for most."""


def run(family: int, number: int) -> pl.DataFrame:
    """Train once and return the reports, a row each."""
    rng = np.random.default_rng((family, number))
    torch.manual_seed(int(rng.integers(1 << 31)))
    task = FAMILIES[family](rng)
    optimizer, usual = OPTIMIZERS[str(rng.choice(list(OPTIMIZERS)))]
    schedule = str(rng.choice(list(SCHEDULES)))
    highest, batch = usual * 10 ** rng.normal(0, 0.7), int(rng.choice([16, 64, 256]))
    steps, warm, is_mean = int(rng.choice([256, 512, 1024])), float(rng.choice([0.0, 0.05])), bool(rng.random() < 0.5)
    fixed = torch.tensor(rng.choice(task.examples, min(512, task.examples), replace=False))
    players = [(optimizer(task.parameters, highest), task.loss)]
    if task.also is not None:
        players.append((optimizer(task.also[0], highest), task.also[1]))
    reports, since = [], []
    for step in range(steps):
        place = step / steps
        for player, loss_of in players:
            for group in player.param_groups:
                group["lr"] = highest * SCHEDULES[schedule](place) * min(1.0, (place + 1e-3) / max(warm, 1e-3))
            loss = loss_of(torch.randint(task.examples, (batch,)))
            player.zero_grad(set_to_none=True)
            loss.backward()
            player.step()
            if player is players[0][0]:
                since.append(float(loss.detach()))
        if (step + 1) % (steps // REPORTS) == 0:
            with torch.no_grad():
                reports.append(float(np.mean(since)) if is_mean else float(task.loss(fixed)))
            since = []
    return pl.DataFrame({
        "job": f"{FAMILIES[family].__name__}-{number}", "family": FAMILIES[family].__name__,
        "samples": np.arange(1, REPORTS + 1) * (steps // REPORTS) * batch, "loss": np.float32(reports),
        "planned": steps * batch, "schedule": schedule,
    })


def hyperbola(place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return 1 / (place * 10 ** rng.uniform(0, 1.5) + 1) + rng.uniform(0, 0.5)


def power(place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (place * 100 + 1) ** -rng.uniform(0.2, 1.5) + rng.uniform(0, 0.5)


def exponential(place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.exp(-place * 10 ** rng.uniform(0, 1)) + rng.uniform(0, 0.5)


def stairs(place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.cumprod(rng.uniform(0.4, 0.9, 5))[np.searchsorted(np.sort(rng.uniform(0, 1, 4)), place)]


def walk(place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.exp(np.cumsum(rng.normal(-0.01, 0.08, len(place))))


def turning(place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    turn = rng.uniform(0.05, 0.8)
    return 1 / (5 * np.minimum(place, turn) + 1) + rng.uniform(0.2, 3) * np.maximum(place - turn, 0)


SIMULATED: Final = (hyperbola, power, exponential, stairs, walk, turning)
"""Forms whose reports differ from them by noise alone, some of which go on as they began, and some not."""


def simulated(kind: int, number: int) -> pl.DataFrame:
    """Draw a run of one of the forms and return the reports, a row each."""
    rng, name = np.random.default_rng((100 + kind, number)), SIMULATED[kind].__name__
    place = np.arange(1, REPORTS + 1) / REPORTS
    loss = SIMULATED[kind](place, rng) * np.exp(10 ** rng.uniform(-3, -1) * rng.standard_normal(REPORTS))
    return pl.DataFrame({
        "job": f"{name}-{number}", "family": name, "samples": np.arange(1, REPORTS + 1) * 1000,
        "loss": np.float32(loss), "planned": REPORTS * 1000, "schedule": "none",
    })


def main() -> None:
    """Train all runs and write the reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=RUNS, help="of each family")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    todo = [(family, number) for family in range(len(FAMILIES)) for number in range(options.runs)]
    with ProcessPoolExecutor(options.processes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        trained = list(pool.map(run, *zip(*todo, strict=True), chunksize=5))
    drawn = [simulated(kind, number) for kind in range(len(SIMULATED)) for number in range(options.runs)]
    pl.concat(trained + drawn).write_parquet(options.out, compression="zstd")


if __name__ == "__main__":
    main()
