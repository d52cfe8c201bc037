"""Twelve real jobs, half with losses that nobody can fit, under ``aiturbo``: are they told apart, and in time?

    .venv/bin/python benchmarks/live_predictability.py [--policy FILE_OR_NAME] [--seeds 40] [--draw 0] [--out FILE]
    .venv/bin/python benchmarks/live_predictability.py --no-cluster

With ``--no-cluster``, no job runs: the losses of each named curve are told to the beliefs as a rank would tell them, so
many steps apart, for twenty seeds of each. That shows the curves that are not among the twelve, too.

The real service runs them: controller, agent, supervisors, on two slots that stand for GPUs and on the cores of this
machine. Each job trains with ``brim.train``, may run on either, and reports losses from a named curve
(``timed_curves.py``): six fall along a curve with noise, six do not. ``brim explain`` is asked every two seconds what
it believes of each job that runs. A job counts as classified if the answer was right from 30 % of its run on, and never
changed but from the first to that.

Then the twin replays the same jobs under the same policy many times, with the step times, the starts and the saves that
were measured, drawn anew each time, and with other draws of the same curves: the live mean completion time is to lie
between the 5th and the 95th percentile of those.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from brim.api.client import Client
from brim.beliefs.progress import SeenProgress
from brim.cli.capture import requests_of, work_of
from brim.cli.job_options import asked
from brim.cli.private_cluster import private_cluster
from brim.core.arrays import FloatArray, IntArray
from brim.core.cluster import parse_cluster
from brim.core.events import Report, Sample
from brim.core.losses import LossBook
from brim.core.replay import Replay
from brim.core.trace import NONE, Trace, trace_of
from brim.engine.journal import Journal
from brim.live.recording import RecordedJob, recorded_jobs
from brim.live.records import JobRecord
from brim.live.requests import JobRequest
from brim.live.store.reading import Reader
from brim.live.store.state_folder import DATABASE
from brim.policies.presets import find_policy
from brim.sim.overheads import Overheads
from brim.sim.truths.truth import ALONE, Colocation, Pace
from brim.sim.twin import ReplaySettings, replay
from brim.testing.builders import Job, snapshot_of
from brim.units import MS_PER_S
from timed_curves import CURVES, PREDICTABLE, UNPREDICTABLE, losses

DEVICES: Final = 2
BATCH: Final = 16
LOOK_S: Final = 2.0
REPORT_MS: Final = 1_000
"""Ranks report once a second."""
BY: Final = 0.3
"""Part of its run by which a job is to be classified."""
SCRIPT: Final = str(Path(__file__).with_name("timed_curves.py"))
STEPS: Final = 800
"""Steps of a job, give or take a quarter."""
DRAWS: Final = 20
APART: Final = (4, 8, 10, 32)
"""Steps between reports: one a second if a step takes 0.25, 0.125, 0.1 or 0.031 s."""
PATIENCE_S: Final = 1_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One job: its curve, when it comes, its steps, and the seconds of a step on a device and on CPU."""

    curve: str
    at_s: float
    steps: int
    gpu_s: float
    cpu_s: float
    seed: int

    @property
    def planned(self) -> int:
        """Steps that its user planned: a quarter more than those that it needs."""
        return planned_of(self.steps)

    def losses(self, seed: int) -> FloatArray:
        """Its losses with other draws of the same curve, and with its own for its own seed."""
        return losses(self.curve, seed, self.steps, self.planned)

    @property
    def target(self) -> float:
        """Loss of which its user says that it ends the job: the mean of its last losses."""
        return float(np.mean(self.losses(self.seed)[self.steps - 10 : self.steps]))


def planned_of(steps: int) -> int:
    """Steps that the user of a job planned that needs so many."""
    return steps * 5 // 4


def plan(of_draw: int) -> list[Planned]:
    """The twelve jobs: their lengths, times on CPU and losses are those of a draw."""
    draw = np.random.default_rng(14 + of_draw)
    others = UNPREDICTABLE * 2
    curves = [name for other in others for name in ("falling", other)]
    return [
        Planned(
            curve=curve, at_s=8.0 * place, steps=round(draw.uniform(0.75, 1.25) * STEPS), gpu_s=0.1,
            cpu_s=round(float(draw.uniform(0.12, 0.3)), 3), seed=100 * (of_draw + 1) + place,
        )
        for place, curve in enumerate(curves)
    ]


def request(one: Planned) -> JobRequest:
    """The job as it is submitted."""
    words = [sys.executable, SCRIPT, one.curve, str(one.seed), str(one.steps), str(one.planned), str(one.gpu_s),
             str(one.cpu_s)]  # fmt: skip
    given = {"name": f"{one.curve}-{one.seed}".replace("_", "-"), "devices": "gpu,cpu", "ranks": "per-gpu",
             "target-loss": f"{one.target:.4f}", "batch": str(BATCH)}
    (found,) = requests_of(work_of(words), asked(given), {})
    return found


def run(at: Client, jobs: Sequence[Planned]) -> tuple[list[int], dict[int, list[tuple[float, bool]]]]:
    """Run the jobs; returns their ids, and what was believed of each: samples done, and whether it is predictable."""
    requests, ids, told = [request(one) for one in jobs], list[int](), dict[int, list[tuple[float, bool]]]()
    begin_s = time.monotonic()
    while True:
        now_s = time.monotonic() - begin_s
        while len(ids) < len(jobs) and now_s >= jobs[len(ids)].at_s:
            ids += at.submit([requests[len(ids)]])
        present = at.jobs().jobs
        for job in present:
            if job.devices:
                outlook = at.explain(job.id).get("outlook")
                if outlook is not None:
                    told.setdefault(job.id, []).append((outlook["samples_done"], outlook["is_predictable"]))
        if len(ids) == len(jobs) and not present:
            return ids, told
        if now_s > PATIENCE_S:
            raise TimeoutError(f"{len(present)} jobs have not ended")
        time.sleep(LOOK_S)


def without_cluster() -> None:
    """Say of each curve how many of its draws are classified, with no job."""
    for curve, planned in itertools.product(CURVES, (planned_of(STEPS), 2 * STEPS)):
        counts = []
        for apart in APART:
            found = [classified(curve, STEPS, believed(curve, planned, 1_000 + draw, apart)) for draw in range(DRAWS)]
            counts.append(
                f"every {apart:2} steps {sum(one['is_classified'] for one in found):2} of {DRAWS} "
                f"({sum(one['right_from'] > BY for one in found)} late, {sum(one['flips'] > 1 for one in found)} back)"
            )
        print(f"{curve:12} {planned} planned: {'; '.join(counts)}")


def believed(curve: str, planned: int, seed: int, apart: int) -> list[tuple[float, bool]]:
    """What is believed of a job that reports its loss after each so many steps: samples done, and the answer."""
    book, progress = LossBook(), SeenProgress()
    of_step, found = losses(curve, seed, STEPS, planned), list[tuple[float, bool]]()
    one = snapshot_of("1x1xcpu", Job(batch=BATCH))
    one = replace(one, jobs=replace(one.jobs, samples_max=np.array([planned * BATCH])))
    for step in range(apart, STEPS + 1, apart):
        book.add(0, float(BATCH * step), float(of_step[step - 1]))
        snapshot = replace(one, losses=book.freeze())
        found.append((float(BATCH * step), bool(progress.of_jobs(snapshot).is_predictable[0])))
    return found


def classified(curve: str, steps: int, told: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """When the answer about a job was right for good, as a part of its run, and how often it changed."""
    total, is_predictable = steps * BATCH, curve in PREDICTABLE
    wrong = [done for done, said in told if said is not is_predictable]
    by = max(wrong, default=0.0) / total
    flips = sum(before[1] is not after[1] for before, after in itertools.pairwise(told))
    return {
        "curve": curve, "right_from": by, "flips": flips, "looks": len(told),
        "is_classified": bool(told) and by <= BY and flips <= 1,
    }


class OnTwoKinds:
    """Jobs that run on a device or on CPU at speeds of their own, and report losses once a second.

    Work is counted in samples; see ``brim.sim.truths.truth.Truth``.
    """

    name: ClassVar[str] = "on two kinds of device"
    contended: ClassVar[bool] = False

    def __init__(self, jobs: Sequence[Planned], per_s: FloatArray, seed: int) -> None:
        self._jobs, self._per_s = jobs, per_s
        self._losses = [one.losses(one.seed + 1_000 * seed) for one in jobs]
        self._samples = np.array([one.steps * BATCH for one in jobs])
        self.run_ms = np.ceil(self._samples / per_s[:, 0] * MS_PER_S).astype(np.int64)
        self.shortest_ms = np.floor(self._samples / per_s.max(axis=1) * MS_PER_S).astype(np.int64)
        self.least_gpu_ms = np.zeros(len(jobs), dtype=np.int64)

    def pace(self, job: int, done: float, nodes: tuple[int, ...], batch: int, colocation: Colocation = ALONE) -> Pace:
        """See ``Truth``."""
        on_cpu = not sum(nodes)
        per_s = float(self._per_s[job, int(on_cpu)])
        step = min(max(int(done / BATCH) - 1, 0), self._jobs[job].planned - 1)
        report = Report(
            samples_done=done, samples_per_s=per_s, seen=(Sample(1, int(not on_cpu), BATCH, BATCH / per_s, 0.0),),
            loss=float(self._losses[job][step]) if done >= BATCH else float("nan"),
            samples_max=self._jobs[job].planned * BATCH,
        )
        end = float(self._samples[job])
        until = done + per_s * REPORT_MS / MS_PER_S
        return Pace(per_s / MS_PER_S, min(until, end), until >= end, report)

    def columns(self) -> dict[str, IntArray]:
        """See ``Truth``."""
        one = np.ones(len(self._jobs), dtype=np.int64)
        return {
            "batch": BATCH * one, "batch_min": BATCH * one, "batch_max": BATCH * one, "local_batch_max": BATCH * one,
            "cpu_ranks_max": one, "profile": np.arange(len(one)),
            "target_loss_ppm": np.array([round(1e6 * round(job.target, 4)) for job in self._jobs]),
        }

    def total_samples(self) -> FloatArray:
        """See ``Truth``."""
        return self._samples.astype(np.float64)

    def sentences(self) -> list[str]:
        """See ``Truth``."""
        return ["Jobs run at the speeds that they had live on each kind of device."]


def speeds(one: Planned, job: RecordedJob, draw: np.random.Generator) -> tuple[float, float]:
    """Samples per second on a device and on CPU: the mean of reports that are drawn from those of the job.

    On a kind on which it never ran, its step takes as much longer than its sleep as on the other.
    """
    found = []
    for kind, sleep_s in ((0, one.gpu_s), (1, one.cpu_s)):
        told = [per_s for gpus, per_s in job.speeds if (gpus == 0) is (kind == 1)]
        found.append((float(np.mean(draw.choice(told, len(told)))) if told else float("nan"), sleep_s))
    spare_s = [BATCH / per_s - sleep_s for per_s, sleep_s in found if per_s == per_s]  # noqa: PLR0124 - not NaN
    other_s = statistics.mean(spare_s) if spare_s else 0.0
    gpu, cpu = (per_s if per_s == per_s else BATCH / (sleep_s + other_s) for per_s, sleep_s in found)  # noqa: PLR0124
    return gpu, cpu


def again(
    jobs: Sequence[Planned], recorded: Sequence[RecordedJob], cluster: str, policy: str, gap_ms: int, seed: int
) -> Replay:
    """Replay the jobs with draws of a seed."""
    draw = np.random.default_rng(seed)
    per_s = np.array([speeds(one, job, draw) for one, job in zip(jobs, recorded, strict=True)])
    costs = [
        [ms for job in recorded for ms in job.start_ms[:1]], [ms for job in recorded for ms in job.start_ms[1:]],
        [one.end_ms - one.stop_ms for job in recorded for one in job.attempts if one.stop_ms != NONE and one.run_ms],
    ]
    start_ms, restart_ms, save_ms = (
        int(np.mean(draw.choice(one or costs[0], max(len(one), 1)))) for one in costs
    )
    truth = OnTwoKinds(jobs, per_s, seed)
    first_ms = min(job.ready_ms for job in recorded)
    trace: Trace = trace_of(
        name=f"live, seed {seed}", format="live", job_id=[str(job.job.id) for job in recorded],
        submit_ms=[job.ready_ms - first_ms for job in recorded], gpus=[1] * len(jobs), run_ms=truth.run_ms.tolist(),
        batch=[BATCH] * len(jobs), profiles=[str(place) for place in range(len(jobs))],
        profile=list(range(len(jobs))),
    )
    return replay(
        trace, parse_cluster(cluster), find_policy(policy),
        ReplaySettings(
            overheads=Overheads(start_ms=start_ms, restart_ms=restart_ms, save_ms=save_ms), gap_ms=gap_ms,
        ),
        truth=truth, journal=Journal(),
    )


def main() -> None:
    """Run everything, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="aiturbo")
    parser.add_argument("--seeds", type=int, default=40, help="replays in the twin")
    parser.add_argument("--draw", type=int, default=0, help="another number: other jobs")
    parser.add_argument("--no-cluster", action="store_true", help="run no jobs")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    if options.no_cluster:
        without_cluster()
        return
    jobs = plan(options.draw)
    with tempfile.TemporaryDirectory(prefix="brim-") as folder:
        state = Path(folder) / "state"
        words = ["--devices", str(DEVICES), "--policy", options.policy]
        os.environ["BRIM_STATE"] = str(state)
        with private_cluster(state, words, temporary=Path(folder)) as at:
            ids, told = run(at, jobs)
            records: list[JobRecord] = [at.job(job) for job in ids]
            facts = at.status()["status"]
        reader = Reader(state / "controller" / DATABASE)
        history = reader.history()
        recorded = recorded_jobs(history.jobs, history.attempts, history.lines, history.seen_ms)
        gap_ms = history.settings[-1][1].gap_ms
    found = [classified(one.curve, one.steps, told.get(job, [])) for one, job in zip(jobs, ids, strict=True)]
    live_s = np.array([(job.ended_ms - job.submit_ms) / MS_PER_S for job in records])
    twin = [again(jobs, recorded, facts["cluster"], options.policy, gap_ms, seed)
            for seed in range(options.seeds)]
    twin_s = np.array([(one.finish_ms - one.trace.submit_ms) / MS_PER_S for one in twin])
    low, high = np.quantile(twin_s.mean(axis=1), (0.05, 0.95))
    low_J, high_J = np.quantile(twin_s, (0.05, 0.95), axis=0)
    said = {
        "jobs": [
            {**one, "jct_live_s": float(live), "jct_twin_s": [float(least), float(most)],
             "attempts": len(job.attempts), "state": job.job.state}
            for one, live, least, most, job in zip(found, live_s, low_J, high_J, recorded, strict=True)
        ],
        "classified": sum(one["is_classified"] for one in found),
        "exchanges": sum(attempt.stop_ms != NONE for job in recorded for attempt in job.attempts),
        "jct_live_s": float(live_s.mean()), "jct_twin_s": [float(low), float(high)],
        "within": bool(low <= live_s.mean() <= high),
    }
    for one in said["jobs"]:
        print(f"{one['curve']:12} right from {one['right_from']:4.0%}, {one['flips']} changes in {one['looks']} looks; "
              f"JCT {one['jct_live_s']:6.1f} s, twin {one['jct_twin_s'][0]:6.1f} to {one['jct_twin_s'][1]:6.1f} s, "
              f"{one['attempts']} attempts, {one['state']}")
    print(f"{said['classified']} of {len(jobs)} classified by {BY:.0%} of their run without a flip back; "
          f"mean JCT {said['jct_live_s']:.1f} s, twin {low:.1f} to {high:.1f} s over {options.seeds} seeds: "
          f"{'within' if said['within'] else 'NOT within'}; {said['exchanges']} stops")
    if options.out:
        options.out.write_text(json.dumps(said, indent=1))


if __name__ == "__main__":
    main()
