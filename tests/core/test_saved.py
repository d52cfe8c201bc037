"""A saved state that an earlier version wrote is read by this one."""

import hashlib
import io
import json

import numpy as np
import pytest

from brim.core.saved import state_bytes, state_of
from brim.core.tables import JOB_COLUMNS, JOB_FLOAT_COLUMNS
from brim.errors import InvariantError
from brim.testing import job, state_with


def written_without(state, *missing):
    """The bytes that a version without some columns of jobs would have written."""
    with np.load(io.BytesIO(state_bytes(state)[32:])) as file:
        arrays = {name: file[name] for name in file.files}
    plain = json.loads(arrays["plain"].tobytes())
    plain["columns"] = [name for name in plain["columns"] if name not in missing]
    arrays["plain"] = np.frombuffer(json.dumps(plain).encode(), dtype=np.uint8)
    for name, columns in (("block", JOB_COLUMNS), ("floats", JOB_FLOAT_COLUMNS)):
        arrays[name] = arrays[name][[row for row, column in enumerate(columns) if column not in missing]]
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return hashlib.sha256(file.getvalue()).digest() + file.getvalue()


def test_a_state_of_an_earlier_version_lacks_columns_of_which_nothing_is_known():
    state = state_with("1x4xV100", job(gpus=2, on=[(0, 0), (0, 1)]), job(gpus=1, at=1), now=5)
    older = written_without(state, "gpu_util_milli", "gpu_mem_mib", "loader_wait_ratio")

    read, _ = state_of(older, state.cluster)

    assert state_bytes(read) == state_bytes(state)
    assert read.freeze(5_000).jobs.gpu_mem_mib.tolist() == [-1, -1]


def test_a_state_that_lacks_a_column_of_every_version_is_refused():
    state = state_with("1x4xV100", job())

    with pytest.raises(InvariantError, match="has columns"):
        state_of(written_without(state, "submit_ms"), state.cluster)
