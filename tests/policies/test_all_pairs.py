"""No combination of shipped parts reads outside its arrays: runs ``all_pairs.py`` with bounds checks."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.sampling import sample

from .all_pairs import pairs


def test_no_pair_of_size_and_place_parts_leaves_its_arrays():
    done = subprocess.run(
        [sys.executable, "-m", "tests.policies.all_pairs", str(sample(6, 2))],
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1"}, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["bounds are checked", f"{len(list(pairs()))} pairs"]
