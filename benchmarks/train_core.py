"""Compare brim.train with a hand-written DistributedDataParallel loop and the framework's all-reduce.

    python benchmarks/train_core.py                 all of it
    python benchmarks/train_core.py reduce          one part: reduce, steps

Every figure is a ratio of medians from one run, in which the sides take turns. It uses the CPU, gloo and one thread per
rank; on a machine with a GPU for each rank, also NCCL.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _rank(function, arguments, rank, size, port, answers):
    import torch

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    answers.put((rank, function(*arguments)))
    time.sleep(0.3)


def on_ranks(size, function, *arguments):
    """Return what rank 0 returns."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.nn.parallel", "torch._dynamo", "brim.train.run"])
    answers, port = context.Queue(), free_port()
    ranks = [
        context.Process(target=_rank, args=(function, arguments, rank, size, port, answers)) for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    found = dict(answers.get(timeout=600) for _ in ranks)
    for rank in ranks:
        rank.join()
    return found[0]


def in_turns(sides, rounds, barrier):
    """Return the seconds of each side; the sides take turns."""
    taken = {name: [] for name in sides}
    for round_ in range(rounds + 1):
        for name, call in sides.items():
            barrier()
            began = time.perf_counter()
            call()
            barrier()
            if round_:
                taken[name].append(time.perf_counter() - began)
    return taken


def show(title, taken, base):
    middle = {name: statistics.median(values) for name, values in taken.items()}
    for name, value in middle.items():
        least = min(taken[name]) / min(taken[base])
        ratio = value / middle[base]
        print(f"{title:34} {name:22} {value * 1e3:8.1f} ms   {ratio:5.2f} x {base}   (least: {least:.2f})")


# -- the ordered reduction against the framework's all-reduce


def device_of_rank():
    """Return the rank's own GPU if each rank has one, else the CPU."""
    import torch

    if torch.cuda.device_count() < int(os.environ["WORLD_SIZE"]):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["RANK"]))
    torch.cuda.set_device(device)
    return device


def finished(device):
    """Wait until queued work is done."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reduction(megabytes, rounds):
    import torch

    from brim.train.gradients.buckets import make_reducer
    from brim.train.membership.static_group import static_group

    device = device_of_rank()
    group = static_group(device, 120)
    vector = torch.randn(int(megabytes * 1e6 / 4), device=device)
    buckets = list(vector.split((25 << 20) // 4))
    tree = make_reducer(group, exact=True)

    def all_reduce():
        group.all_reduce(vector).wait()

    def all_reduce_buckets():
        for work in [group.all_reduce(bucket) for bucket in buckets]:
            work.wait()

    def ordered():
        tree.begin(vector).wait()

    def ordered_buckets():
        for work in [tree.begin(bucket) for bucket in buckets]:
            work.wait()

    def plain():
        n = group.size
        rows = torch.empty_like(vector)
        group.all_to_all(rows, vector).wait()
        first, *others = rows.view(n, -1).unbind()
        for other in others:
            first.add_(other)
        group.all_gather(vector, first).wait()

    sides = {
        "all-reduce": all_reduce, "ordered": ordered, "all-reduce, buckets": all_reduce_buckets,
        "ordered, buckets": ordered_buckets, "all-to-all, gather": plain,
    }  # fmt: skip

    def barrier():
        finished(device)
        group.share([0])

    taken = in_turns(sides, rounds, barrier)
    vector.zero_()
    group.share([0])
    return taken


# -- a step against DistributedDataParallel


class Data:
    """Yield batches at no cost."""

    wait_s = 0.0

    def __init__(self, batch, shares, make):
        self.epoch = self.step = 0
        self.global_batch, self.logical_workers = batch, shares
        self._batch = make(batch // shares)
        self._make = make

    def samples(self, epoch, step, worker):
        return self.global_batch // self.logical_workers

    def set_logical_workers(self, shares):
        self.logical_workers = shares
        self._batch = self._make(self.global_batch // shares)

    def assign(self, epoch, step, workers):
        pass

    def fetch(self, epoch, step, worker):
        return self._batch

    def commit(self, epoch, step):
        self.step += 1

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def model_of(kind):
    import torch
    from torch import nn

    torch.manual_seed(1)
    if kind == "mlp":  # 21 MB of gradients
        layers = [part for _ in range(5) for part in (nn.Linear(1024, 1024), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(1024, 10)), lambda n: (torch.randn(n, 1024), torch.randint(0, 10, (n,)))
    blocks, width = [], 32
    for _ in range(6):
        blocks += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, *head)
    return model, lambda n: (torch.randn(n, 3, 24, 24), torch.randint(0, 10, (n,)))


def steps(kind, batch, modes, rounds, per_round):
    """Time by turns a loop by hand over DDP, and brim's loop in each mode, in one process per rank."""
    import torch
    from torch import distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    import brim.train as bt
    from brim.train.membership.static_group import static_group

    device = device_of_rank()
    barrier_group = static_group(torch.device("cpu"), 120) if int(os.environ["WORLD_SIZE"]) > 1 else None
    backend, port = "nccl" if device.type == "cuda" else "gloo", int(os.environ["MASTER_PORT"]) + 1
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}",
        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))  # fmt: skip
    size = dist.get_world_size()
    sides = {}

    model, make = model_of(kind)
    wrapped = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-4, momentum=0.9)
    mine = [tensor.to(device) for tensor in make(batch // size)]

    def by_hand():
        for _ in range(per_round):
            optimizer.zero_grad()
            cross_entropy(wrapped(mine[0]), mine[1]).backward()
            optimizer.step()

    sides["DDP"] = by_hand
    runs = []
    for name, workers in modes.items():
        run = bt.start(logical_workers=workers, device=device)
        model, make = model_of(kind)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9))
        loop = run.steps(Data(batch, workers or 1, lambda n, make=make: [tensor.to(device) for tensor in make(n)]))
        runs.append(run)

        def ours(run=run, model=model, loop=loop):
            done = 0
            while done < per_round:
                x, y = next(loop)
                run.backward(cross_entropy(model(x), y))
                done += run.step()

        sides[name] = ours

    def barrier():
        finished(device)
        if barrier_group is not None:
            barrier_group.share([0])

    taken = in_turns(sides, rounds, barrier)
    taken = {name: [value / per_round for value in values] for name, values in taken.items()}
    for run in runs:
        run.close()
    dist.destroy_process_group()
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["reduce", "steps"])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    import torch

    gpus = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "none"
    print(f"GPUs {gpus}, torch {torch.__version__}")
    print(f"cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f}; medians of {options.rounds}, sides take turns")
    if "reduce" in options.parts:
        for ranks in (2, 4):
            show(f"100 MB, {ranks} ranks", on_ranks(ranks, reduction, 100, options.rounds), "all-reduce")
    if "steps" in options.parts:
        for kind, batch in (("mlp", 256), ("conv", 64)):
            for ranks in (1, 2):
                modes = {"fast": None, "exact V=P": ranks, "exact V=2P": 2 * ranks, "exact V=4P": 4 * ranks}
                taken = on_ranks(ranks, steps, kind, batch, modes, options.rounds, 4)
                show(f"{kind}, batch {batch}, {ranks} rank(s)", taken, "DDP")


if __name__ == "__main__":
    main()
