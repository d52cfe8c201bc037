"""The golden traces and how a replay of one is written down."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from brim.core.cluster import parse_cluster
from brim.core.trace import Trace, trace_of
from brim.policies.presets import PRESETS
from brim.sim.faults import Drain, Faults
from brim.sim.overheads import Overheads
from brim.sim.twin import ReplaySettings, replay

TABLES, TRACES_AT = Path(__file__).parent / "tables", Path(__file__).parent / "traces"
JOBS = 60
CLUSTERS = {
    "shares": "2x4xT4:cpus=32,mem=64GB",
    "gangs": "3x4xV100+2x8xA100+2x2xV100",
    "users": "4x4xT4",
}
TRACES = tuple(CLUSTERS)
BROKEN = Faults(drains=(Drain(nodes=(1,), start_ms=1_800_000, end_ms=7_200_000),))


def load(name: str) -> Trace:
    """Read a golden trace: users and types in a comment each, then a table of columns."""
    users, types, head, *rows = (TRACES_AT / f"{name}.csv").read_text(encoding="ascii").splitlines()
    columns = list(zip(*(row.split(",") for row in rows), strict=True))
    given = dict(zip(head.split(","), columns, strict=True))
    ids = list(given.pop("job_id"))
    return trace_of(
        name=name, format="golden", synthetic=True, job_id=ids, users=tuple(users.split()[2:]),
        gpu_types=tuple(types.split()[2:]),
        **{column: np.array(values, dtype=np.int64) for column, values in given.items()},
    )


def names() -> list[tuple[str, str]]:
    """Every (trace, policy)."""
    return [(trace, policy) for trace in TRACES for policy in PRESETS]


def table(trace: Trace, cluster: str, policy: str) -> str:
    """Replay and write one row per job: what happened, and the GPUs of its last stretch."""
    where = parse_cluster(cluster)
    settings = ReplaySettings(overheads=Overheads(start_ms=1_000), faults=BROKEN if trace.name == "users" else Faults())
    outcome = replay(trace, where, PRESETS[policy], settings)
    runs = outcome.runs
    last = {int(job): row for row, job in enumerate(runs.job)}
    head = f"# {trace.name} on {where} under {policy}: {outcome.rounds} rounds, end {outcome.end_ms} ms"
    lines = [head, "job first_start_ms finish_ms service_gpu_ms useful_gpu_ms preemptions restarts last_gpus"]
    for job, name in enumerate(trace.job_id):
        row = last[job]
        gpus = ",".join(str(gpu) for gpu in runs.gpu[runs.first_gpu[row] : runs.first_gpu[row + 1]])
        lines.append(" ".join(str(value) for value in (
            name, outcome.first_start_ms[job], outcome.finish_ms[job], outcome.service_gpu_ms[job],
            outcome.useful_gpu_ms[job], outcome.preemptions[job], outcome.restarts[job], gpus,
        )))
    return "\n".join(lines) + "\n"


def path_of(trace: str, policy: str) -> Path:
    """Where the table of a trace and a policy stands."""
    return TABLES / trace / f"{policy}.txt"
