"""One sample takes much longer than the others: workers go on, the order stays, memory is bounded."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from brim.train.data import prefetch
from brim.train.data.loader import Loader
from tests.train.data.loading import take

LENGTH = 64
GIVE_UP_S = 60.0


class Waiting(Dataset):
    """Its first sample is loaded when so many others were; each other leaves a byte in a file.

    Args:
        least: So many others are loaded sooner or later.
        give_up_s: How much longer it waits for the rest.
    """

    def __init__(self, folder: Path, others: int, least: int = 0, give_up_s: float = GIVE_UP_S) -> None:
        self.path, self.others, self.least, self.give_up_s = folder / "loaded", others, least, give_up_s
        self.path.touch()

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        if index:
            with self.path.open("ab", buffering=0) as file:
                file.write(b".")
        else:
            self._wait_for(self.least, GIVE_UP_S)
            self._wait_for(self.others, self.give_up_s)
        return torch.full((128,), index)

    def _wait_for(self, loaded: int, at_most_s: float) -> None:
        until = time.monotonic() + at_most_s
        while os.path.getsize(self.path) < loaded:
            if time.monotonic() > until:
                raise TimeoutError("the others were not loaded")
            time.sleep(0.001)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_go_on_while_one_sample_takes_long_and_the_order_stays(tmp_path, workers):
    """Thirty others are loaded before the first is, although only two a worker are prefetched otherwise."""
    with Loader(Waiting(tmp_path, others=30), 1, workers=workers, shuffle=False) as loader:
        assert [int(batch[0, 0]) for batch in take(loader)] == list(range(LENGTH))


def test_no_more_is_loaded_ahead_than_memory_allows(tmp_path, monkeypatch):
    """A batch has a kilobyte and its pickle: ten of them fit, so twenty others are never loaded first."""
    monkeypatch.setattr(prefetch, "AHEAD_BYTES", 16 << 10)
    waiting = Waiting(tmp_path, others=20, least=5, give_up_s=1.0)
    with Loader(waiting, 1, workers=2, shuffle=False) as loader:
        with pytest.raises(TimeoutError, match="the others were not loaded"):
            loader.fetch(0, 0, 0)
        assert 4 < os.path.getsize(tmp_path / "loaded") < 20
