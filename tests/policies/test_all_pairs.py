"""No combination of shipped parts reads outside its arrays: runs ``all_pairs.py`` with bounds checks.

Python checks indices as compiled code with bounds checks does, and needs no compilation, which takes 40 s of CPU time.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests import sampling
from tests.sampling import sample

from .all_pairs import pairs


def test_no_pair_of_size_and_place_parts_leaves_its_arrays():
    checked = "NUMBA_BOUNDSCHECK" if sampling.full else "NUMBA_DISABLE_JIT"
    done = subprocess.run(
        [sys.executable, "-m", "tests.policies.all_pairs", str(sample(6, 1))],
        env=os.environ | {checked: "1"}, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["bounds are checked", f"{len(list(pairs(every_order=sampling.full)))} pairs"]
