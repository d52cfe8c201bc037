"""How the golden traces were drawn: ``python -m tests.golden.draw`` writes them anew.

They are kept as files because the streams of NumPy's generators may change between its versions.
"""

from __future__ import annotations

import numpy as np

from brim.core.trace import INT_COLUMNS, NONE, Trace, trace_of

from .cases import JOBS, TRACES_AT


def _draw(seed: int) -> tuple[np.random.Generator, dict[str, object]]:
    """What all three have: arrivals some minutes apart, run times from seconds to hours."""
    rng = np.random.default_rng(seed)
    columns: dict[str, object] = {
        "job_id": [f"job{row}" for row in range(JOBS)],
        "submit_ms": np.cumsum(rng.integers(0, 240_000, JOBS)) // 1_000 * 1_000,
        "run_ms": (10 ** rng.integers(1, 5, JOBS)) * rng.integers(1, 10, JOBS) * 100 + 1_000,
        "user": rng.integers(0, 5, JOBS),
        "users": ("ann", "bob", "cid", "dot", "eve"),
    }
    return rng, columns


def shares() -> Trace:
    """Fractions of GPUs, and cores and memory that bind before GPUs do."""
    rng, columns = _draw(1)
    whole = rng.random(JOBS) < 0.4
    return trace_of(
        name="shares", format="golden", synthetic=True, **columns,
        gpus=np.where(whole, rng.integers(1, 5, JOBS), 1),
        share_milli=np.where(whole, 1000, rng.choice([250, 500, 700], JOBS)),
        cpu_milli=rng.choice([0, 2_000, 8_000], JOBS), mem_mib=rng.choice([0, 4_096, 16_384], JOBS),
    )


def gangs() -> Trace:
    """Gangs larger than any node, and types."""
    rng, columns = _draw(2)
    return trace_of(
        name="gangs", format="golden", synthetic=True, **columns,
        gpus=rng.choice([1, 2, 4, 6, 8, 12, 16], JOBS, p=[0.35, 0.2, 0.2, 0.1, 0.09, 0.03, 0.03]),
        gpu_types=("V100", "A100"), gpu_type=rng.choice([NONE, NONE, 0, 1], JOBS),
    )


def users() -> Trace:
    """Time limits too long and too short, a few users with most of the jobs, and jobs that wait for jobs."""
    rng, columns = _draw(3)
    run_ms = np.asarray(columns["run_ms"])
    limit_ms = run_ms * rng.choice([1, 2, 5], JOBS) // rng.choice([1, 1, 2], JOBS)
    after = np.where(rng.random(JOBS) < 0.2, rng.integers(0, np.arange(JOBS) + 1) - 1, NONE)
    return trace_of(
        name="users", format="golden", synthetic=True,
        **(columns | {"user": rng.choice(5, JOBS, p=[0.5, 0.3, 0.1, 0.05, 0.05])}),
        gpus=rng.choice([1, 2, 4, 8], JOBS), time_limit_ms=np.where(rng.random(JOBS) < 0.8, limit_ms, NONE),
        after=after, after_ms=np.where(after != NONE, rng.integers(0, 600_000, JOBS), 0),
    )


def write(trace: Trace) -> None:
    """Write a trace as ``cases.load`` reads it."""
    columns = [name for name in INT_COLUMNS if name not in ("group", "wait_ms", "jct_ms", "status", "profile", "batch")]
    lines = [f"# users: {' '.join(trace.users)}", f"# types: {' '.join(trace.gpu_types)}"]
    lines.append(",".join(("job_id", *columns)))
    for row, name in enumerate(trace.job_id):
        lines.append(",".join((name, *(str(getattr(trace, column)[row]) for column in columns))))
    TRACES_AT.mkdir(exist_ok=True)
    (TRACES_AT / f"{trace.name}.csv").write_text("\n".join(lines) + "\n", encoding="ascii", newline="\n")


if __name__ == "__main__":
    for make in (shares, gangs, users):
        write(make())
