"""Whether jobs that wait start within the 80 % interval that `brim eta` states at their submission: real traces.

    python benchmarks/eta_intervals.py DATA [TRACE:POLICY]... [--starts N]

DATA is a folder with ``traces``. Each trace is replayed on a cluster on which jobs wait. After the first round that
leaves a job waiting, the functions of the live command forecast its start (``foresight/start_interval.py``), from
what was known then: the queue, the run times of jobs that had ended or ran, and the record of earlier forecasts, each
with its start if that had come. Of the jobs that waited, N starts are drawn, the same for everybody.

Beside it, its peer: a moving average. It expects the mean wait of the last admissions, or the jobs or GPUs ahead over
the rate at which the last hours admitted any, and its interval follows its own past errors by the same estimate, over
a window of them (``admission_averages``). It is told of every admission, not only of those drawn. Of all averages,
windows and scales three are shown: of those of the last waits, and of all, the one that scores best on ``itp03``, on
which our constants were chosen (``eta_constants.py``), too, if that is among the cases; and the one that scores best on
these very starts, which nobody knows beforehand. Uncalibrated, the interval is the middle of the waits of the last
admissions.

The score is Gneiting and Raftery's interval score (JASA 2007): the width, and 10 times what the start misses it by.
Intervals of coverage and of the ratio of scores come from a bootstrap of blocks of seven days, in a circle.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from admission_averages import WAITED_S, calibrated, uncalibrated
from brim import traces
from brim.beliefs.beliefs import Beliefs
from brim.beliefs.kinds import JobKind
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.cluster import Cluster, parse_cluster
from brim.core.events import Event, JobSpec, Kind
from brim.core.lifecycle import Phase
from brim.core.replay import Replay
from brim.core.trace import NONE, Trace
from brim.engine.journal import Journal, RecordedDecision
from brim.engine.round import RoundResult
from brim.engine.scheduler import Scheduler
from brim.foresight.calibration import COVERAGE, ERRORS_ELSEWHERE, RECORD_MAX, Calibration, relative_error
from brim.foresight.run_times import ObservedRun, RunTimesByKind
from brim.foresight.start_interval import DRAWS, drawn, ends, stated
from brim.live.records import PastForecast
from brim.policies.presets import find_policy
from brim.policies.sockets import Policy
from brim.sim.continuation import InitialState
from brim.sim.overheads import Overheads
from brim.sim.specs import specs_of, user_names
from brim.sim.truths.rigid import Rigid
from brim.sim.twin import ESTIMATES, replay
from brim.units import MS_PER_DAY, MS_PER_H, MS_PER_S

TRACES: Final = {
    "itp03": ("traces/itp/cluster03.csv.gz", "", "25x8xV100"),
    "itp04": ("traces/itp/cluster04.csv.gz", "", "73x8xV100"),
    "itp06": ("traces/itp/cluster06.csv.gz", "", "16x8xV100"),
    "philly": ("traces/philly/philly_2017-09_2017-10.csv.gz", "2017-10-01", "87x8xV100"),
}
"""File, first day, and cluster: loads of 0.70, 0.85, 0.68 and 0.85. The publishers do not tell the sizes; ours."""
CHOSEN_ON: Final = "itp03"
"""The trace on which constants were chosen, ours and those of the average; the others were not looked at for that."""
CASES: Final = tuple(f"{trace}:{policy}" for trace in TRACES for policy in ("fifo", "backfill"))
STARTS: Final = 5_250
HISTORY_MAX: Final = 2_000
UNCALIBRATED_LAST: Final = 30
RESAMPLES: Final = 1_000
BLOCK_DAYS: Final = 7
WEEK_STARTS_MIN: Final = 30


class Log(Journal):
    """Keeps events and decisions as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Event | RecordedDecision] = []

    def event(self, event: Event) -> None:
        """See ``Journal``."""
        self.entries.append(event)

    def decision(self, result: RoundResult) -> None:
        """See ``Journal``."""
        self.entries.append(RecordedDecision.of(result))


class Asked(NamedTuple):
    """What was known and stated when jobs were asked about, in seconds (F,); the waits are from then on.

    Attributes:
        made: When.
        wait: The wait that came.
        low: Lower end of the interval.
        high: Upper end.
        drawn: Wait in each continuation, NaN for fewer of them (F, D).
        ahead: Jobs that waited and had been submitted before, and their GPUs (F, 2).
    """

    made: FloatArray
    wait: FloatArray
    low: FloatArray
    high: FloatArray
    drawn: FloatArray
    ahead: FloatArray


def asked(trace: Trace, cluster: Cluster, policy: Policy, found: Replay, log: Log, starts: int) -> Asked:
    """Ask about a sample of the jobs that waited, in the order of the replay."""
    waited = np.flatnonzero(found.first_start_ms - trace.submit_ms > WAITED_S * MS_PER_S)
    sample = np.sort(np.random.default_rng(1).choice(waited, min(starts, len(waited)), replace=False)).tolist()
    scheduler = Scheduler(cluster, policy, Beliefs(run_times=ESTIMATES["limits"]), users=user_names(trace))
    specs = specs_of(trace, cluster, Rigid(trace))
    ended: list[tuple[int, int]] = []
    record: list[PastForecast] = []
    rows = []
    for entry in log.entries:
        if isinstance(entry, Event):
            scheduler.observe(entry)
            if entry.kind is Kind.FINISHED:
                ended.append((entry.time_ms, entry.job))
            continue
        scheduler.fold(entry)
        now_ms = entry.plan.time_ms
        while sample and trace.submit_ms[sample[0]] <= now_ms:
            job = sample.pop(0)
            start_ms = int(found.first_start_ms[job])
            if scheduler.state.phase(job) is not Phase.PENDING:
                continue
            starts_D, ahead = _continued(scheduler, trace, specs, ended[-HISTORY_MAX:], job, now_ms)
            said = stated(starts_D, now_ms, Calibration(record[-RECORD_MAX:], now_ms))
            if said is not None:
                record.append(PastForecast(now_ms, said.expected_ms, said.first_ms, said.last_ms, start_ms, NONE))
                unused = [np.nan] * (DRAWS - len(starts_D))
                rows.append((*ahead, now_ms, start_ms - now_ms, said.low_ms - now_ms, said.high_ms - now_ms,
                             *(starts_D - now_ms), *unused))
    table = np.array(rows, dtype=np.float64)
    table[:, 2:] /= MS_PER_S
    return Asked(*table.T[2:6], table[:, 6:], table[:, :2])


def _continued(
    scheduler: Scheduler, trace: Trace, specs: Sequence[JobSpec], ended: Sequence[tuple[int, int]], job: int,
    now_ms: int,
) -> tuple[IntArray, tuple[int, int]]:
    """When a job starts in each continuation, and the jobs and GPUs ahead of it."""
    state = scheduler.state
    copied = scheduler.copy()
    copied.state, ids = copied.state.renumbered()
    since_ms = ended[0][0] if len(ended) == HISTORY_MAX else 0
    ran_ms = {one: state.run_ms(one, now_ms) for one in ids.tolist()}
    seen = (*((one, int(trace.run_ms[one]), end_ms, True) for end_ms, one in ended),
            *((one, ran, now_ms, False) for one, ran in ran_ms.items()))
    run_times = RunTimesByKind((ObservedRun(_kind(trace, one), *rest) for one, *rest in seen), since_ms)
    initial = InitialState(
        now_ms=now_ms, scheduler=copied, overheads=Overheads(), waits={}, begin_ms={},
        specs=[replace(specs[one], id=row) for row, one in enumerate(ids.tolist())],
    )
    believed = [run_times.believed(_kind(trace, one), ran, NONE) for one, ran in ran_ms.items()]
    row = int(np.searchsorted(ids, job))
    ahead = [one for one in ids.tolist() if one < job and state.phase(one) is Phase.PENDING]
    return drawn(initial, believed, job, [row])[0][:, row], (len(ahead), int(trace.gpus[ahead].sum()))


def _kind(trace: Trace, job: int) -> JobKind:
    group = int(trace.group[job])
    return JobKind("", trace.groups[group] if group != NONE else "", int(trace.gpus[job]))


def score(low: FloatArray, high: FloatArray, wait: FloatArray) -> FloatArray:
    """Interval score of each forecast, in the unit of the waits (F,)."""
    return (high - low) + 2.0 / (1.0 - COVERAGE) * (np.maximum(low - wait, 0.0) + np.maximum(wait - high, 0.0))


def resampled(made: FloatArray, *columns: FloatArray) -> FloatArray:
    """Means of columns over blocks of days drawn with replacement (R, C)."""
    day = ((made - made.min()) // (MS_PER_DAY / MS_PER_S)).astype(np.int64)
    days = int(day.max()) + 1
    sums = np.stack([np.bincount(day, weights=column, minlength=days) for column in (*columns, np.ones(len(made)))])
    begin = np.random.default_rng(2).integers(0, days, (RESAMPLES, -(-days // BLOCK_DAYS)))
    picks = (begin[:, :, None] + np.arange(BLOCK_DAYS)).reshape(RESAMPLES, -1) % days
    total = sums[:, picks].sum(axis=2)
    total = total[:, total[-1] > 0]
    found: FloatArray = (total[:-1] / total[-1]).T
    return found


def weeks(made: FloatArray, hit: BoolArray) -> FloatArray:
    """Coverage of each week with enough starts."""
    _, week, count = np.unique(made // (7 * MS_PER_DAY / MS_PER_S), return_inverse=True, return_counts=True)
    return (np.bincount(week, weights=hit) / count)[count >= WEEK_STARTS_MIN]


class Peers(NamedTuple):
    """A replay with what was asked, and the intervals of the moving averages, by name (F, 2)."""

    forecasts: Asked
    calibrated: dict[str, FloatArray]
    uncalibrated: FloatArray

    def mean_scores_h(self) -> dict[str, float]:
        """Mean score of each."""
        per_h, wait = MS_PER_S / MS_PER_H, self.forecasts.wait
        scores = {name: score(told[:, 0], told[:, 1], wait) for name, told in self.calibrated.items()}
        return {name: float(np.nanmean(score_s)) * per_h for name, score_s in scores.items()}


def peers(trace: Trace, found: Replay, forecasts: Asked) -> Peers:
    """What moving averages say of the same starts."""
    submit_s, start_s = trace.submit_ms / MS_PER_S, found.first_start_ms / MS_PER_S
    told = dict(calibrated(submit_s, start_s, trace.gpus, forecasts.made, forecasts.wait, forecasts.ahead))
    return Peers(forecasts, told, uncalibrated(submit_s, start_s, forecasts.made, UNCALIBRATED_LAST))


def chosen(cases: dict[str, Peers]) -> dict[str, str]:
    """The averages that score best on the trace on which our constants were chosen; empty if no case is of it."""
    scores = [case.mean_scores_h() for name, case in cases.items() if name.startswith(f"{CHOSEN_ON}:")]
    if not scores:
        return {}
    product = {name: float(np.prod([one[name] for one in scores])) for name in scores[0]}
    of_waits = [name for name in product if name.startswith("wait of")]
    return {"of waits, chosen beforehand": min(of_waits, key=lambda name: product[name]),
            "chosen beforehand": min(product, key=lambda name: product[name])}


def error(forecasts: Asked) -> FloatArray:
    """The error of each forecast, relative to its continuations (F,)."""
    expected = np.nanmean(forecasts.drawn, axis=1)
    return relative_error(*(wait_s * MS_PER_S for wait_s in (forecasts.wait, expected, *drawn_ends(forecasts))))


def drawn_ends(forecasts: Asked) -> FloatArray:
    """The ends of what the continuations of each forecast say, without any record (2, F)."""
    return np.array([ends(row[~np.isnan(row)]) for row in forecasts.drawn]).T


def elsewhere(cases: Sequence[Asked]) -> FloatArray:
    """The errors with which the record of a new cluster begins, if these are forecasts on another one: quantiles."""
    parts = (np.arange(len(ERRORS_ELSEWHERE)) + 0.5) / len(ERRORS_ELSEWHERE)
    found: FloatArray = np.quantile(np.concatenate([error(case) for case in cases]), parts)
    return found


def report(case: Peers, beforehand: dict[str, str]) -> None:
    """Print how good the intervals were, and those of the averages."""
    made, wait, low, high = case.forecasts[:4]
    drawn_low, drawn_high = drawn_ends(case.forecasts)
    hit = _within(low, high, wait)
    by_block = resampled(made, hit.astype(np.float64))[:, 0]
    half = np.median(made)
    print(f"  covered {hit.mean():.1%} (95 % of resamples {np.quantile(by_block, 0.025):.1%} to "
          f"{np.quantile(by_block, 0.975):.1%}), first half {hit[made <= half].mean():.1%}, second "
          f"{hit[made > half].mean():.1%}; worst week {weeks(made, hit).min():.1%}; without the record "
          f"{_within(drawn_low, drawn_high, wait).mean():.1%}, uncalibrated average "
          f"{_within(case.uncalibrated[:, 0], case.uncalibrated[:, 1], wait).mean():.1%}")
    scores = case.mean_scores_h()
    for words, name in {**beforehand, "chosen in hindsight": min(scores, key=lambda name: scores[name])}.items():
        told = case.calibrated[name]
        known = ~np.isnan(told[:, 0])
        ours = score(low, high, wait)[known] * MS_PER_S / MS_PER_H
        theirs = score(told[:, 0], told[:, 1], wait)[known] * MS_PER_S / MS_PER_H
        means = resampled(made[known], ours, theirs)
        ratio = means[:, 0] / means[:, 1]
        print(f"  score {ours.mean():.2f} h, average {words} {theirs.mean():.2f} h ({name}; covered "
              f"{_within(told[:, 0], told[:, 1], wait)[known].mean():.1%}): {ours.mean() / theirs.mean() - 1:+.0%} "
              f"({np.quantile(ratio, 0.025) - 1:+.0%} to {np.quantile(ratio, 0.975) - 1:+.0%})", flush=True)


def _within(low: FloatArray, high: FloatArray, wait: FloatArray) -> BoolArray:
    found: BoolArray = (low <= wait) & (wait <= high)
    return found


def ask(data: Path, case: str, starts: int) -> Peers | None:
    """Replay a case and ask about jobs that waited; None if its trace is absent."""
    name, _, policy_name = case.partition(":")
    file, since, servers = TRACES[name]
    if not (data / file).is_file():
        print(f"{case}: skipped, there is no {data / file}")
        return None
    trace, _ = traces.read(str(data / file))
    trace = traces.since(trace, since) if since else trace
    cluster, policy, log = parse_cluster(servers), find_policy(policy_name), Log()
    found = replay(trace, cluster, policy, journal=log)
    forecasts = asked(trace, cluster, policy, found, log, starts)
    wait_h = forecasts.wait.mean() * MS_PER_S / MS_PER_H
    print(f"{case} on {servers}: {len(forecasts.wait):,} starts of jobs that waited, {wait_h:.2f} h on the mean",
          flush=True)
    return peers(trace, found, forecasts)


def main() -> None:
    """Ask about each case and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="TRACE:POLICY")
    parser.add_argument("--starts", type=int, default=STARTS)
    options = parser.parse_args()
    cases = {case: found for case in options.cases if (found := ask(options.data, case, options.starts)) is not None}
    beforehand = chosen(cases)
    for case, its in cases.items():
        print(case)
        report(its, beforehand)
    of_choice = [its.forecasts for case, its in cases.items() if case.startswith(f"{CHOSEN_ON}:")]
    if of_choice:
        print(f"errors on {CHOSEN_ON}: {np.round(elsewhere(of_choice), 2).tolist()}")


if __name__ == "__main__":
    main()
