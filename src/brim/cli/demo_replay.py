"""The twin's replay of a session that was watched: the same submissions, the speeds and costs that were seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from brim.cli.session import Look, Session
from brim.core.arrays import FloatArray
from brim.core.cluster import Cluster
from brim.core.replay import Replay
from brim.core.trace import NONE, trace_of
from brim.engine.journal import Journal
from brim.policies.sockets import Policy
from brim.sim.faults import Drain, Faults
from brim.sim.overheads import Overheads, PaddingCosts
from brim.sim.truths.seen import SeenRates
from brim.sim.twin import ReplaySettings, replay
from brim.units import MS_PER_S

if TYPE_CHECKING:
    from rich.console import Console

_CHANGES: Final = ("preemptions", "preemptions_twin", "resizes", "resizes_twin")

@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCosts:
    """What changes cost, in ms: medians of what was seen, 0 for a change that was not.

    Attributes:
        start_ms: From a job's first devices to its first step.
        restart_ms: The same for later attempts.
        save_ms: From the decision to take a job's devices until it had left them.
        ready_ms: From the first submission until a job could have been started in that time: the agent loads PyTorch
            once, and forks what it starts from there.
    """

    start_ms: int
    restart_ms: int
    save_ms: int
    ready_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAndTwin:
    """A session, and the twin's replay of it."""

    session: Session
    twin: Replay
    costs: SeenCosts

    @property
    def live_s(self) -> list[float]:
        """JCT of each job in the session."""
        return [self.session.jct_s(job) for job in self.session.ids]

    @property
    def twin_s(self) -> list[float]:
        """JCT of each job in the replay."""
        return [float(value) / MS_PER_S for value in self.twin.finish_ms - self.twin.trace.submit_ms]

    def rows(self) -> list[dict[str, Any]]:
        """What happened to each job, live and in the replay."""
        return [
            {"job": job, "name": planned.name, "user": planned.user, "gpus": planned.gpus, "jct_s": live_s,
             "jct_twin_s": twin_s, "preemptions": self.session.jobs[job].preemptions,
             "preemptions_twin": int(preemptions), "resizes": self.session.resizes(job), "resizes_twin": int(resizes)}
            for job, planned, live_s, twin_s, preemptions, resizes in zip(
                self.session.ids, self.session.plan, self.live_s, self.twin_s, self.twin.preemptions,
                self.twin.resizes, strict=True,
            )
        ]

    def as_json(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {"policy": self.twin.policy, "costs": asdict(self.costs), "jobs": self.rows()}

    def print(self, screen: Console) -> None:
        """Print the jobs live beside the twin, and how far the two differ."""
        from rich import box
        from rich.table import Table

        title = "Completion times in seconds, preemptions and resizes: live, and in the twin's replay"
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="bold")
        for column in ("job", "name", "user", "slots", "live", "replay", "diff.", "preempted\nlive", "\nreplay",
                       "resized\nlive", "\nreplay"):  # fmt: skip
            table.add_column(column, justify="left" if column in ("name", "user") else "right")
        rows = self.rows()
        for row in rows:
            table.add_row(str(row["job"]), row["name"], row["user"], row["gpus"], *self._times(row), *_changes(row),
                          end_section=row is rows[-1])
        means = {name: fmean(row[name] for row in rows) for name in ("jct_s", "jct_twin_s")}
        sums = {name: sum(row[name] for row in rows) for name in _CHANGES}
        table.add_row("mean", "", "", "", *self._times(means), "", "", "", "", style="bold")
        table.add_row("sum", "", "", "", "", "", "", *_changes(sums))
        screen.print(table)
        screen.print(self.accuracy(), highlight=False, markup=False)

    @staticmethod
    def _times(row: Mapping[str, Any]) -> tuple[str, str, str]:
        difference = round(row["jct_twin_s"] - row["jct_s"], 1)
        return f"{row['jct_s']:.1f}", f"{row['jct_twin_s']:.1f}", f"{difference:+.1f}" if difference else "0.0"

    def accuracy(self) -> str:
        """Say how far the replay is from the session, and what of it the session measured."""
        off_s = fmean(abs(live_s - twin_s) for live_s, twin_s in zip(self.live_s, self.twin_s, strict=True))
        costs = self.costs
        return (
            f"The times in the replay differ from the measured ones by {off_s:.1f} s on average. The replay has the "
            f"speeds of this session on each number of slots, and its medians: {costs.start_ms} ms to start a job, "
            f"{costs.save_ms} ms to leave the slots, {costs.restart_ms} ms to start again. It starts nothing in the "
            f"first {costs.ready_ms / MS_PER_S:.1f} s, in which the agent loaded PyTorch, and knows the speed of a job "
            "as soon as it runs." + "".join(
                f" {planned.name} is a padding job: it has the slots that the others leave, and gives them back when "
                "they come; the replay, in which these grow sooner, leaves it less." for planned in self.session.plan
                if planned.is_padding
            )
        )


def _changes(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in _CHANGES)


def replay_of(session: Session, cluster: Cluster, policy: Policy, batch: int) -> LiveAndTwin:
    """Replay a session of jobs that all ran the same script with this batch, and have all finished."""
    plan, jobs = session.plan, [session.jobs[number] for number in session.ids]
    users = tuple(dict.fromkeys(planned.user for planned in plan))
    limits = np.array([job.request.limits for job in jobs], dtype=np.int64)
    costs = seen_costs(session)
    trace = trace_of(
        name="the demo's jobs", format="live", job_id=[str(number) for number in session.ids], users=users,
        submit_ms=[job.submit_ms for job in jobs], user=[users.index(planned.user) for planned in plan],
        gpus=[job.request.gpus for job in jobs], batch=[batch] * len(jobs),
        time_limit_ms=[job.request.time_limit_s * MS_PER_S or NONE for job in jobs],
        job_class=[planned.job_class for planned in plan],
    )
    truth = SeenRates(
        trace, np.tile(seen_rates(session, cluster.num_gpus), (len(jobs), 1)),
        samples=np.array([planned.samples for planned in plan]),
        gpus_min=limits[:, 0], gpus_max=limits[:, 1],
    )
    settings = ReplaySettings(
        overheads=replace(
            Overheads.of_live(start_ms=costs.start_ms, restart_ms=costs.restart_ms, save_ms=costs.save_ms),
            padding=PaddingCosts(
                grace_ms=max((round(job.request.grace_s * MS_PER_S) for job in jobs), default=0),
                join_ms=costs.start_ms,
            ),
        ),
        faults=Faults(drains=(Drain(nodes=(0,), start_ms=0, end_ms=costs.ready_ms),) if costs.ready_ms > 0 else ()),
    )
    twin = replay(trace, cluster, policy, settings, truth=truth, journal=Journal())
    return LiveAndTwin(session=session, twin=twin, costs=costs)


def seen_rates(session: Session, gpus_max: int) -> FloatArray:
    """Samples per second of all jobs together on 1 to ``gpus_max`` GPUs (G,).

    On a number of GPUs that no job was seen to run on, speed is in proportion to the nearest that was seen. Where no
    job was seen to make progress twice, it is that of whole jobs.
    """
    done, time_s = np.zeros(gpus_max + 1), np.zeros(gpus_max + 1)
    for looks in session.looks.values():
        before = 0.0
        for stretch in _stretches(looks):
            gpus, progress = len(stretch[0].devices), [look for look in stretch if look.samples > before]
            before = max(before, stretch[-1].samples)
            if progress:  # from the first sign of progress on: what comes before is the cost of a start or a resize
                done[gpus] += progress[-1].samples - progress[0].samples
                time_s[gpus] += (progress[-1].at_ms - progress[0].at_ms) / MS_PER_S
    if not ((done > 0) & (time_s > 0)).any():  # jobs of a second or two: the whole of each counts, with its start
        for number, planned in zip(session.ids, session.plan, strict=True):
            held = [look for look in session.looks[number] if look.devices]
            done[len(held[-1].devices)] += planned.samples
            time_s[len(held[-1].devices)] += max(session.now_ms - held[0].at_ms, 1) / MS_PER_S
    seen = np.flatnonzero((done > 0) & (time_s > 0))
    sizes = np.arange(1, gpus_max + 1)
    nearest = seen[np.abs(seen[None, :] - sizes[:, None]).argmin(axis=1)]
    rate: FloatArray = done[nearest] / time_s[nearest] * sizes / nearest
    return rate


def _stretches(looks: Iterable[Look]) -> Iterable[list[Look]]:
    """The looks at a job during which it ran on the same devices, in turn."""
    stretch: list[Look] = []
    for look in looks:
        if stretch and (look.state, look.attempt, look.devices) != (
            stretch[-1].state, stretch[-1].attempt, stretch[-1].devices
        ):
            yield stretch
            stretch = []
        if look.state == "running" and look.devices:
            stretch.append(look)
    if stretch:
        yield stretch


def seen_costs(session: Session) -> SeenCosts:
    """What changes cost in a session."""
    begins = {job: list(_begins(looks)) for job, looks in session.looks.items()}
    ready_ms = min(look.at_ms for begun in begins.values() for _, look in begun)
    later = {job: [one for one in begun if one[0].at_ms > ready_ms] for job, begun in begins.items()}
    starts = [look.at_ms - held.at_ms for begun in later.values() for held, look in begun if look.attempt == 1]
    restarts = [look.at_ms - held.at_ms for begun in later.values() for held, look in begun if look.attempt > 1]
    saves = [ms for looks in session.looks.values() for ms in _saves(looks)]
    start_ms = _median(starts)
    first_ms = min(session.jobs[job].submit_ms for job in session.ids) - session.zero_ms
    return SeenCosts(
        start_ms=start_ms, restart_ms=_median(restarts), save_ms=_median(saves),
        ready_ms=max(0, ready_ms - start_ms - first_ms),
    )


def _begins(looks: Sequence[Look]) -> Iterator[tuple[Look, Look]]:
    """For each attempt, the looks at which it first had devices and at which it first ran."""
    for attempt in dict.fromkeys(look.attempt for look in looks):
        own = [look for look in looks if look.attempt == attempt]
        held = next((look for look in own if look.devices), None)
        ran = next((look for look in own if look.state == "running"), None)
        if held is not None and ran is not None:
            yield held, ran


def _saves(looks: Sequence[Look]) -> Iterator[int]:
    """Times from each decision to stop a job that ran until it had left its devices."""
    for number, (before, look) in enumerate(pairwise(looks), 1):
        if before.state == "running" and look.state == "stopping":
            gone = next((later for later in looks[number:] if not later.devices), None)
            if gone is not None:
                yield gone.at_ms - look.at_ms


def _median(values: list[int]) -> int:
    return round(median(values)) if values else 0
