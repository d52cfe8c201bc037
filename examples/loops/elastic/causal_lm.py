"""A causal language model of Hugging Face's transformers, fine-tuned: ../plain/causal_lm.py with brim.train.

Blocks of tokens, AdamW with and without decay, a schedule with warm-up, accumulated gradients, perplexity after every
epoch. The model is tiny and random, a token is a byte: pip install 'brim[integrations]' is enough.
"""

import argparse
import math
import sysconfig
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_scheduler

import brim.train as bt

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--accumulation", type=int, default=4)
parser.add_argument("--rate", type=float, default=5e-3)
parser.add_argument("--weight-decay", type=float, default=0.1)
parser.add_argument("--warmup-steps", type=int, default=10)
parser.add_argument("--blocks", type=int, default=610)
parser.add_argument("--out", type=Path, default=Path("out/causal_lm"))
options = parser.parse_args()

BLOCK = 48


def blocks():
    """Source text of the standard library in blocks, for training and validation."""
    text = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("a*.py")))
    tokens = torch.frombuffer(bytearray(text[: options.blocks * BLOCK]), dtype=torch.uint8).long().view(-1, BLOCK)
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    cut = len(rows) * 9 // 10
    return rows[:cut], rows[cut:]


@torch.no_grad()
def perplexity():
    model.eval()
    losses = []
    for number, batch in enumerate(DataLoader(val_set, options.batch_size)):
        if number % run.world_size == run.rank:
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            losses.append((number, model(**batch).loss.repeat(len(batch["input_ids"]))))
    ordered = [loss for _, loss in sorted(pair for pairs in run.gather(losses) for pair in pairs)]
    return math.exp(torch.cat(ordered).mean().item())


run = bt.start(logical_workers=options.accumulation, seed=42, checkpoint=options.out)
device = run.device
options.out.mkdir(parents=True, exist_ok=True)
train_set, val_set = blocks()
loader = run.loader(train_set, options.batch_size * options.accumulation, last="drop", workers=0)
config = GPT2Config(vocab_size=256, n_positions=BLOCK, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
plain = ("bias", "ln_1.weight", "ln_2.weight", "ln_f.weight")
groups = [
    {"params": [p for n, p in model.named_parameters() if not n.endswith(plain)], "weight_decay": options.weight_decay},
    {"params": [p for n, p in model.named_parameters() if n.endswith(plain)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=options.rate)
steps = options.epochs * loader.steps_per_epoch
scheduler = get_scheduler("linear", optimizer, num_warmup_steps=options.warmup_steps, num_training_steps=steps)
sums = run.carry("sums", {"loss": 0.0})
model, optimizer, scheduler = run.prepare(model, optimizer, scheduler)

for epoch in run.epochs(options.epochs):
    model.train()
    for batch in run.steps(loader):
        if run.begins_step and loader.step > 0:
            sums["loss"] += run.loss  # of the step before
        run.backward(model(**batch).loss)
        run.step()
    total, sums["loss"] = sums["loss"] + run.loss, 0.0
    found = run.evaluate(perplexity)
    if run.rank == 0:
        print(f"epoch {epoch}  loss {total / loader.steps_in(epoch):.3f}  perplexity {found:.2f}")
if run.rank == 0:
    model.save_pretrained(options.out)
