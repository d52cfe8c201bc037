"""Small jobs: dropout; convolutions, batch-norm; a transformer with AdamW and clipping; 50 MB of gradients (two)."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

SAMPLES = 78


class Attention(nn.Module):
    def __init__(self, width=32, words=29, length=12):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, words)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, x):
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        return self.out(self.layers(h, mask=self.mask, is_causal=True))


class Rows(torch.utils.data.Dataset):
    def __init__(self, kind, samples=SAMPLES):
        generator = torch.Generator().manual_seed(7)
        if kind == "words":
            rows = torch.randint(0, 29, (samples, 13), generator=generator)
            self.x, self.y = rows[:, :-1], rows[:, 1:]
        else:
            shape = (samples, 20) if kind == "rows" else (samples, 3, 12, 12)
            self.x = torch.randn(shape, generator=generator)
            self.y = torch.randint(0, 5, (samples,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def mlp():
    model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 5))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), "rows", None


def conv():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), "images", None


def transformer():
    model = Attention()
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3), "words", 0.5


def wide():
    model = nn.Sequential(nn.Linear(20, 2500), nn.ReLU(), nn.Linear(2500, 4900), nn.ReLU(), nn.Linear(4900, 5))
    return model, torch.optim.SGD(model.parameters(), lr=0.05), "rows", None


def heavy():
    model, _, kind, max_norm = wide()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), kind, max_norm


JOBS = {"mlp": mlp, "conv": conv, "transformer": transformer, "wide": wide, "heavy": heavy}


def loss_of(output, target):
    return cross_entropy(output.flatten(0, -2), target.flatten())
