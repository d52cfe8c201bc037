"""Findings of a comparison: sentences, and changes by owner of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from brim.core.arrays import IntArray
from brim.core.replay import Replay
from brim.core.trace import NONE, Trace
from brim.reports.metrics import SIZE_CLASSES, finished, jct_ms, size_class
from brim.reports.record import NAME as RECORDED
from brim.reports.record import NoRecord, RecordedMetrics
from brim.reports.summary import Summary, by_policy
from brim.reports.verdict import knows, mean_of, standing, times, verdict
from brim.units import MS_PER_S, counted, show_duration

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
        """Relative change; below 0, jobs complete sooner."""
        return self.after_s / self.before_s - 1


@dataclass(frozen=True, slots=True)
class CompletionTimes:
    """Completion times of jobs, in the record or under a policy.

    Attributes:
        name: "as recorded", or the policy's name.
        jct_ms: Completion minus submission, shape (J,); NONE where the job does not count.
    """

    name: str
    jct_ms: IntArray


def outcome_of(replay: Replay) -> CompletionTimes:
    """Return the JCTs of the jobs that finished in a replay."""
    return CompletionTimes(replay.policy, np.where(finished(replay), jct_ms(replay), NONE))


def reference_of(first: Replay, record: RecordedMetrics | NoRecord | None) -> CompletionTimes:
    """Return what policies are compared with, owner by owner: the record if there is one, else the first policy."""
    return CompletionTimes(RECORDED, record.jct_ms) if isinstance(record, RecordedMetrics) else outcome_of(first)


def changes(
    trace: Trace, before: CompletionTimes, after: CompletionTimes, kind: Kind, least_jobs: int = Change.LEAST_JOBS
) -> list[Change]:
    """Return changes of mean JCT by group, user or size class, over jobs counted in both outcomes, most improved first.

    Owners with fewer jobs than ``least_jobs`` are left out, unless no owner has as many.
    """
    code, names = owners_by(trace, kind)
    both = (before.jct_ms >= 0) & (after.jct_ms >= 0) & (code >= 0)
    size = len(names)
    jobs = np.bincount(code[both], minlength=size)
    before_s, after_s = (
        np.bincount(code[both], weights=outcome.jct_ms[both], minlength=size) / np.maximum(jobs, 1) / MS_PER_S
        for outcome in (before, after)
    )
    kept = (jobs >= least_jobs) & (before_s > 0)
    if not kept.any():
        kept = before_s > 0
    found = [
        Change(
            name=names[owner], jobs=int(jobs[owner]), before_s=float(before_s[owner]), after_s=float(after_s[owner]),
        )
        for owner in np.flatnonzero(kept)
    ]
    return sorted(found, key=lambda change: (change.fraction, change.name))


def owner_kind(trace: Trace) -> Kind:
    """Choose the kind of owner to compare by: users where the trace has them, else groups, else size classes."""
    if (trace.user >= 0).any():
        return "user"
    return "group" if (trace.group >= 0).any() else "size"


def signed(fraction: float) -> str:
    """Format a change in per cent, with a typographic minus; as a multiple if it is tenfold or more."""
    if fraction >= 9:
        return f"{1 + fraction:,.0f}\u00d7"
    return f"{fraction:+.0%}".replace("-", "\u2212")


def findings(
    shown: Sequence[Replay], summaries: Sequence[Summary], record: RecordedMetrics | NoRecord | None = None
) -> list[str]:
    """Return the verdict, the distance to the bound, which jobs complete later, and what an oracle would gain.

    Args:
        shown: One replay per policy, of one seed; the first is the reference where there is no record.
        summaries: All replays of the comparison.
        record: What the trace recorded.
    """
    load = shown[0].load
    groups = {policy: group for (at, policy), group in by_policy(summaries).items() if at == load}
    sentences, found = verdict(groups), standing(groups)
    if isinstance(found, str):
        return sentences
    ratio = mean_of([s.jct_ratio for s in groups[found.best]])
    several = len(groups[found.best]) > 1
    if ratio is not None:
        seeds = ", on average over the seeds" if several else ""
        sentences.append(
            f"The mean job completion time of {found.best} is {times(ratio)} times a lower bound that no schedule of "
            f"these jobs can beat{seeds}."
        )
    if found.best != found.first or isinstance(record, RecordedMetrics):
        first, best = (next(r for r in shown if r.policy == policy) for policy in (found.first, found.best))
        before, after, kind = reference_of(first, record), outcome_of(best), owner_kind(best.trace)
        kinds: tuple[Kind, ...] = (kind,) if kind == "size" else (kind, "size")
        losers = [_losers(best.trace, before, after, each) for each in kinds]
        sentences += [f"With seed {best.seed}, {said[0].lower()}{said[1:]}" for said in losers] if several else losers
    if found.oracle is not None:
        sentences.append(
            f"{knows(groups[found.oracle][0])}, which no scheduler does; its mean is "
            f"{show_duration(found.means_s[found.oracle])}."
        )
    return sentences


def _losers(trace: Trace, before: CompletionTimes, after: CompletionTimes, kind: Kind) -> str:
    found, every = (changes(trace, before, after, kind, least_jobs=least) for least in (Change.LEAST_JOBS, 1))
    word = {"group": "group", "user": "user", "size": "job-size class"}[kind]
    those = f"{word}{'' if len(found) == 1 else 'es' if kind == 'size' else 's'}"
    if len(found) < len(every):
        those += f" with at least {Change.LEAST_JOBS} jobs ({len(every)} in all)"
    those = f"The only {those}" if len(found) == 1 else f"Of the {len(found)} {those}"
    worse = [change for change in found if change.fraction > 0]
    than = before.name if before.name == RECORDED else f"under {before.name}"
    than = f"later on average under {after.name} than {than.removeprefix('as ')}"
    if not worse:
        return f"{those} does not complete {than}." if len(found) == 1 else f"{those}, none completes {than}."
    last = worse[-1]
    verb, lead = ("completes", "") if len(worse) == 1 else ("complete", "most of all ")
    who = those if len(found) == 1 else f"{those}, {len(worse)}"
    return (
        f"{who} {verb} {than}: {lead}{last.name}, {signed(last.fraction)} over {counted(last.jobs, 'job')}."
    )


def owners_by(trace: Trace, kind: Kind) -> tuple[IntArray, tuple[str, ...]]:
    """Return the code of each job's owner, shape (J,), and the names for the codes."""
    if kind == "group":
        return trace.group, trace.groups
    if kind == "user":
        return trace.user, trace.users
    return size_class(trace), tuple(f"{name} GPU{'' if name == '1' else 's'}" for name in SIZE_CLASSES)
