"""``brim sim reproduce padding``: training in the gaps of the four windows with the most task switches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from brim.errors import ConfigError

if TYPE_CHECKING:
    from brim.core.trace import Trace
    from brim.reports.experiment import Experiment, TextTable
    from brim.sim.reproduce.padding import Trained, Way, Window

SEED: Final = 0
JOBS: Final = 20_000
WIDTH: Final = 8
LOAD: Final = 0.5
"""GPUs of a node of the cluster that the jobs run on, and its offered load if every task has a GPU of its own. Ours."""
IDLE_SHARES: Final = (0.2, 0.35, 0.5, 0.65, 0.8)
SWITCHES: Final = (0.5, 1.0, 4.0)
QUICK_IDLE_SHARES, QUICK_SWITCHES = (0.35, 0.65), (1.0,)
PRICES: Final = (0.05, 0.1, 0.13, 0.2, 0.3)


def measure(trace: Path | None, *, quick: bool) -> tuple[list[Window], Trace, list[Trained], list[Trained]]:
    """Find the windows and run every point.

    Returns:
        The windows, the trace they are from, ours in these windows and then each way with the idle share that the
        paper's time means, and ours at other idle shares and switch rates.
    """
    from brim.sim.reproduce.padding import IMPLIED_IDLE, OURS, WAYS, changed

    jobs = _trace(trace)
    windows = _windows(jobs)
    stretched = [changed(window, IMPLIED_IDLE, 1.0) for window in windows]
    ways = [trained(windows, OURS), *(trained(stretched, way) for way in WAYS)]
    shares, switches = (QUICK_IDLE_SHARES, QUICK_SWITCHES) if quick else (IDLE_SHARES, SWITCHES)
    grid = [
        trained([changed(window, share, rate) for window in windows], OURS) for rate in switches for share in shares
    ]
    return windows, jobs, ways, grid


def measure_headline(trace: Path | None) -> Trained:
    """Run ours alone, with the idle share that the paper's time means."""
    from brim.sim.reproduce.padding import IMPLIED_IDLE, OURS, changed

    return trained([changed(window, IMPLIED_IDLE, 1.0) for window in _windows(_trace(trace))], OURS)


def trained(windows: list[Window], way: Way) -> Trained:
    """Replay windows with and without the padding job."""
    import numpy as np

    from brim.core.cluster import parse_cluster
    from brim.core.trace import JobClass
    from brim.policies.presets import find_policy
    from brim.sim.overheads import Overheads, PaddingCosts
    from brim.sim.reproduce.padding import GPUS, jobs_in, outcome, protein_truth
    from brim.sim.twin import ReplaySettings, replay

    print(f"brim: {way.name}, {1 - _busy(windows):.0%} idle", file=sys.stderr)
    cluster, policy = parse_cluster(f"1x{GPUS}xV100"), find_policy("fifo+padding")
    trace = jobs_in(windows, gpus_min=way.gpus_min, gpus_max=way.gpus_max, batch=way.model.batch)
    truth = protein_truth(trace, cluster, gpus_min=way.gpus_min, gpus_max=way.gpus_max, model=way.model)
    settings = ReplaySettings(overheads=Overheads(padding=PaddingCosts(in_place=way.in_place)))
    with_it = replay(trace, cluster, policy, settings, truth=truth)
    tasks = trace.take(np.flatnonzero(trace.job_class != JobClass.PADDING))
    return outcome(with_it, replay(tasks, cluster, policy, settings), windows, way)


def _busy(windows: Sequence[Window]) -> float:
    return 1.0 - sum(window.idle_share for window in windows) / len(windows)


def _trace(path: Path | None) -> Trace:
    """The trace given, or jobs drawn from the marginals of PAI."""
    from brim.traces import read
    from brim.traces.synth import synthesize

    if path is None:
        return synthesize("pai", JOBS, SEED)
    return read(str(path), None)[0]


def _windows(trace: Trace) -> list[Window]:
    """Replay the trace, each task on GPUs of its own, on a cluster that this loads to ``LOAD``; choose windows."""
    import math
    from dataclasses import replace

    import numpy as np

    from brim.core.arrays import frozen
    from brim.core.cluster import parse_cluster
    from brim.policies.place.parts import Spread
    from brim.policies.presets import PRESETS
    from brim.sim.reproduce.padding import busiest_windows
    from brim.sim.twin import replay
    from brim.units import WHOLE_GPU

    if not trace.span_ms:
        raise ConfigError(f"{trace.name}: all jobs are submitted at the same time, expected a trace of hours")
    whole = replace(trace, share_milli=frozen(np.full(len(trace), WHOLE_GPU)))
    widest = max(WIDTH, int(trace.gpus.max()))
    nodes = max(1, math.ceil(float(whole.gpu_ms.sum()) / trace.span_ms / LOAD / widest))
    found = replay(whole, parse_cluster(f"{nodes}x{widest}xV100"), replace(PRESETS["fifo"], place=Spread("skip")))
    return busiest_windows(found.runs, found.end_ms)


# -- the report --------------------------------------------------------------------------------------------------------


def experiment_of(
    windows: Sequence[Window], trace: Trace, ways: Sequence[Trained], grid: Sequence[Trained], command: str
) -> Experiment:
    """Return everything that the report shows."""
    from brim.reports.experiment import Experiment, Panel
    from brim.sim.reproduce.padding import IMPLIED_IDLE, PRICE

    where = ", ".join(f"{window.switches} switches, {window.idle_share:.0%} idle" for window in windows)
    return Experiment(
        title="PaddingTorch, re-measured", badges=("synthetic jobs",) if trace.synthetic else (), alarm="",
        about=f"A protein model in the gaps of four GPUs: windows of 6 h with the most task switches, {trace.name}.",
        findings=tuple(findings(ways, grid)),
        panels=(
            Panel(title="The four windows", note=f"Windows: {where}.", charts=(), table=_table(ways[:1])),
            Panel(
                title=f"With {IMPLIED_IDLE:.0%} idle, as the paper's time means for o = 0",
                note="Gaps and tasks of the windows stretched to this share; ours, three other ways to use gaps, and "
                "ours with the measured step times of examples/train_proteins.py.",
                charts=(), table=_table(ways[1:]),
            ),
            Panel(title="Other idle shares and switch rates", note="The same windows, gaps and tasks stretched.",
                  charts=(), table=_table(grid)),
            Panel(title="Prices", note="Cost of padding over reserved GPUs, price (1 + o).", charts=(),
                  table=_prices(ways[1])),
        ),
        terms=_TERMS, notes=(*_notes(trace), f"Price of padding: {PRICE} of a reserved GPU."), command=command,
    )


_TERMS: Final = (
    ("T/T0", "time of the padding job over that on four GPUs of its own"),
    ("o", "GPU time it held over that on GPUs of its own, less 1"),
    ("cost", "price (1 + o) - 1: change against reserved GPUs"),
    ("busy", "share of GPU time held by tasks, then by tasks and padding; points between both, and relative"),
    ("JCT", "change of the tasks' mean completion time; late: most that a task started later for padding"),
)


def _table(outcomes: Sequence[Trained]) -> TextTable:
    from brim.reports.experiment import TextTable
    from brim.sim.reproduce.padding import PRICE

    rows = tuple((
        one.way, f"{one.idle_share:.0%}", f"{one.switches_per_h:.1f}",
        _ratio(one), f"{one.overhead:+.0%}",
        f"{one.cost_ratio() - 1:+.1%}", str(PRICE), f"{one.busy_before:.1%}", f"{one.busy_after:.1%}",
        f"{100 * (one.busy_after - one.busy_before):+.1f}", f"{one.busy_after / one.busy_before - 1:+.0%}",
        str(one.changes), f"{one.lost_share:.1%}", f"{one.jct_change:+.3%}", f"{one.late_ms_max / 1000:.1f} s",
    ) for one in outcomes)
    return TextTable(
        headings=(
            "way", "idle", "switches/h", "T/T0", "o", "cost", "price", "busy", "with padding", "points", "relative",
            "changes", "lost", "JCT", "late",
        ),
        rows=rows, dropped_first=("relative", "busy", "price", "late", "switches/h"),
    )


def _ratio(one: Trained) -> str:
    return f"{one.time_ratio:.2f}x" if one.time_ratio < float("inf") else "did not end"


def _in_words(one: Trained) -> str:
    return f"{_ratio(one)} the time" if one.time_ratio < float("inf") else "it does not end in 16 windows"


def _prices(ours: Trained) -> TextTable:
    from brim.reports.experiment import TextTable

    rows = tuple((str(price), f"{ours.overhead:+.0%}", f"{ours.cost_ratio(price) - 1:+.1%}") for price in PRICES)
    return TextTable(headings=("price", "o", "cost"), rows=rows)


def findings(ways: Sequence[Trained], grid: Sequence[Trained]) -> list[str]:
    """Sentences: the published numbers, and ours beside them."""
    from brim.sim.reproduce.padding import PRICE, PUBLISHED

    said = [
        f"Published: {PUBLISHED['time']}x the time, {PUBLISHED['cost']:+.0%} cost, {PUBLISHED['utilisation']:+.1%} "
        "utilisation; neither windows, price, overhead nor the unit of the last are public.",
        *(
            f"Re-measured {where}: {_in_words(one)}, {one.cost_ratio() - 1:+.1%} cost at price {PRICE} and "
            f"o = {one.overhead:+.1%}, {100 * (one.busy_after - one.busy_before):+.1f} points of GPU time "
            f"({one.busy_after / one.busy_before - 1:+.0%}); mean JCT of the tasks {one.jct_change:+.3%}."
            for where, one in (("in the four windows", ways[0]), ("at the idle share of the paper's time", ways[1]))
        ),
    ]
    ours = ways[1]
    point = at_ratio(grid, PUBLISHED["time"])
    if point:
        idle, overhead, points = point
        said.append(
            f"At the paper's {PUBLISHED['time']}x the tasks leave {idle:.0%} of GPU time: "
            f"{PRICE * (1 + overhead) - 1:+.1%} cost at price {PRICE} and o = {overhead:+.1%} (interpolated at the "
            f"windows' switch rate), {points:+.1f} points."
        )
    said.append(f"-84 % needs price (1 + o) = 0.16: a price of {0.16 / (1 + ours.overhead):.3f} at our o.")
    return said


def at_ratio(grid: Sequence[Trained], ratio: float) -> tuple[float, float, float] | None:
    """Idle share, overhead and points of utilisation where T/T0 reaches a ratio; None outside what was run."""
    import numpy as np

    rates = sorted({round(one.switches_per_h, 6) for one in grid})
    middle = rates[len(rates) // 2]
    line = sorted(
        (one for one in grid if round(one.switches_per_h, 6) == middle and one.time_ratio < float("inf")),
        key=lambda one: one.time_ratio,
    )
    if len(line) < 2 or not line[0].time_ratio <= ratio <= line[-1].time_ratio:
        return None
    at = [one.time_ratio for one in line]
    idle, overhead, points = (
        float(np.interp(ratio, at, values)) for values in (
            [one.idle_share for one in line], [one.overhead for one in line],
            [100 * (one.busy_after - one.busy_before) for one in line],
        )
    )
    return idle, overhead, points


def _notes(trace: Trace) -> tuple[str, ...]:
    source = (
        "The PAI trace was not given (--trace): jobs are drawn from its published marginals, and their switches are "
        "not those of the record." if trace.synthetic else f"Jobs of {trace.name}."
    )
    return (
        f"{source} They are replayed, each task on GPUs of its own, in order of arrival and spread over a cluster that "
        f"this loads to {LOAD:.0%}: the record names machines, not GPUs, so the idle share of the windows is ours.",
        "Windows of 6 h in steps of 10 min, the best of each GPU, four GPUs; ours: the paper's length is not public. "
        "They begin together and repeat until the padding job has ended, at most 16 times.",
        "The padding job: a transformer of 100 M parameters, computed step times (no measured protein predictor), "
        "a constant batch of 128, two hours on four GPUs of its own. train_proteins: our example, a constant batch of "
        "64, step times fitted to 1 and 2 ranks on CPU, extrapolated to 3 and 4. Both change their GPUs in place: "
        "0.2 s, a rank that joins works after 5 s, and a preempted job saves for 5 s and restarts in 30 s.",
        "Baselines are not charged for writing checkpoints, which they do every sqrt(2 x 1 s x time between losses).",
        "Billed per second from GPUs granted to GPUs free, joins and lost work included. Utilisation is GPU time held.",
    )


def outcomes_json(ways: Sequence[Trained], grid: Sequence[Trained], windows: Sequence[Window]) -> dict[str, Any]:
    """Everything measured, as plain data."""
    from brim.sim.reproduce.padding import PRICE, PUBLISHED

    def row(one: Trained) -> dict[str, Any]:
        found = asdict(one) | {"cost_ratio": one.cost_ratio(), "price": PRICE}
        return found | {"time_ratio": one.time_ratio if one.time_ratio < float("inf") else None}

    return {
        "schema": 1, "experiment": "padding", "verdict": "re-measured", "published": dict(PUBLISHED),
        "windows": [{"gpu": w.gpu, "begin_ms": w.begin_ms, "switches": w.switches, "idle_share": w.idle_share}
                    for w in windows],
        "windows_outcomes": [row(one) for one in ways], "grid": [row(one) for one in grid],
    }
