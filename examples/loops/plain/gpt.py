"""A small GPT on memory-mapped text, trained by iterations on random windows, in the shape of nanoGPT's train.py.

Gradients are accumulated, the rate is set by hand, the best model is kept. With torchrun on several processes.
"""

import argparse
import math
import os
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("out/gpt"), help="folder of checkpoints")
parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "brim-loops", help="folder of tokens")
parser.add_argument("--iters", type=int, default=200)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

EVAL_EVERY, EVAL_BATCHES, LOG_EVERY = 20, 4, 10
BATCH, ACCUMULATION, BLOCK = 4, 4, 32
RATE, RATE_MIN, WARMUP, DECAY, CLIP = 3e-3, 3e-4, 10, 200, 1.0


def prepare_data(folder):
    """Write train.bin and val.bin: source text of the standard library as one byte per token, in 16 bits."""
    folder.mkdir(parents=True, exist_ok=True)
    text = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("a*.py")))
    tokens = np.frombuffer(text, dtype=np.uint8).astype(np.uint16) % 128
    cut = len(tokens) * 9 // 10
    for name, part in (("train", tokens[:cut]), ("val", tokens[cut:])):
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            part.tofile(file)
        os.replace(file.name, folder / f"{name}.bin")


class GPT(nn.Module):
    """Two layers; returns logits and loss."""

    def __init__(self, width=32, tokens=128):
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(BLOCK, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.register_buffer("mask", torch.full((BLOCK, BLOCK), float("-inf")).triu(1), persistent=False)

    def forward(self, x, y):
        h = self.tokens(x) + self.places.weight
        logits = self.head(self.layers(h, mask=self.mask, is_causal=True))
        return logits, cross_entropy(logits.flatten(0, 1), y.flatten())


def get_batch(split):
    data = np.memmap(options.data / f"{split}.bin", dtype=np.uint16, mode="r")
    places = torch.randint(len(data) - BLOCK, (BATCH,))
    x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in places])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in places])
    return x.to(device), y.to(device)


def get_rate(step):
    """Warm up, then half a cosine."""
    if step < WARMUP:
        return RATE * (step + 1) / (WARMUP + 1)
    done = min((step - WARMUP) / (DECAY - WARMUP), 1.0)
    return RATE_MIN + (RATE - RATE_MIN) * 0.5 * (1.0 + math.cos(math.pi * done))


@torch.no_grad()
def estimate_loss():
    found = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(EVAL_BATCHES)
        for k in range(EVAL_BATCHES):
            _, loss = model(*get_batch(split))
            losses[k] = loss.item()
        found[split] = losses.mean().item()
    model.train()
    return found


def keep_best(step):
    losses = estimate_loss()
    if master:
        print(f"step {step:4}  train loss {losses['train']:.4f}  val loss {losses['val']:.4f}")
    if losses["val"] < best["loss"]:
        best["loss"] = losses["val"]
        if master and step > 0:
            state = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "best": best}
            torch.save(state, options.out / "best.pt")


ddp = "RANK" in os.environ
if ddp:
    dist.init_process_group()
    rank, ranks, local_rank = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
    assert ACCUMULATION % ranks == 0
    ACCUMULATION //= ranks
else:
    rank, ranks, local_rank = 0, 1, 0
master = rank == 0
device = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1337 + rank)
if master and not (options.data / "val.bin").exists():
    prepare_data(options.data)
if ddp:
    dist.barrier()
if master:
    options.out.mkdir(parents=True, exist_ok=True)

step, best = 0, {"loss": math.inf}
model = GPT().to(device)
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
if options.resume:
    state = torch.load(options.out / "best.pt", map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step, best = state["step"], state["best"]
raw_model = model
if options.compile:
    model = torch.compile(model)
if ddp:
    model = DistributedDataParallel(model)

x, y = get_batch("train")
while True:
    rate = get_rate(step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    if step % EVAL_EVERY == 0:
        keep_best(step)
    if step >= options.iters:
        break
    for micro_step in range(ACCUMULATION):
        if ddp:
            model.require_backward_grad_sync = micro_step == ACCUMULATION - 1
        _, loss = model(x, y)
        loss = loss / ACCUMULATION
        x, y = get_batch("train")
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % LOG_EVERY == 0 and master:
        print(f"step {step:4}  loss {loss.item() * ACCUMULATION:.4f}  rate {rate:.6f}")
    step += 1

if ddp:
    dist.destroy_process_group()
