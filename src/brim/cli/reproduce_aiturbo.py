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

from brim.cli.options import INTERRUPTED
from brim.cli.outputs import console
from brim.reports.experiment import TextTable, fitting_table

if TYPE_CHECKING:
    from brim.sim.reproduce.aiturbo_sweep import DeviceUse, Factor, SweepResult, SweptReplay
    from brim.sim.reproduce.master import Headline

OURS: Final = "aiturbo"
CLAIRVOYANT: Final = "true remaining time"
PUBLISHED: Final = {"optimus": 1.8 / 1.24, "srtf": 1.9 / 1.24, "tiresias": 2.8 / 1.24, "fifo": 4.2 / 1.24}
"""Mean completion time over AITurbo's, of the plots of its successor (github.com/MaoZzzzz/Aiturbo-vGPU)."""
WINDOWS: Final = (
    ("load 0.9, jobs arrive", "sweep", "arriving"), ("load 0.9, a job has nothing", "sweep", "waiting"),
    ("load 1.8, jobs arrive", "overload", "arriving"), ("together, until all end", "together", "whole"),
)
"""Words of the table of devices, the group of replays, and the field of their results."""


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

    def all_of(self, group: str, label: str) -> list[SweepResult]:
        """The results of one policy at all shares."""
        return [one for share in self.shares(group) for one in self.of(group, share, label)]

    def jct(self, group: str, share: float, label: str) -> float:
        """Mean completion time over seeds, min."""
        return _mean(self.of(group, share, label))

    def factor(self, share: float, label: str, group: str = "sweep") -> Factor:
        """Ours over that of a policy in a group; ours is that of the sweep where the group has none."""
        from brim.sim.reproduce.aiturbo_sweep import factor

        theirs = self.of(group, share, label)
        ours = self.of(group, share, OURS) or self.of("sweep", share, OURS, len(theirs))
        return factor([one.jct_min for one in ours], [one.jct_min for one in theirs])

    def between(self, group: str, share: float, label: str, other: str, of: str | None = None) -> Factor:
        """One policy of a group over another of the same group, or of that named, by the seeds of the first."""
        from brim.sim.reproduce.aiturbo_sweep import factor

        one = self.of(group, share, label)
        other_one = self.of(of or group, share, other, len(one))
        return factor([each.jct_min for each in one], [each.jct_min for each in other_one])

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
    shown += [*_sweep(found), *_gap(found), *_jobs(found), *_devices(found), *_published(found)]
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
        label: [one.arriving for one in found.all_of("sweep", label)] for label in (OURS, *PEER_NAMES)
    }
    held = {label: float(np.mean([(one.gpus_held + one.cores_held) / 2 for one in of])) for label, of in every.items()}
    gap = {label: float(np.mean([one.gap_held for one in of])) for label, of in every.items()}
    ratios = {label: [1 / found.factor(share, label).mean for share in shares] for label in PUBLISHED}
    return aiturbo_rows(lower, held, gap, ratios, PUBLISHED, seeds)


def as_json(planned: Sequence[SweptReplay], results: Sequence[SweepResult]) -> dict[str, Any]:
    """Every replay's conditions and figures."""
    return {"schema": 1, "replays": [
        {
            "group": one.group, "policy": one.label, "jobs": one.point.jobs, "unpredictable": one.point.unpredictable,
            "load": _plain(one.point.load), "coupled": one.point.coupled, "estimate_sd": one.point.estimate_sd,
            "seed": one.point.seed,
            **{name: _plain(value) for name, value in result._asdict().items()},
        }
        for one, result in zip(planned, results, strict=True)
    ]}


def _plain(value: float | DeviceUse) -> Any:
    """A figure, or those of devices, in JSON: null for what is not a finite number, as the load of jobs together."""
    if isinstance(value, tuple):
        return {name: _plain(each) for name, each in value._asdict().items()}
    return value if math.isfinite(value) else None


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
    yield Text("60 jobs with parameter servers, 2 nodes of 2 GPUs and 32 cores, load 0.9; ratio of aiturbo to the "
               "best peer of the same seeds, geometric mean with its 95 % interval: below 1, aiturbo is better.")
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
               "a row are over the same seeds. \"closed\": how much of the way there from the best peer aiturbo goes.")
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


def _jobs(found: Findings) -> Iterator[RenderableType]:
    yield Text("\nShort and long jobs, and decisions: means over all shares", "bold")
    rows = []
    for label in found.labels("sweep"):
        every = found.all_of("sweep", label)
        means = [float(np.nanmean([getattr(one, name) for one in every])) for name in (
            "short_min", "long_min", "makespan_min", "restarts", "decision_ms"
        )]
        rows.append((label, *(f"{mean:.{digits}f}" for mean, digits in zip(means, (1, 1, 0, 1, 1), strict=True))))
    yield fitting_table(TextTable(
        headings=("Policy", "short jobs min", "long jobs min", "makespan min", "restarts a job", "decision ms"),
        rows=tuple(rows),
    ))


def _devices(found: Findings) -> Iterator[RenderableType]:
    from brim.sim.reproduce.aiturbo_sweep import SEEDS_OF_MORE, SOME

    yield Text("\nDevices: parts of all GPUs and cores", "bold")
    yield Text("Held: jobs have them; busy: workers compute, with their cores, or servers update. Gap: 80th "
               "percentile over time of the difference of GPUs and cores (published: 60 % before, 40 % under AITurbo). "
               f"Means over {' '.join(map(_percent, SOME))} unpredictable jobs, at most {SEEDS_OF_MORE} seeds of each.")
    rows = []
    for told, group, window in WINDOWS:
        for label in found.labels(group):
            every = [one for share in SOME for one in found.of(group, share, label, SEEDS_OF_MORE)]
            uses = [getattr(one, window) for one in every]
            parts = np.array([use for use in uses if use.hours > 0])
            if not len(parts):
                continue
            hours = sum(use.hours for use in uses) / len(uses)
            rows.append((told, label, f"{hours:.1f}", *(_percent(float(part)) for part in parts.mean(axis=0)[1:])))
    yield fitting_table(TextTable(
        headings=("When", "policy", "hours", "GPUs held", "cores held", "gap", "GPUs busy", "cores busy", "gap busy"),
        rows=tuple(rows), text_columns=2,
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
    from brim.sim.reproduce.aiturbo_sweep import ATTAINED, CURVE, PRIORS, TRUE

    yield Text("\nThe crossing: orders with the same sizes, from no to only unpredictable jobs", "bold")
    yield Text("By curve: the time that a curve through its losses says of every job, predictable or not, without a "
               "classifier or a plan. Lengths: unpredictable jobs are shorter, as in the authors' data, or alike. Mean "
               "completion time (min) by true remaining times, and of the others over it, of the same seeds.")
    compared = (OURS, CURVE, ATTAINED)
    groups = (("as asked", "shorter", "orders"), ("as asked", "alike", "orders, alike"),
              ("of aiturbo", "shorter", "orders, own sizes"))
    yield fitting_table(TextTable(
        headings=("Sizes", "lengths", "unpredictable", "true", *compared, "curve/attained"), text_columns=2,
        rows=tuple(
            (sizes, lengths, _percent(share), f"{found.jct(group, share, TRUE):.1f}",
             *(_told(found.between(group, share, one, TRUE)) for one in compared),
             _told(found.between(group, share, CURVE, ATTAINED)))
            for sizes, lengths, group in groups for share in found.shares(group)
        ),
    ))
    yield Text("By curve over by attained service, with another time left where no curve says one; sizes as asked.")
    yield fitting_table(TextTable(
        headings=("Order", *(_percent(share) for share in found.shares("priors"))),
        rows=tuple(
            (label, *(_told(found.between("priors", share, label, ATTAINED, "orders"))
                      for share in found.shares("priors")))
            for label in PRIORS
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
