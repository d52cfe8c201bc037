"""Tell protein families apart by the short motif that their sequences share.

Alone:         python examples/train_proteins.py --steps 100
On two ranks:  python -m brim.train.launch --nproc 2 examples/train_proteins.py --steps 100

Both print the same SHA-256. Lines marked "brim" differ from a plain loop.

The sequences are synthetic; `sequence` below makes each from its number alone. Residues are drawn
independently with the frequencies they have in UniProtKB/Swiss-Prot, at a length of 40 to 100; then one instance of a
motif of PROSITE is written at a place drawn at random, unless the family is "none". Nothing else tells families apart.
"""

import argparse
import os
import random
import re

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import brim.train as bt

PERCENT = {
    "A": 8.25, "R": 5.53, "N": 4.06, "D": 5.46, "C": 1.38, "Q": 3.93, "E": 6.72, "G": 7.07, "H": 2.27, "I": 5.91,
    "L": 9.65, "K": 5.80, "M": 2.41, "F": 3.86, "P": 4.74, "S": 6.65, "T": 5.36, "W": 1.10, "Y": 2.92, "V": 6.86,
}
MOTIFS = {
    "none": "",
    "zinc finger C2H2": "C-x(2,4)-C-x(3)-[LIVMFYWC]-x(8)-H-x(3,5)-H",  # PS00028
    "P-loop": "[AG]-x(4)-G-K-[ST]",  # PS00017
    "EF hand": "D-{W}-[DNS]-{ILVFYW}-[DENSTG]-[DNQGHRK]-{GP}-[LIVMC]-[DENQSTAGC]-x(2)-[DE]-[LIVMFYW]",  # PS00018
}
RESIDUES = "".join(PERCENT)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=300, help="total number of optimizer steps (default 300)")
parser.add_argument("--checkpoint", metavar="FOLDER", default=os.environ.get("BRIM_CKPT_DIR"),
                    help="save to this folder, and resume from it; by default, the job's own under `brim up`")
options = parser.parse_args()


def residues(draw: random.Random, count: int) -> str:
    """Draw this many residues with the background frequencies."""
    return "".join(draw.choices(RESIDUES, list(PERCENT.values()), k=count))


def instance(draw: random.Random, motif: str) -> str:
    """Draw a match of a PROSITE pattern: x is any residue, [AG] one of these, {AG} any other, (2,4) a repetition."""
    made = ""
    for part in filter(None, motif.split("-")):
        what, least, most = re.fullmatch(r"(x|\w|\[\w+\]|\{\w+\})(?:\((\d+)(?:,(\d+))?\))?", part).groups()
        count = draw.randint(int(least or 1), int(most or least or 1))
        if what == "x":
            made += residues(draw, count)
        else:
            fits = [one for one in RESIDUES if (one in what) != what.startswith("{")]
            made += "".join(draw.choices(fits, k=count))
    return made


def sequence(number: int) -> tuple[str, int]:
    """Return the sequence with this number, and its family."""
    draw = random.Random(f"proteins {number}")
    family = number % len(MOTIFS)
    made = residues(draw, draw.randint(40, 100))
    motif = instance(draw, list(MOTIFS.values())[family])
    start = draw.randint(0, len(made) - len(motif))
    return made[:start] + motif + made[start + len(motif) :], family


class Proteins(Dataset):
    """Sequences by number."""

    def __init__(self, numbers: range):
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        letters, family = sequence(self.numbers[index])
        return torch.tensor([1 + RESIDUES.index(letter) for letter in letters]), family


def collate(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad sequences with zeros to the longest of the batch."""
    sequences, families = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(sequences, batch_first=True), torch.tensor(families)


class Families(nn.Module):
    """Convolutions over the sequence, the maximum of each channel, and a linear layer."""

    def __init__(self, width: int = 48):
        super().__init__()
        self.residues = nn.Embedding(1 + len(RESIDUES), 16, padding_idx=0)
        self.convolutions = nn.Sequential(
            nn.Conv1d(16, width, 9, padding=4), nn.GELU(), nn.Dropout(0.1),
            nn.Conv1d(width, width, 9, padding=4), nn.GELU(),
        )
        self.out = nn.Linear(width, len(MOTIFS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.convolutions(self.residues(x).transpose(1, 2))
        return self.out(h.masked_fill((x == 0)[:, None], float("-inf")).amax(2))


run = bt.start(logical_workers=4, seed=0, checkpoint=options.checkpoint)  # brim: first, so that weights are seeded
model = Families()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = run.prepare(model, optimizer)  # brim
training, held_out = Proteins(range(4000)), Proteins(range(4000, 4400))
loader = run.loader(training, global_batch=64, workers=0, collate=collate)  # brim: DataLoader

for _ in run.epochs(100, steps=options.steps):  # brim: for _ in range(100)
    model.train()
    for x, y in run.steps(loader):  # brim: for x, y in loader
        loss = cross_entropy(model(x), y)
        run.backward(loss)  # brim: loss.backward()
        run.step()  # brim: optimizer.step(); optimizer.zero_grad()
    model.eval()
    x, y = collate([held_out[index] for index in range(len(held_out))])
    with torch.no_grad():
        found = model(x.to(run.device)).argmax(1).cpu()
    accuracy = (found == y).float().mean().item()
    run.report(accuracy=accuracy)
    if run.rank == 0:
        print(f"step {run.steps_done:4}  loss {run.loss:.4f}  accuracy on sequences not seen {accuracy:.3f}")

if run.rank == 0:
    print(f"{run.steps_done} steps, sha256 {run.digest()}")
