"""Whether jobs that wait start within the 80 % interval that `brim eta` states at their submission: real traces.

    python benchmarks/eta_intervals.py DATA [TRACE:POLICY]... [--starts N]

DATA is a folder with ``traces``. Each trace is replayed on a cluster on which jobs wait. After the first round that
leaves a job waiting, the functions of the live command forecast its start (``foresight/start_interval.py``), from
what was known then: the queue, the run times of jobs that had ended or ran, and the record of earlier forecasts, each
with its start if that had come. Of the jobs that waited, N starts are drawn, the same for everybody.

Beside it, its peer: a moving average. It expects the mean wait of the last admissions, or the jobs or GPUs ahead over
the rate at which the last hours admitted any, and its interval follows its own past errors by the same estimate, over
a window of them. Average, window and scale are those that score best on these very starts, so the peer is tuned in
hindsight. It is told of every admission, not only of those drawn.

The score is Gneiting and Raftery's interval score (JASA 2007): the width, and 10 times what the start misses it by.
Intervals of coverage and of the ratio of scores come from a bootstrap of days.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from brim import traces
from brim.beliefs.beliefs import Beliefs
from brim.beliefs.kinds import JobKind
from brim.core.arrays import BoolArray, FloatArray, IntArray
from brim.core.cluster import Cluster, parse_cluster
from brim.core.events import Event, JobSpec, Kind
from brim.core.lifecycle import Phase
from brim.core.replay import Replay
from brim.core.trace import NONE, Trace
from brim.engine.journal import Decision, Journal
from brim.engine.round import RoundResult
from brim.engine.scheduler import Scheduler
from brim.foresight.calibration import COVERAGE, RECORD_MAX, STARTS_MIN, past_forecasts
from brim.foresight.run_times import ObservedRun, RunTimesByKind
from brim.foresight.start_interval import drawn, stated
from brim.policies.presets import find_policy
from brim.policies.sockets import Policy
from brim.sim.continuation import Outset
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
CASES: Final = tuple(f"{trace}:{policy}" for trace in ("itp03", "itp04", "itp06") for policy in ("fifo", "backfill"))
STARTS: Final = 1_050
WAITED_MS: Final = 3 * MS_PER_S
"""A job that starts sooner did not wait: first forecasts are made after this time (``first_forecasts.CALM_S``)."""
HISTORY_MAX: Final = 2_000
LAST: Final = (1, 3, 10, 30, 100, 300)
HOURS: Final = (1, 6, 24)
WINDOWS: Final = (30, 100, 1_000)
POWERS: Final = (1.0, 1.0 / 3.0)
OFFSET_S: Final = 60.0
RESAMPLES: Final = 1_000
WEEK_STARTS_MIN: Final = 30


class Log(Journal):
    """Keeps events and decisions as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Event | Decision] = []

    def event(self, event: Event) -> None:
        """See ``Journal``."""
        self.entries.append(event)

    def decision(self, result: RoundResult) -> None:
        """See ``Journal``."""
        memory = {socket: (result.job, values) for socket, values in result.memory.items()}
        self.entries.append((result.plan, memory, result.only_fills))


class Asked(NamedTuple):
    """What was known and stated when jobs were asked about, in seconds (F,); the waits are from then on.

    Attributes:
        made: When.
        wait: The wait that came.
        low: Lower end of the interval.
        high: Upper end.
        first: First and last start in the continuations, before the record is looked at (F, 2).
        ahead: Jobs that waited and had been submitted before, and their GPUs (F, 2).
    """

    made: FloatArray
    wait: FloatArray
    low: FloatArray
    high: FloatArray
    first: FloatArray
    ahead: FloatArray


def asked(trace: Trace, cluster: Cluster, policy: Policy, found: Replay, log: Log, starts: int) -> Asked:
    """Ask about a sample of the jobs that waited, in the order of the replay."""
    waited = np.flatnonzero(found.first_start_ms - trace.submit_ms > WAITED_MS)
    sample = np.sort(np.random.default_rng(1).choice(waited, min(starts, len(waited)), replace=False)).tolist()
    scheduler = Scheduler(cluster, policy, Beliefs(run_times=ESTIMATES["limits"]), users=user_names(trace))
    specs = specs_of(trace, cluster, Rigid(trace))
    ended: list[tuple[int, int]] = []
    record: list[tuple[int, int, int, int]] = []
    rows = []
    for entry in log.entries:
        if isinstance(entry, Event):
            scheduler.observe(entry)
            if entry.kind is Kind.FINISHED:
                ended.append((entry.time_ms, entry.job))
            continue
        scheduler.fold(*entry)
        now_ms = entry[0].time_ms
        while sample and trace.submit_ms[sample[0]] <= now_ms:
            job = sample.pop(0)
            start_ms = int(found.first_start_ms[job])
            if scheduler.state.phase(job) is not Phase.PENDING:
                continue
            starts_D, ahead = _continued(scheduler, trace, specs, ended[-HISTORY_MAX:], job, now_ms)
            said = stated(starts_D, now_ms, past_forecasts(record[-RECORD_MAX:], now_ms))
            if said is not None:
                record.append((now_ms, said.expected_ms, start_ms, NONE))
                rows.append((now_ms, start_ms - now_ms, said.low_ms - now_ms, said.high_ms - now_ms,
                             int(starts_D.min()) - now_ms, int(starts_D.max()) - now_ms, *ahead))
    table = np.array(rows, dtype=np.float64)
    table[:, :6] /= MS_PER_S
    return Asked(*table.T[:4], table[:, 4:6], table[:, 6:])


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
    outset = Outset(
        now_ms=now_ms, scheduler=copied, overheads=Overheads(), waits={}, begin_ms={},
        specs=[replace(specs[one], id=row) for row, one in enumerate(ids.tolist())],
    )
    believed = [run_times.believed(_kind(trace, one), ran, NONE) for one, ran in ran_ms.items()]
    row = int(np.searchsorted(ids, job))
    ahead = [one for one in ids.tolist() if one < job and state.phase(one) is Phase.PENDING]
    return drawn(outset, believed, job, [row])[0][:, row], (len(ahead), int(trace.gpus[ahead].sum()))


def _kind(trace: Trace, job: int) -> JobKind:
    group = int(trace.group[job])
    return JobKind("", trace.groups[group] if group != NONE else "", int(trace.gpus[job]))


def peers(trace: Trace, found: Replay, forecasts: Asked) -> Iterator[tuple[str, FloatArray]]:
    """Moving averages: a name and the wait that each expects, in seconds (F,)."""
    start_s = found.first_start_ms / MS_PER_S
    order = np.argsort(start_s, kind="stable")
    start_s, wait_s = start_s[order], (found.first_start_ms - trace.submit_ms)[order] / MS_PER_S
    gone = {"all": np.ones(len(order), dtype=np.bool_), "waiting": wait_s > WAITED_MS / MS_PER_S}
    for (who, kept), last in product(gone.items(), LAST):
        total = np.concatenate(([0.0], np.cumsum(wait_s[kept])))
        until = np.searchsorted(start_s[kept], forecasts.made, side="right")
        since = np.maximum(until - last, 0)
        yield f"wait of the last {last} of {who}", (total[until] - total[since]) / np.maximum(until - since, 1)
    for what, hours in product((0, 1), HOURS):
        total = np.concatenate(([0.0], np.cumsum((np.ones(len(order)), trace.gpus[order])[what])))
        until, since = (np.searchsorted(start_s, forecasts.made - ago, side="right") for ago in (0, hours * 3600))
        rate = np.maximum(total[until] - total[since], 1.0) / (hours * 3600)
        yield f"{('jobs', 'GPUs')[what]} ahead over {hours} h", forecasts.ahead[:, what] / rate


def windowed(expected: FloatArray, made: FloatArray, wait: FloatArray, window: int, power: float) -> FloatArray:
    """Interval of each forecast from the last errors of its like, by Kaplan and Meier; NaN without enough (F, 2)."""
    start, root = made + wait, (expected + OFFSET_S) ** power
    error, order = (wait + OFFSET_S) ** power - root, np.argsort(start, kind="stable")
    found = np.full((len(made), 2), np.nan)
    for row, now in enumerate(made.tolist()):
        known = order[: np.searchsorted(start[order], now, side="right")]
        known = known[known < row][-window:]
        if len(known) < STARTS_MIN:
            continue
        waits = np.flatnonzero(start[:row] > now)
        errors = np.concatenate((error[known], (now - made[waits] + OFFSET_S) ** power - root[waits]))
        has_started = np.repeat((True, False), (len(known), len(waits)))
        by = np.lexsort((~has_started, errors))
        gone = 1.0 - np.cumprod(1.0 - has_started[by] / np.arange(len(by), 0, -1))
        tail = (1.0 - COVERAGE) / 2
        at = np.minimum(np.searchsorted(gone, (tail, 1.0 - tail)), len(by) - 1)
        found[row] = np.maximum(np.maximum(root[row] + errors[by][at], 0.0) ** (1.0 / power) - OFFSET_S, 0.0)
    return found


def score(low: FloatArray, high: FloatArray, wait: FloatArray) -> FloatArray:
    """Interval score of each forecast, in the unit of the waits (F,)."""
    return (high - low) + 2.0 / (1.0 - COVERAGE) * (np.maximum(low - wait, 0.0) + np.maximum(wait - high, 0.0))


def resampled(made: FloatArray, *columns: FloatArray) -> FloatArray:
    """Means of columns over days drawn with replacement (R, C)."""
    _, day = np.unique(made // (MS_PER_DAY / MS_PER_S), return_inverse=True)
    days = int(day.max()) + 1
    sums = np.stack([np.bincount(day, weights=column, minlength=days) for column in (*columns, np.ones(len(made)))])
    picks = np.random.default_rng(2).integers(0, days, (RESAMPLES, days))
    total = sums[:, picks].sum(axis=2)
    found: FloatArray = (total[:-1] / total[-1]).T
    return found


def weeks(made: FloatArray, hit: BoolArray) -> FloatArray:
    """Coverage of each week with enough starts."""
    _, week, count = np.unique(made // (7 * MS_PER_DAY / MS_PER_S), return_inverse=True, return_counts=True)
    return (np.bincount(week, weights=hit) / count)[count >= WEEK_STARTS_MIN]


def report(name: str, trace: Trace, found: Replay, forecasts: Asked) -> None:
    """Print how good the intervals were, and those of the peer."""
    made, wait, low, high = forecasts[:4]
    hit = (low <= wait) & (wait <= high)
    first_hit = (forecasts.first[:, 0] <= wait) & (wait <= forecasts.first[:, 1])
    best: tuple[float, str, FloatArray] | None = None
    for (words, expected), window, power in product(peers(trace, found, forecasts), WINDOWS, POWERS):
        ends = windowed(expected, made, wait, window, power)
        known = ~np.isnan(ends[:, 0])
        mean = float(score(ends[known, 0], ends[known, 1], wait[known]).mean())
        if best is None or mean < best[0]:
            best = mean, f"{words}, {window} errors, power {power:.2g}", ends
    assert best is not None
    ends = best[2]
    known = ~np.isnan(ends[:, 0])
    theirs = score(ends[known, 0], ends[known, 1], wait[known])
    ours = score(low[known], high[known], wait[known])
    by_day = resampled(made, hit.astype(np.float64))[:, 0]
    means = resampled(made[known], ours, theirs)
    peer_hit = (ends[known, 0] <= wait[known]) & (wait[known] <= ends[known, 1])
    half = np.median(made)
    hours = MS_PER_H / MS_PER_S
    print(f"{name}: {len(made):,} starts of jobs that waited, mean wait {wait.mean() / hours:.2f} h", flush=True)
    print(f"  covered {hit.mean():.1%} (95 % of resamples of days {np.quantile(by_day, 0.025):.1%} to "
          f"{np.quantile(by_day, 0.975):.1%}), first half {hit[made <= half].mean():.1%}, second "
          f"{hit[made > half].mean():.1%}; worst week {weeks(made, hit).min():.1%}; "
          f"without the record {first_hit.mean():.1%}")
    ratio = means[:, 0] / means[:, 1]
    print(f"  interval score {ours.mean() / hours:.2f} h, peer {theirs.mean() / hours:.2f} h "
          f"({best[1]}; covered {peer_hit.mean():.1%}): {ours.mean() / theirs.mean() - 1:+.0%} "
          f"({np.quantile(ratio, 0.025) - 1:+.0%} to {np.quantile(ratio, 0.975) - 1:+.0%}), first half "
          f"{ours[made[known] <= half].mean() / theirs[made[known] <= half].mean() - 1:+.0%}, second "
          f"{ours[made[known] > half].mean() / theirs[made[known] > half].mean() - 1:+.0%}", flush=True)


def main() -> None:
    """Ask about each case and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="TRACE:POLICY")
    parser.add_argument("--starts", type=int, default=STARTS)
    options = parser.parse_args()
    for case in options.cases:
        name, _, policy_name = case.partition(":")
        file, since, cluster = TRACES[name]
        trace, _ = traces.read(str(options.data / file))
        trace = traces.since(trace, since) if since else trace
        policy, log = find_policy(policy_name), Log()
        found = replay(trace, parse_cluster(cluster), policy, journal=log)
        report(f"{name} on {cluster} under {policy_name}", trace, found,
               asked(trace, parse_cluster(cluster), policy, found, log, options.starts))


if __name__ == "__main__":
    main()
