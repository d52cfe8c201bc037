"""A small transformer that learns to write Python from the standard library's own source text, one character at a time.

Alone:         python examples/train_characters.py --steps 100
On two ranks:  python -m brim.train.launch --nproc 2 examples/train_characters.py --steps 100

Both print the same SHA-256, as long as both run the same version of Python: the text is part of it. Lines marked "brim"
differ from a plain loop.
"""

import argparse
import os
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import brim.train as bt

LETTERS, LENGTH = 128, 64  # ASCII; characters that the model sees at once

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=400, help="total number of optimizer steps (default 400)")
parser.add_argument("--checkpoint", metavar="FOLDER", default=os.environ.get("BRIM_CKPT_DIR"),
                    help="save to this folder, and resume from it; by default, the job's own under `brim up`")
options = parser.parse_args()


class Text(Dataset):
    """Pieces of a text, and the same shifted by one character."""

    def __init__(self, characters: torch.Tensor):
        self.characters = characters

    def __len__(self) -> int:
        return (len(self.characters) - 1) // LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        piece = self.characters[index * LENGTH : (index + 1) * LENGTH + 1].long()
        return piece[:-1], piece[1:]


class Writer(nn.Module):
    """Two transformer layers over characters; 87,552 parameters."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, LETTERS)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        h = self.letters(x) + self.places.weight[:length]
        return self.out(self.layers(h, mask=self.mask[:length, :length], is_causal=True))


def source_text(characters: int = 500_000) -> torch.Tensor:
    """Return the source of the standard library's first modules in order of name."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*.py")):
        text += path.read_text(encoding="utf-8").encode("ascii", "replace")
        if len(text) >= characters:
            break
    return torch.frombuffer(text[:characters], dtype=torch.uint8)


def write(model: nn.Module, beginning: str, characters: int, device: torch.device) -> str:
    """Return the most likely continuation."""
    letters = list(beginning.encode("ascii"))
    with torch.no_grad():
        for _ in range(characters):
            seen = torch.tensor([letters[-LENGTH:]], device=device)
            letters.append(int(model(seen)[0, -1].argmax()))
    return bytes(letters).decode("ascii")


run = bt.start(logical_workers=4, seed=0, checkpoint=options.checkpoint)  # brim: first, so that weights are seeded
model = Writer()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = run.prepare(model, optimizer)  # brim
run.clip(1.0)  # brim: nn.utils.clip_grad_norm_(model.parameters(), 1.0)
run.schedule(lambda samples: min(1.0, (samples + 32) / 640))  # brim: a warm-up, in samples as the batch may change
loader = run.loader(Text(source_text()), global_batch=32, workers=0)  # brim: DataLoader

for _ in run.epochs(100, steps=options.steps):  # brim: for _ in range(100)
    for x, y in run.steps(loader):  # brim: for x, y in loader
        if run.begins_step and run.rank == 0 and run.steps_done and run.steps_done % 20 == 0:  # brim
            print(f"step {run.steps_done:4}  loss {run.loss:.4f}")
        loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
        run.backward(loss)  # brim: loss.backward()
        run.step()  # brim: optimizer.step(); optimizer.zero_grad()
    run.report(loss=run.loss)

model.eval()
if run.rank == 0:
    print(repr(write(model, "def __init__(self", 40, run.device)))
    print(f"{run.steps_done} steps, sha256 {run.digest()}")
