"""What a comparison says, in sentences and by owner: the part a reader takes away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from brim.core.arrays import IntArray
from brim.core.replay import Replay
from brim.core.trace import Trace
from brim.reports.metrics import SIZE_CLASSES, finished, jct_ms, size_class
from brim.reports.summary import Summary, by_policy, interval
from brim.reports.table import times
from brim.units import MS_PER_S, show_duration

Kind: TypeAlias = Literal["group", "user", "size"]


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


def changes(first: Replay, other: Replay, kind: Kind) -> list[Change]:
    """Change of mean JCT by group, user or size class, most improved first.

    Owners with fewer than ``Change.LEAST_JOBS`` jobs are left out unless that leaves nobody.
    """
    code, names = _owners(first.trace, kind)
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
    return sorted(found, key=lambda change: (change.fraction, change.name))


def owner_kind(trace: Trace) -> Kind:
    """Whom to compare by: groups where the trace has them, else users, else size classes."""
    if (trace.group >= 0).any():
        return "group"
    return "user" if (trace.user >= 0).any() else "size"


def signed(fraction: float) -> str:
    """A change in per cent, with a typographic minus."""
    return f"{fraction:+.0%}".replace("-", "\u2212")


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
    complete = {policy: mean for policy, mean in known.items() if not any(s.incomplete for s in groups[policy])}
    if len(complete) > 1:  # means over different jobs do not compare
        known = complete
    fair = {policy: mean for policy, mean in known.items() if not groups[policy][0].oracle}
    if not fair:
        return ["All of these policies are oracles: they were told true run times." if known else "No job finished."]
    first = shown[0].policy if shown[0].policy in known else next(iter(fair))
    best = min(fair, key=lambda policy: fair[policy])
    sentences = [] if complete else ["No replay is complete: what follows is over the jobs that finished."]
    sentences.append(_best(first, best, known))
    ratio = groups[best][0].jct_ratio
    if ratio is not None:
        sentences.append(f"That is {times(ratio)} times a lower bound that no schedule of these jobs can beat.")
    other = next(replay for replay in shown if replay.policy == best)
    if best != first:
        kind = owner_kind(shown[0].trace)
        base = next(replay for replay in shown if replay.policy == first)
        sentences.append(_losers(base, other, kind))
        if kind != "size":
            sentences.append(_losers(base, other, "size"))
    oracle = min((p for p in known if groups[p][0].oracle), key=lambda policy: known[policy], default=None)
    if oracle is not None:
        sentences.append(
            f"{oracle} is an oracle, told true run times that nobody has; it comes to {show_duration(known[oracle])}."
        )
    return sentences


def _best(first: str, best: str, known: dict[str, float]) -> str:
    if len(known) == 1:
        return f"Under {best} the mean job completes {show_duration(known[best])} after its submission."
    if best == first:
        return f"No policy without an oracle beats {first}'s mean job completion time of {show_duration(known[first])}."
    if known[first] >= 2 * known[best]:
        return (
            f"{best} has the shortest mean job completion time: {show_duration(known[best])}; {first} takes "
            f"{times(known[first] / known[best])} times as long ({show_duration(known[first])})."
        )
    gain = 1 - known[best] / known[first]
    return (
        f"{best} has the shortest mean job completion time: {show_duration(known[best])}, {gain:.0%} less than {first} "
        f"({show_duration(known[first])})."
    )


def _losers(first: Replay, best: Replay, kind: Kind) -> str:
    found = changes(first, best, kind)
    word = {"group": "groups", "user": "users", "size": "job-size classes"}[kind]
    worse = [change for change in found if change.fraction > 0]
    if not worse:
        return f"0 of {len(found)} {word} complete later on average under {best.policy} than under {first.policy}."
    last = worse[-1]
    verb, lead = ("completes", "") if len(worse) == 1 else ("complete", "most of all ")
    return (
        f"{len(worse)} of {len(found)} {word} {verb} later on average under {best.policy} than under {first.policy}: "
        f"{lead}{last.name}, {signed(last.fraction)} over {last.jobs:,} jobs."
    )


def _mean_jct(group: Sequence[Summary]) -> float | None:
    values = [s.metrics.jct_mean_s for s in group if s.metrics.jct_mean_s is not None]
    return interval(values).mean if values else None


def _owners(trace: Trace, kind: Kind) -> tuple[IntArray, tuple[str, ...]]:
    if kind == "group":
        return trace.group, trace.groups
    if kind == "user":
        return trace.user, trace.users
    return size_class(trace), tuple(f"{name} GPU{'' if name == '1' else 's'}" for name in SIZE_CLASSES)
