"""Jobs stand in the order of (submission, natural id), however the ids look and however the rows came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.core.trace import natural_key, trace_of

NUMBERS = st.integers(0, 1200)
IDS = st.one_of(
    st.builds(str, NUMBERS),
    st.builds("application_{}_{}".format, NUMBERS, NUMBERS),
    st.builds("{:03d}".format, NUMBERS),
    st.sampled_from(["", "a", "a1", "a-1", "1\n2", "01", "1", "\u0663", "9" * 30]),
)


@given(rows=st.lists(st.tuples(IDS, st.integers(0, 2)), unique_by=lambda row: row[0], max_size=12), data=st.data())
def test_order_is_that_of_the_natural_key(rows, data):
    shuffled = data.draw(st.permutations(rows))
    trace = trace_of(
        name="x", format="test", job_id=[name for name, _ in shuffled], submit_ms=[time for _, time in shuffled],
        gpus=[1] * len(rows),
    )  # fmt: skip
    assert list(trace.job_id) == [name for name, _ in sorted(rows, key=lambda row: (row[1], natural_key(row[0])))]
