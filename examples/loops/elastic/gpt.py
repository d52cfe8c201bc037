"""A small GPT on memory-mapped text, trained by iterations on random windows, in the shape of nanoGPT's train.py.

Gradients are accumulated, the rate is set by hand, the best model is kept. The loop of ../plain/gpt.py with brim.train.
"""

import argparse
import math
import os
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import brim.train as bt

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("out/gpt"), help="folder of checkpoints")
parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "brim-loops", help="folder of tokens")
parser.add_argument("--iters", type=int, default=200)
parser.add_argument("--compile", action="store_true")
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
    losses = run.evaluate(estimate_loss)
    if run.rank == 0:
        print(f"step {step:4}  train loss {losses['train']:.4f}  val loss {losses['val']:.4f}")
    if losses["val"] < best["loss"]:
        best["loss"] = losses["val"]
        if run.rank == 0 and step > 0:
            torch.save(raw_model.state_dict(), options.out / "best.pt")


run = bt.start(logical_workers=ACCUMULATION, seed=1337, checkpoint=options.out)
device = run.device
if not (options.data / "val.bin").exists():
    prepare_data(options.data)

best = run.carry("best", {"loss": math.inf})
model = GPT().to(device)
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
raw_model = model
if options.compile:
    model = torch.compile(model)
model, optimizer = run.prepare(model, optimizer)
run.clip(CLIP)
loader = run.loader(range(options.iters * ACCUMULATION * BATCH), ACCUMULATION * BATCH, workers=0)  # counts iterations

for _ in run.epochs(1):
    for _ in run.steps(loader):
        step = run.steps_done
        if run.begins_step:
            rate = get_rate(step)
            for group in optimizer.param_groups:
                group["lr"] = rate
            if step % EVAL_EVERY == 0:
                keep_best(step)
        x, y = get_batch("train")
        _, loss = model(x, y)
        run.backward(loss)
        if run.step() and step % LOG_EVERY == 0 and run.rank == 0:
            print(f"step {step:4}  loss {run.loss:.4f}  rate {rate:.6f}")
    keep_best(run.steps_done)
