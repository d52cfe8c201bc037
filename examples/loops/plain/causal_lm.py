"""A causal language model of Hugging Face's transformers, fine-tuned in the shape of its example without Trainer.

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
    for batch in DataLoader(val_set, options.batch_size):
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        losses.append(model(**batch).loss.repeat(len(batch["input_ids"])))
    return math.exp(torch.cat(losses).mean().item())


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(42)
options.out.mkdir(parents=True, exist_ok=True)
train_set, val_set = blocks()
loader = DataLoader(train_set, options.batch_size, shuffle=True, drop_last=True)
config = GPT2Config(vocab_size=256, n_positions=BLOCK, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config).to(device)
plain = ("bias", "ln_1.weight", "ln_2.weight", "ln_f.weight")
groups = [
    {"params": [p for n, p in model.named_parameters() if not n.endswith(plain)], "weight_decay": options.weight_decay},
    {"params": [p for n, p in model.named_parameters() if n.endswith(plain)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=options.rate)
steps = options.epochs * (len(loader) // options.accumulation)
scheduler = get_scheduler("linear", optimizer, num_warmup_steps=options.warmup_steps, num_training_steps=steps)

for epoch in range(options.epochs):
    model.train()
    total = 0.0
    for number, batch in enumerate(loader):
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        loss = model(**batch).loss
        total += loss.item()
        (loss / options.accumulation).backward()
        if number % options.accumulation == options.accumulation - 1:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    found = perplexity()
    print(f"epoch {epoch}  loss {total / len(loader):.3f}  perplexity {found:.2f}")
model.save_pretrained(options.out)
