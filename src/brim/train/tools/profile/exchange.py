"""Measures the time of an all-reduce by its size, in ranks that the launcher has started.

    python -m brim.train.launch --nproc 2 -m brim.train.tools.profile.exchange OUT cpu|cuda REPETITIONS BYTES,BYTES,...

The first repetition is a warm-up. Rank 0 writes the median of the others to OUT, as ``{"bytes": seconds}``.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from brim.train.environment import choose_device
from brim.train.membership.process_group import ProcessGroup
from brim.train.membership.static_group import static_group

TIMEOUT_S = 120.0
"""Time-out of one all-reduce. Our choice."""


def all_reduce_s(group: ProcessGroup, num_bytes: int, repetitions: int) -> float:
    """Return the median time, in seconds, of an all-reduce of this many bytes of float32; all ranks begin together."""
    vector = torch.ones(max(1, num_bytes // 4), dtype=torch.float32, device=group.device)
    took_s = []
    for _ in range(repetitions):
        group.share([0])
        began_s = time.perf_counter()
        group.all_reduce(vector).wait()
        if group.device.type == "cuda":
            torch.cuda.synchronize(group.device)
        took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s[1:])


def main(words: Sequence[str]) -> None:
    """Measure all sizes."""
    out, kind, repetitions, sizes = Path(words[0]), words[1], int(words[2]), [int(size) for size in words[3].split(",")]
    group = static_group(choose_device(None if kind == "cuda" else kind), TIMEOUT_S)
    assert group is not None
    found = {str(size): all_reduce_s(group, size, repetitions) for size in sizes}
    if group.rank == 0:
        part = out.with_suffix(".part")
        part.write_text(json.dumps(found), encoding="utf-8")
        os.replace(part, out)
    group.share([0])  # no rank leaves before all are done
    group.close()


if __name__ == "__main__":
    main(sys.argv[1:])
