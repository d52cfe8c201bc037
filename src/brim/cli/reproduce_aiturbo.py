"""``brim sim reproduce aiturbo``: jobs of which only some can be predicted, under AITurbo and its peers."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from brim.cli.outputs import console
from brim.reports.experiment import TextTable, fitting_table

if TYPE_CHECKING:
    from brim.sim.reproduce.aiturbo_sweep import Factor, SweepResult, SweptReplay
    from brim.sim.reproduce.master import Headline

INTERRUPTED = 130
OURS: Final = "aiturbo"
CLAIRVOYANT: Final = "true remaining time"
PUBLISHED: Final = {"optimus": 1.8 / 1.24, "srtf": 1.9 / 1.24, "tiresias": 2.8 / 1.24, "fifo": 4.2 / 1.24}
"""Mean completion time over AITurbo's, of the plots of its successor (github.com/MaoZzzzz/Aiturbo-vGPU)."""


class Findings:
    """What the replays came to, by group, share, policy and seed."""

    def __init__(self, planned: Sequence[SweptReplay], found: Sequence[SweepResult]) -> None:
        self._found = {
            (one.group, one.point.unpredictable, one.label, one.point.seed): result
            for one, result in zip(planned, found, strict=True)
        }

    def shares(self, group: str) -> list[float]:
        """Shares of unpredictable jobs in a group of replays."""
        return sorted({share for name, share, _, _ in self._found if name == group})

    def labels(self, group: str) -> list[str]:
        """Policies of a group of replays, in the order of running them."""
        return list(dict.fromkeys(label for name, _, label, _ in self._found if name == group))

    def of(self, group: str, share: float, label: str, seeds: int | None = None) -> list[SweepResult]:
        """The results of one policy by seed."""
        found = {key[3]: result for key, result in self._found.items() if key[:3] == (group, share, label)}
        return [found[seed] for seed in sorted(found) if seeds is None or seed < seeds]

    def jct(self, group: str, share: float, label: str) -> float:
        """Mean completion time over seeds, min."""
        return _mean(self.of(group, share, label))

    def factor(self, share: float, label: str, group: str = "sweep") -> Factor:
        """Ours over that of a policy in a group; ours is that of the sweep where the group has none."""
        from brim.sim.reproduce.aiturbo_sweep import factor

        theirs = self.of(group, share, label)
        ours = self.of(group, share, OURS) or self.of("sweep", share, OURS, len(theirs))
        return factor([one.jct_min for one in ours], [one.jct_min for one in theirs])

    def best_peer(self, share: float) -> str:
        """The peer with the least mean completion time."""
        from brim.sim.reproduce.aiturbo_sweep import PEER_NAMES

        return min(PEER_NAMES, key=lambda name: self.jct("sweep", share, name))


def reproduce_aiturbo(*, quick: bool, output: str) -> None:
    """Run the experiment and print it; with ``quick`` three shares, two seeds, and the sweep alone."""
    from brim.reports.files import dump_json
    from brim.sim.reproduce.aiturbo_sweep import plan

    planned = plan(quick=quick)
    results = run(planned)
    found = Findings(planned, results)
    if output == "json":
        print(dump_json(as_json(planned, results)))
        return
    shown: list[RenderableType] = []
    if quick:
        shown.append(Text("--quick: 2 of 20 seeds and 3 of 5 shares; the full run gives other figures."))
    shown += [*_sweep(found), *_gap(found), *_devices(found), *_published(found)]
    if not quick:
        shown += [*_parts(found), *_crossing(found), *_others(found)]
    console().print(Group(*shown))


def run(planned: Sequence[SweptReplay]) -> list[SweepResult]:
    """Run replays."""
    from brim.cli.replays import Task, run_all
    from brim.sim.reproduce.aiturbo import workload
    from brim.sim.reproduce.aiturbo_sweep import SweepTruth, measured
    from brim.sim.twin import ReplaySettings

    drawn = {point: workload(point) for point in dict.fromkeys(one.point for one in planned)}
    tasks = [
        Task(trace=drawn[one.point].trace, cluster=drawn[one.point].cluster, policy=one.policy,
             settings=ReplaySettings(), truth=SweepTruth(one.point))
        for one in planned
    ]
    print(f"brim: {len(tasks)} replays", file=sys.stderr)
    results = [measured(replay) for replay in run_all(tasks) if not replay.partial]
    if len(results) < len(tasks):
        print(f"brim: partial: {len(results)} of {len(tasks)} replays are complete: nothing to report", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    return results


def headlines(found: Findings, seeds: int) -> list[Headline]:
    """Rows 4, 5, 6 and 9 of the table of headline numbers, from the sweep."""
    from brim.sim.reproduce.aiturbo_sweep import PEER_NAMES
    from brim.sim.reproduce.master import aiturbo_rows

    shares = found.shares("sweep")
    lower = [1 / found.factor(share, found.best_peer(share)).mean for share in shares]
    every = {
        label: [one for share in shares for one in found.of("sweep", share, label)] for label in (OURS, *PEER_NAMES)
    }
    held = {label: float(np.mean([(one.gpus_held + one.cores_held) / 2 for one in of])) for label, of in every.items()}
    gap = {label: float(np.mean([one.gap_p80 for one in of])) for label, of in every.items()}
    ratios = {label: [1 / found.factor(share, label).mean for share in shares] for label in PUBLISHED}
    return aiturbo_rows(lower, held, gap, ratios, PUBLISHED, seeds)


def as_json(planned: Sequence[SweptReplay], results: Sequence[SweepResult]) -> dict[str, Any]:
    """Every replay's conditions and figures."""
    return {"schema": 1, "replays": [
        {
            "group": one.group, "policy": one.label, "jobs": one.point.jobs, "unpredictable": one.point.unpredictable,
            "load": one.point.load, "coupled": one.point.coupled, "estimate_sd": one.point.estimate_sd,
            "seed": one.point.seed,
            **{name: None if math.isnan(value) else value for name, value in result._asdict().items()},
        }
        for one, result in zip(planned, results, strict=True)
    ]}


def _mean(found: Sequence[SweepResult]) -> float:
    """Mean completion time over seeds, min."""
    return float(np.mean([one.jct_min for one in found]))


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _told(found: Factor) -> str:
    interval = "one seed" if math.isnan(found.low) else f"{found.low:.2f} to {found.high:.2f}"
    return f"{found.mean:.2f} ({interval})"


def _sweep(found: Findings) -> Iterator[RenderableType]:
    labels = found.labels("sweep")
    yield Text("Mean completion time (min) by share of unpredictable jobs: re-measured", "bold")
    yield Text("60 jobs with parameter servers, 2 nodes of 2 GPUs and 32 cores, load 0.9; ratio to the best peer of "
               "the same seeds, geometric mean with its 95 % interval.")
    rows = []
    for share in found.shares("sweep"):
        best = found.best_peer(share)
        rows.append((
            _percent(share), *(f"{found.jct('sweep', share, label):.1f}" for label in labels), best,
            _told(found.factor(share, best)),
        ))
    yield fitting_table(TextTable(headings=("Unpredictable", *labels, "best peer", "ratio to it"), rows=tuple(rows)))


def _gap(found: Findings) -> Iterator[RenderableType]:
    yield Text("\nHow much knowing the future would add: mean completion time (min)", "bold")
    yield Text("\"true remaining time\" is aiturbo with the true remaining times in its order. All means of "
               "a row are over the same seeds; closed is the part of the gap from the best peer to it aiturbo closes.")
    rows = []
    for share in found.shares("sweep"):
        best, clairvoyant = found.best_peer(share), found.of("clairvoyant", share, CLAIRVOYANT)
        seeds, knows = len(clairvoyant), _mean(clairvoyant)
        peer, ours = (_mean(found.of("sweep", share, name, seeds)) for name in (best, OURS))
        closed = _percent((peer - ours) / (peer - knows)) if peer > knows else "-"
        rows.append((_percent(share), str(seeds), f"{peer:.1f}", f"{ours:.1f}", f"{knows:.1f}", closed))
    yield fitting_table(TextTable(
        headings=("Unpredictable", "seeds", "best peer", OURS, CLAIRVOYANT, "closed"), rows=tuple(rows),
    ))


def _devices(found: Findings) -> Iterator[RenderableType]:
    yield Text("\nShort and long jobs, devices and decisions: means over all shares", "bold")
    yield Text("GPUs and cores held, of all, while jobs arrive; 80th percentile over that time of the difference "
               "of both shares (published: 60 % before, 40 % under AITurbo).")
    rows = []
    for label in found.labels("sweep"):
        every = [one for share in found.shares("sweep") for one in found.of("sweep", share, label)]
        mean = {name: float(np.nanmean([getattr(one, name) for one in every])) for name in every[0]._fields}
        rows.append((
            label, f"{mean['short_min']:.1f}", f"{mean['long_min']:.1f}", f"{mean['makespan_min']:.0f}",
            _percent(mean["gpus_held"]), _percent(mean["cores_held"]), _percent(mean["gap_p80"]),
            f"{mean['restarts']:.1f}", f"{mean['decision_ms']:.1f}",
        ))
    yield fitting_table(TextTable(
        headings=("Policy", "short jobs min", "long jobs min", "makespan min", "GPUs held", "cores held",
                  "difference, 80 %", "restarts a job", "decision ms"), rows=tuple(rows),
    ))


def _published(found: Findings) -> Iterator[RenderableType]:
    yield Text("\nMean completion time of peers over that of aiturbo: re-measured", "bold")
    yield Text("Above 1, aiturbo is better; published by its successor, and here. Its jobs, lengths and curves are not "
               "published. The paper says 2x to 3x of the state of the art.")
    shares = found.shares("sweep")
    rows = []
    for label, published in PUBLISHED.items():
        each = [1 / found.factor(share, label).mean for share in shares]
        rows.append((label, f"{published:.2f}", f"{min(each):.2f} to {max(each):.2f}"))
    yield fitting_table(TextTable(headings=("Policy", "published", "ours, by share"), rows=tuple(rows)))


def _parts(found: Findings) -> Iterator[RenderableType]:
    yield Text("\nParts: mean completion time of aiturbo over that of the variant (below 1: aiturbo is better)", "bold")
    yield fitting_table(TextTable(
        headings=("Variant", *(_percent(share) for share in found.shares("parts"))),
        rows=tuple(
            (label, *(_told(found.factor(share, label, "parts")) for share in found.shares("parts")))
            for label in found.labels("parts")
        ),
    ))


def _crossing(found: Findings) -> Iterator[RenderableType]:
    yield Text("\nMean completion time (min) from no to only unpredictable jobs", "bold")
    yield Text("Unpredictable jobs are shorter, as in the authors' data; in the last rows lengths say nothing. "
               "Means over the same seeds everywhere.")
    labels, seeds = found.labels("ends"), len(found.of("ends", 0.0, OURS))
    ends = found.shares("ends")
    coupled = sorted({*ends, *found.shares("sweep")})
    points = [("shorter", "ends" if share in ends else "sweep", share) for share in coupled]
    points += [("alike", "uncoupled", share) for share in found.shares("uncoupled")]
    yield fitting_table(TextTable(
        headings=("Unpredictable", "lengths", *labels), text_columns=2,
        rows=tuple(
            (_percent(share), lengths, *(f"{_mean(found.of(group, share, label, seeds)):.1f}" for label in labels))
            for lengths, group, share in points
        ),
    ))


def _others(found: Findings) -> Iterator[RenderableType]:
    yield Text("\nOther conditions: mean completion time of aiturbo over that of the policy", "bold")
    groups = ("overload", "500 jobs", "estimates 0.5", "estimates 3")
    told = dict(zip(groups, ("load 1.8", "500 jobs", "log sd of estimates 0.5", "log sd of estimates 3"), strict=True))
    yield fitting_table(TextTable(
        headings=("Condition", "policy", *(_percent(share) for share in found.shares(groups[0]))),
        rows=tuple(
            (told[group], label, *(_told(found.factor(share, label, group)) for share in found.shares(group)))
            for group in groups for label in found.labels(group) if label != OURS
        ), text_columns=2,
    ))
