"""Jobs that share one GPU: how much slower their steps are and what a step costs in energy, beside what is believed.

    .venv/bin/python benchmarks/gpu_sharing.py [--seconds 4] [--times 2]

A *time-sliced* job computes for a part of each step (products of matrices that fill the GPU) and waits for the rest,
so the part is its utilisation, as a user would state it. Two others train a network: a small Transformer whose kernels
are short, and a convolutional network; their utilisation is what the driver says when they run alone. Each set of jobs
runs alone, one after the other, then together. Energy is the driver's counter; "in turn" is the energy of the same
steps one job after the other. What is believed is the rule that policies ask about jobs without a history.
"""

from __future__ import annotations

import argparse
import select
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

import pynvml
import torch

from brim.beliefs.interference import DemandRule

STEPS_S: Final = (0.1, 0.07, 0.13)
SETS: Final = (
    ("1", "1"), ("0.6", "0.3"), ("0.5", "0.5"), ("0.3", "0.3"), ("0.5", "0.5", "0.5"),
    ("transformer", "transformer"), ("conv", "conv"), ("transformer", "conv"), ("transformer", "0.5"),
)  # fmt: skip
SETTLE_S: Final = 0.5


# -- a job, in a process of its own


def time_sliced(part: float, step_s: float):
    """A step that uses the GPU for a part of its time alone."""
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    for count in (20, 200):  # the first wakes the GPU
        began_s = time.perf_counter()
        for _ in range(count):
            x @ x
        torch.cuda.synchronize()
        one_s = (time.perf_counter() - began_s) / count
    products = max(1, round(part * step_s / one_s))

    def step():
        for _ in range(products):
            x @ x
        torch.cuda.synchronize()
        if part < 1:
            time.sleep((1 - part) * step_s)

    return step


def training(kind: str):
    """A step of training a network, in the precision that PyTorch has by default."""
    from torch import nn

    if kind == "transformer":
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        model, x = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), torch.randn(8, 128, 512, device="cuda")
    else:
        blocks = [nn.Conv2d(3, 128, 3, padding=1)]
        for _ in range(12):
            blocks += [nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU()]
        model, x = nn.Sequential(*blocks), torch.randn(256, 3, 32, 32, device="cuda")
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step():
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def job(kind: str, step_s: float) -> None:
    """Make steps after each line on stdin until there is another; answer with their number and seconds."""
    torch.zeros(1, device="cuda")
    print("started", flush=True)
    sys.stdin.readline()  # nobody else computes while the products of a step are counted
    step = training(kind) if kind.isalpha() else time_sliced(float(kind), step_s)
    for _ in range(3):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        count, began_s = 0, time.perf_counter()
        while not select.select([sys.stdin], [], [], 0)[0]:
            step()
            count += 1
        sys.stdin.readline()
        print(count, time.perf_counter() - began_s, flush=True)


# -- the one that lets them run


@dataclass
class Window:
    """What was measured: seconds of a step of each job, J, W and the utilisation that the driver says."""

    steps_s: list[float]
    power_w: float
    utilisation: float


class Gpu:
    """The first GPU as its driver measures it."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def window(self, jobs: list[subprocess.Popen[str]], seconds: float) -> Window:
        """Let jobs run for a while."""
        for one in jobs:
            print(file=one.stdin, flush=True)
        time.sleep(SETTLE_S)
        energy_mj, began_s = pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle), time.monotonic()
        used = []
        while time.monotonic() < began_s + seconds:
            used.append(pynvml.nvmlDeviceGetUtilizationRates(self.handle).gpu)
            time.sleep(0.1)
        power_w = (pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle) - energy_mj) / 1e3
        power_w /= time.monotonic() - began_s
        for one in jobs:
            print(file=one.stdin, flush=True)
        answers = [one.stdout.readline().split() for one in jobs]
        return Window([float(s) / int(count) for count, s in answers], power_w, statistics.mean(used) / 100)


def start(kind: str, step_s: float) -> subprocess.Popen[str]:
    """Start a job, which waits."""
    words = [sys.executable, __file__, "--job", kind, str(step_s)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def measure(seconds: float, repeats: int) -> None:
    """Print what each set of jobs does."""
    gpu = Gpu()
    pool = {}
    for kinds in SETS:
        for place, kind in enumerate(kinds):
            if (kind, place) not in pool:
                pool[kind, place] = start(kind, STEPS_S[place])
    for one in pool.values():
        assert one.stdout.readline() == "started\n"
    for one in pool.values():
        print(file=one.stdin, flush=True)
        assert one.stdout.readline() == "ready\n"
    idle = gpu.window([], seconds)
    print(f"idle, {len(pool)} processes that wait: {idle.power_w:.0f} W")
    alone = {key: [gpu.window([one], seconds) for _ in range(repeats)] for key, one in pool.items()}
    for (kind, place), windows in alone.items():
        print(f"alone {kind} ({place}): step {middle(w.steps_s[0] for w in windows) * 1e3:.1f} ms, "
              f"{middle(w.power_w for w in windows):.0f} W, utilisation {middle(w.utilisation for w in windows):.0%}")
    for kinds in SETS:
        keys = [(kind, place) for place, kind in enumerate(kinds)]
        together = [gpu.window([pool[key] for key in keys], seconds) for _ in range(repeats)]
        demands = [
            float(kind) if not kind.isalpha() else middle(w.utilisation for w in alone[kind, place])
            for kind, place in keys
        ]
        alone_s = [middle(w.steps_s[0] for w in alone[key]) for key in keys]
        steps_s = [middle(w.steps_s[row] for w in together) for row in range(len(keys))]
        in_turn_w = sum(
            one_s / step_s * middle(w.power_w for w in alone[key])
            for key, one_s, step_s in zip(keys, alone_s, steps_s, strict=True)
        )  # J of a second's steps, made one job after the other
        power_w = middle(w.power_w for w in together)
        believed = DemandRule().slowdowns(demands)
        slower = ", ".join(
            f"{step_s / one_s:.2f} (believed {ratio:.2f})"
            for step_s, one_s, ratio in zip(steps_s, alone_s, believed, strict=True)
        )
        print(f"{' + '.join(kinds)}: slower {slower}; {power_w:.0f} W, energy {power_w / in_turn_w:.2f} of in turn, "
              f"time {1 / sum(o / s for o, s in zip(alone_s, steps_s, strict=True)):.2f} of in turn", flush=True)
    for one in pool.values():
        one.stdin.close()
        one.wait()


def middle(values) -> float:
    """The median."""
    return statistics.median(values)


def main() -> None:
    """Measure, or be a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options.job[0], float(options.job[1]))
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    measure(options.seconds, options.times)


if __name__ == "__main__":
    main()
