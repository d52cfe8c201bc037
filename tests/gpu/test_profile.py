"""A profile on a GPU: memory ends the range, and figures are those of the device; skipped where there is none."""

import sys

import pytest
import torch

from brim.cli.profiling import MEMORY_SHARE, measure
from brim.train.tools.profile.gang import Script

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SCRIPT = """
import torch
import brim.train as bt

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 1 << 16
    def __getitem__(self, i): return torch.full((4,), i / 65536), torch.tensor([0.5])

run = bt.start(seed=1)
model = torch.nn.Linear(4, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = run.loader(Numbers(), global_batch=64, workers=0)
for epoch in run.epochs(1):
    for x, y in run.steps(loader):
        wide = model(x).repeat(1, 1 << 24)  # 64 MiB for each sample, and as much for its gradient
        run.backward((wide * wide).mean())
        run.step()
"""


def test_memory_ends_the_range_close_to_its_limit(tmp_path):
    (tmp_path / "s.py").write_text(SCRIPT)
    script = Script(python=sys.executable, words=(str(tmp_path / "s.py"),), folder=tmp_path, timeout_s=200)
    found = measure(script, ranks=(1,))
    memory = [row.memory_bytes for row in found.steps]
    assert memory == sorted(memory)
    assert memory[0] > 64 * 2**20 * found.steps[0].local_batch
    assert 0.7 * MEMORY_SHARE * found.header.memory_bytes < memory[-1] < found.header.memory_bytes
    assert all(row.power_w is None or 10 < row.power_w < 2_000 for row in found.steps)
