"""The result of a comparison in two to four sentences: the best policy, the best without preemption, savings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from brim.reports.record import NAME as RECORDED
from brim.reports.record import Comparison
from brim.reports.summary import Summary, interval, paired_jct
from brim.units import S_PER_H, show_duration

Groups = Mapping[str, Sequence[Summary]]
"""Summaries of each policy over its seeds, at one load."""
_ALIKE = 0.001
"""Largest relative difference of figures that count as equal; ours."""
_FEW_H = 0.05
"""GPU-hours that round to zero at one decimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The policies compared, and the best of them.

    Attributes:
        means_s: Mean JCT of each policy that may be compared: those of complete replays, if there are any.
        complete: Whether any replay is complete.
        first: The policy that others are compared with.
        best: The policy with the least mean JCT; no oracle.
        oracle: The oracle with the least mean JCT, if there is one.
    """

    means_s: Mapping[str, float]
    complete: bool
    first: str
    best: str
    oracle: str | None


def standing(groups: Groups) -> Standing | str:
    """Find the best policy, or say in a sentence why there is none."""
    means = {policy: _mean_jct(group) for policy, group in groups.items()}
    known = {policy: mean for policy, mean in means.items() if mean is not None}
    complete = {policy: mean for policy, mean in known.items() if not any(s.incomplete for s in groups[policy])}
    if complete:  # means over different jobs do not compare
        known = complete
    fair = [policy for policy in known if not groups[policy][0].oracle]
    if not fair:
        return " ".join(f"{knows(groups[policy][0])}." for policy in known) or "No job finished."
    first = next(iter(groups))
    return Standing(
        means_s=known, complete=bool(complete), first=first if first in known else fair[0],
        best=min(fair, key=known.__getitem__),
        oracle=min((p for p in known if groups[p][0].oracle), key=known.__getitem__, default=None),
    )


def knows(summary: Summary) -> str:
    """Say what an oracle knows; without the full stop."""
    what = "run times" if summary.estimates != "none" else "remaining work"
    return f"{summary.policy} is an oracle: it knows the true {what} of jobs"


def verdict(groups: Groups) -> list[str]:
    """Say which policy is best, which is best without preemption, and what the best one saves.

    Where the replays were compared with the record, the first sentence is about the record.
    """
    found = standing(groups)
    if isinstance(found, str):
        return [found]
    saved = groups[found.best][0].saved if len(groups[found.best]) == 1 else None
    sentences = [] if found.complete else ["No replay is complete: these findings are over the jobs that finished."]
    if saved is not None and saved.reference == RECORDED:
        sentences.append(_beside_record(groups, found.best, saved))
    else:
        sentences.append(_best(groups, found))
    sentences[-1] += _without_preemption(groups, found)
    if saved is not None:
        sentences.append(_saved(found.best, groups[found.best][0], saved))
    return sentences + _least(groups, found)


def _least(groups: Groups, found: Standing) -> list[str]:
    """Which policy uses the least energy, and which costs least, where it is known, beside the first."""
    said: list[str] = []
    if not found.complete:  # who was stopped sooner has used less
        return said
    figures: tuple[tuple[str, str, Callable[[Summary], float | None]], ...] = (
        ("uses the least energy", " kWh", lambda s: s.metrics.energy_kwh), ("costs least", "", lambda s: s.cost),
    )
    for verb, unit, figure in figures:
        known = {
            policy: interval(values).mean for policy in found.means_s if not groups[policy][0].oracle
            if (values := [value for s in groups[policy] if (value := figure(s)) is not None])
        }
        if len(known) < 2 or found.first not in known:
            continue
        best, first = min(known, key=known.__getitem__), known[found.first]
        alike = sum(math.isclose(value, known[best], rel_tol=_ALIKE) for value in known.values()) - 1
        beside = f", as {alike} {'other does' if alike == 1 else 'others do'}" if alike else ""
        if math.isclose(first, known[best], rel_tol=_ALIKE):
            said.append(f"{found.first} {verb}{beside}: {_amount(first)}{unit}.")
        else:
            gain = f"{1 - known[best] / first:.0%} less than {found.first} ({_amount(first)})"
            said.append(f"{best} {verb}{beside}: {_amount(known[best])}{unit}, {gain}.")
    return said


def _amount(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def times(ratio: float) -> str:
    """Format a multiple with the digits that matter."""
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def _but_oracles(groups: Groups) -> str:
    oracles = any(group[0].oracle for group in groups.values())
    return ", not counting oracles (policies that know the truth)," if oracles else ""


def _beside_record(groups: Groups, best: str, saved: Comparison) -> str:
    jct, wait = (
        (show_duration(before / saved.jobs), show_duration(after / saved.jobs))
        for before, after in ((saved.before_jct_s, saved.after_jct_s), (saved.before_wait_s, saved.after_wait_s))
    )
    if jct[0] == jct[1] and wait[0] == wait[1]:
        return (
            f"{best}, the best policy here{_but_oracles(groups)} equals the record: a mean wait of {wait[0]} and a "
            f"mean job completion time of {jct[0]}."
        )
    if saved.after_jct_s >= saved.before_jct_s:
        return (
            f"No policy here{_but_oracles(groups)} would have been faster than the record: {best}, the best of them, "
            f"has a mean wait of {wait[1]} and a mean job completion time of {jct[1]}; the record has {wait[0]} and "
            f"{jct[0]}."
        )
    cut = f"{best} would have cut the mean wait from {wait[0]} (as recorded) to {wait[1]}"
    if jct[0] == jct[1]:
        return f"{cut}; the mean job completion time stays at {jct[0]}."
    return f"{cut}, and the mean job completion time from {jct[0]} to {jct[1]}."


def _best(groups: Groups, found: Standing) -> str:
    best, first, known = found.best, found.first, found.means_s
    if len(known) == 1:
        return f"Under {best} the mean job completion time is {show_duration(known[best])}."
    if best == first:
        counted = " that is no oracle" if found.oracle is not None else ""
        return f"No policy{counted} has a shorter mean job completion time than {first}, {show_duration(known[first])}."
    if known[first] >= 2 * known[best]:
        said = (
            f"{best} has the shortest mean job completion time: {show_duration(known[best])}; {first} takes "
            f"{times(known[first] / known[best])} times as long ({show_duration(known[first])})"
        )
    else:
        gain = 1 - known[best] / known[first]
        said = (
            f"{best} has the shortest mean job completion time: {show_duration(known[best])}, {gain:.0%} less than "
            f"{first} ({show_duration(known[first])})"
        )
    return f"{said}{_unclear(groups[first], groups[best])}."


def _unclear(first: Sequence[Summary], best: Sequence[Summary]) -> str:
    """Say that the difference of two policies over several seeds may be chance, if its interval contains 0."""
    found = paired_jct(first, best)
    if found is None or found.half_width is None or abs(found.mean) > found.half_width:
        return ""
    seeds = len({s.seed for s in first} & {s.seed for s in best})
    return f"; with {seeds} seeds this difference is not statistically clear"


def _without_preemption(groups: Groups, found: Standing) -> str:
    """Say whether the best policy preempts, and name the best that does not; a sentence that follows another."""
    fair = [policy for policy in found.means_s if not groups[policy][0].oracle]
    calm = [policy for policy in fair if not any(s.metrics.preemptions or s.metrics.resizes for s in groups[policy])]
    if found.best in calm:
        where = "this replay" if len(groups[found.best]) == 1 else "these replays"
        return f" {found.best} preempted and resized no running jobs in {where}."
    if not calm:
        others = ", as all policies here do" if len(fair) > 1 else ""
        return f" {found.best} preempts or resizes running jobs{others}."
    best = min(calm, key=found.means_s.__getitem__)
    wait_s = mean_of([s.metrics.wait_mean_s for s in groups[best]])
    wait = "" if wait_s is None else f" and a mean wait of {show_duration(wait_s)}"
    return (
        f" {found.best} preempts or resizes running jobs; of the policies that do not, {best} is best, with a mean job "
        f"completion time of {show_duration(found.means_s[best])}{wait}."
    )


def _saved(best: str, summary: Summary, saved: Comparison) -> str:
    than = "than recorded" if saved.reference == RECORDED else f"than under {saved.reference}"
    gpu_h, money = saved.saved_gpu_s / S_PER_H, summary.saved_cost
    exactly = "as many GPU-hours" if gpu_h == 0 else "almost as many GPU-hours"
    held = exactly if abs(gpu_h) < _FEW_H else f"{_change(gpu_h, ',.1f', 'GPU-hours less')}"
    cost = "" if money is None or abs(gpu_h) < _FEW_H else f", which costs {_change(money, ',.2f', 'less')}"
    waits = _change(saved.saved_wait_s / S_PER_H, ",.0f", "hours less")
    if abs(saved.saved_wait_s) < S_PER_H:
        waits = f"{show_duration(abs(saved.saved_wait_s))} {'less' if saved.saved_wait_s >= 0 else 'more'}"
    return f"Under {best} the jobs together wait {waits} {than}, and hold {held}{cost}."


def _change(saved: float, digits: str, less: str) -> str:
    """Describe an amount that was saved, or was needed in addition."""
    amount = f"{abs(saved):{digits}}"
    unit = less.replace("hours", "hour") if amount == "1" else less
    return f"{amount} {unit if saved >= 0 else unit.replace('less', 'more')}"


def _mean_jct(group: Sequence[Summary]) -> float | None:
    return mean_of([s.metrics.jct_mean_s for s in group])


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of figures of a policy over its seeds, without those that are not defined."""
    known = [value for value in values if value is not None]
    return interval(known).mean if known else None
