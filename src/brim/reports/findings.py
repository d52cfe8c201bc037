"""What a comparison says, in sentences and by owner: the part a reader takes away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from brim.core.replay import Replay
from brim.core.trace import Trace
from brim.reports.metrics import SIZE_CLASSES, finished, jct_ms, size_class
from brim.reports.summary import Summary, by_policy, interval
from brim.units import MS_PER_S, show_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Mean JCT of one owner's jobs under two policies, over jobs that finished under both."""

    LEAST_JOBS: ClassVar[int] = 10

    name: str
    jobs: int
    before_s: float
    after_s: float

    @property
    def fraction(self) -> float:
        """Relative change; below 0 is sooner."""
        return self.after_s / self.before_s - 1


def changes(first: Replay, other: Replay) -> tuple[str, list[Change]]:
    """Change of mean JCT by group, else by user, else by size class.

    Owners with fewer than ``Change.LEAST_JOBS`` jobs are left out unless that leaves nobody.

    Returns:
        What the owners are ("group", "user", "size"), and the changes, most improved first.
    """
    kind, code, names = _owners(first.trace)
    both = finished(first) & finished(other) & (code >= 0)
    size = len(names)
    jobs = np.bincount(code[both], minlength=size)
    before = np.bincount(code[both], weights=jct_ms(first)[both], minlength=size)
    after = np.bincount(code[both], weights=jct_ms(other)[both], minlength=size)
    kept = (jobs >= Change.LEAST_JOBS) & (before > 0)
    if not kept.any():
        kept = before > 0
    found = [
        Change(
            name=names[owner], jobs=int(jobs[owner]), before_s=float(before[owner] / jobs[owner] / MS_PER_S),
            after_s=float(after[owner] / jobs[owner] / MS_PER_S),
        )
        for owner in np.flatnonzero(kept)
    ]
    return kind, sorted(found, key=lambda change: (change.fraction, change.name))


def findings(shown: Sequence[Replay], summaries: Sequence[Summary]) -> list[str]:
    """Two to four sentences: the best policy, its distance to the bound, who pays for it, what an oracle would gain.

    Args:
        shown: One replay per policy; the first is the reference.
        summaries: All replays of the comparison.
    """
    load = shown[0].load
    groups = {policy: group for (at, policy), group in by_policy(summaries).items() if at == load}
    means = {policy: _mean_jct(group) for policy, group in groups.items()}
    known = {policy: mean for policy, mean in means.items() if mean is not None}
    fair = {policy: mean for policy, mean in known.items() if not groups[policy][0].oracle}
    if not fair:
        return ["No job finished." if not known else "All of these policies are oracles: they were told true run times."]
    first = shown[0].policy
    best = min(fair, key=lambda policy: fair[policy])
    sentences = [_best(first, best, known)]
    ratio = groups[best][0].jct_ratio
    if ratio is not None:
        sentences.append(f"That is {ratio:.2f} times a lower bound that no schedule of these jobs can beat.")
    other = next(replay for replay in shown if replay.policy == best)
    if best != first:
        sentences.append(_losers(shown[0], other))
    oracle = min((p for p in known if groups[p][0].oracle), key=lambda policy: known[policy], default=None)
    if oracle is not None:
        sentences.append(
            f"{oracle}, which is told true run times that nobody has, comes to {show_duration(known[oracle])}."
        )
    return sentences


def _best(first: str, best: str, known: dict[str, float]) -> str:
    if len(known) == 1:
        return f"Under {best} the mean job completes {show_duration(known[best])} after its submission."
    if best == first:
        return f"No policy without an oracle has a shorter mean job completion time than {first}: {show_duration(known[first])}."
    if first not in known:
        return f"{best} has the shortest mean job completion time: {show_duration(known[best])}."
    gain = 1 - known[best] / known[first]
    return (
        f"{best} has the shortest mean job completion time: {show_duration(known[best])}, {gain:.0%} less than {first} "
        f"({show_duration(known[first])})."
    )


def _losers(first: Replay, best: Replay) -> str:
    kind, found = changes(first, best)
    word = {"group": "groups", "user": "users", "size": "job-size classes"}[kind]
    worse = [change for change in found if change.fraction > 0]
    if not worse:
        return f"None of {len(found)} {word} has a longer mean completion time under {best.policy} than under {first.policy}."
    last = worse[-1]
    return (
        f"{len(worse)} of {len(found)} {word} {'has' if len(worse) == 1 else 'have'} a longer mean completion time under "
        f"{best.policy} than under {first.policy}, most of all {last.name}: {last.fraction:+.0%} over {last.jobs:,} jobs."
    )


def _mean_jct(group: Sequence[Summary]) -> float | None:
    values = [s.metrics.jct_mean_s for s in group if s.metrics.jct_mean_s is not None]
    return interval(values).mean if values else None


def _owners(trace: Trace) -> tuple[str, np.ndarray, tuple[str, ...]]:
    if (trace.group >= 0).any():
        return "group", trace.group, trace.groups
    if (trace.user >= 0).any():
        return "user", trace.user, trace.users
    names = tuple(f"{name} GPU{'' if name == '1' else 's'}" for name in SIZE_CLASSES)
    return "size", size_class(trace), names
