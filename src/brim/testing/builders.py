"""Short builders for tests: jobs in seconds, small traces, states and snapshots.

Example:
    >>> trace = small_trace(job(at=0, run=10), job(at=2, run=5, gpus=2, user="ann"))
    >>> trace.gpus.tolist(), trace.run_ms.tolist()
    ([1, 2], [10000, 5000])
    >>> snapshot = snapshot_of("1x2xT4", job(on=[(0, 0)]), job(at=3), now=5)
    >>> snapshot.jobs.run_ms.tolist(), snapshot.jobs.waits.tolist()
    ([5000, 0], [False, True])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brim.core.cluster import Cluster, parse_cluster
from brim.core.events import Event, JobSpec, Kind, Report
from brim.core.lifecycle import Phase
from brim.core.setting import setting_of
from brim.core.snapshot import Snapshot
from brim.core.state import ClusterState
from brim.core.trace import NONE, JobClass, Status, Trace, trace_of
from brim.errors import ConfigError
from brim.units import MS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of a test. Times in seconds; resources per GPU in brim's units; ``on`` only for states.

    Attributes:
        at: Time of submission.
        run: Run time.
        gpus: GPUs of the whole gang; the length of ``on`` if that is given and the job is rigid.
        share: Thousandths of each GPU.
        cpu: Milli-cores per GPU.
        mem: MiB per GPU.
        gpu_type: Name of the type, empty for any.
        limit: Time limit, None for none.
        gpus_min: Fewest GPUs it can run on; NONE for a rigid job.
        gpus_max: Most GPUs it can run on; NONE for a rigid job.
        batch: Global batch asked for, NONE for none.
        batch_min: Smallest global batch; NONE for ``batch``.
        batch_max: Largest global batch; NONE for ``batch``.
        local_batch_min: Fewest samples per GPU and micro-step, NONE where not known.
        local_batch_max: Most samples per GPU, NONE where not known.
        model: Name of the model it trains, empty for none.
        user: Name of the user.
        after: Name of the job this one waits for, empty for none.
        delay: Seconds between that job's end and this one's eligibility.
        name: Id; empty for ``j0``, ``j1``, ... in the order given.
        on: (node, gpu) pairs the job holds; a pair (node, NONE) is a rank on CPU.
        start: When it got these GPUs; None for ``at``.
        batch_now: Global batch it was given with them; NONE for ``batch``.
        loaders: Loader workers of each of its ranks.
        revocable: Whether its grants are revocable.
        cpu_ranks: Most ranks on CPU.
        sizes: Numbers of GPUs it can run on; empty for all from ``gpus_min`` to ``gpus_max``.
        priority: Priority.
        job_class: Class.
        deadline: When it should have ended, None for no deadline.
        gpu_util: Thousandths of time in which it keeps its GPUs busy when it has them alone.
        gpu_mem: MiB that it uses of each GPU.
        report: Report it makes as soon as it runs, None for none.
        phase: None for RUNNING if ``on`` is given, HELD if ``after`` is given, else PENDING.
    """

    at: float = 0
    run: float = 1
    gpus: int = 1
    share: int = 1000
    cpu: int = 0
    mem: int = 0
    gpu_type: str = ""
    limit: float | None = None
    gpus_min: int = NONE
    gpus_max: int = NONE
    batch: int = NONE
    batch_min: int = NONE
    batch_max: int = NONE
    local_batch_min: int = NONE
    local_batch_max: int = NONE
    model: str = ""
    user: str = "user"
    after: str = ""
    delay: float = 0
    name: str = ""
    on: Sequence[tuple[int, int]] = ()
    start: float | None = None
    batch_now: int = NONE
    loaders: int = 0
    revocable: bool = False
    cpu_ranks: int = 0
    sizes: tuple[int, ...] = ()
    priority: int = 0
    job_class: JobClass = JobClass.REGULAR
    deadline: float | None = None
    gpu_util: int = NONE
    gpu_mem: int = NONE
    report: Report | None = None
    phase: Phase | None = None

    @property
    def asked(self) -> int:
        """GPUs its user asked for."""
        return self.gpus if self.gpus_max != NONE or self.sizes else sum(gpu != NONE for _, gpu in self.on) or self.gpus


job = Job


def limits_of(one: Job, gpus: int) -> tuple[int, ...]:
    """gpus_min, gpus_max, batch, batch_min, batch_max, local_batch_min, local_batch_max of ``JobSpec``."""
    fewest, widest = (one.sizes[0], one.sizes[-1]) if one.sizes else (gpus, gpus)
    least, most = fewest if one.gpus_min == NONE else one.gpus_min, widest if one.gpus_max == NONE else one.gpus_max
    small, large = (one.batch if limit == NONE else limit for limit in (one.batch_min, one.batch_max))
    return least, most, one.batch, small, large, one.local_batch_min, one.local_batch_max


def small_trace(*jobs: Job, name: str = "small") -> Trace:
    """Build a trace from jobs in any order; the earliest should be submitted at 0.

    Raises:
        ConfigError: ``after`` names a job that is not among them.
    """
    names = names_of(jobs)
    users = tuple(dict.fromkeys(one.user for one in jobs))
    types = tuple(dict.fromkeys(one.gpu_type for one in jobs if one.gpu_type))
    models = _models(jobs)
    lists = tuple(dict.fromkeys(one.sizes for one in jobs if one.sizes))
    return trace_of(
        name=name, format="test", synthetic=True, job_id=names, users=users, gpu_types=types,
        profiles=models, profile=[models.index(one.model) if one.model else NONE for one in jobs],
        batch=[one.batch for one in jobs],
        submit_ms=[_ms(one.at) for one in jobs],
        run_ms=[_ms(one.run) for one in jobs],
        gpus=[one.gpus for one in jobs],
        share_milli=[one.share for one in jobs],
        cpu_milli=[one.cpu for one in jobs],
        mem_mib=[one.mem for one in jobs],
        gpu_type=[types.index(one.gpu_type) if one.gpu_type else NONE for one in jobs],
        time_limit_ms=[NONE if one.limit is None else _ms(one.limit) for one in jobs],
        user=[users.index(one.user) for one in jobs],
        after=[_row_of(one.after, names) for one in jobs],
        after_ms=[_ms(one.delay) for one in jobs],
        status=[Status.COMPLETED] * len(jobs), priority=[one.priority for one in jobs],
        job_class=[one.job_class for one in jobs],
        relative_deadline_ms=[NONE if one.deadline is None else _ms(one.deadline - one.at) for one in jobs],
        gpu_util_milli=[one.gpu_util for one in jobs], gpu_mem_mib=[one.gpu_mem for one in jobs],
        size_list=[lists.index(one.sizes) if one.sizes else NONE for one in jobs], size_lists=lists,
    )


def state_with(
    cluster: Cluster | str, *jobs: Job, now: float = 0, down: Sequence[int] = (), draining: Sequence[int] = (),
    withheld: Sequence[tuple[int, int]] = (),
) -> ClusterState:
    """Build a state by applying the events that lead to it; job ids follow submission, then the order given.

    Raises:
        InvariantError: no sequence of events leads to this state.
    """
    where = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    names = names_of(jobs)
    rows = sorted(range(len(jobs)), key=lambda row: (_ms(jobs[row].at), row))
    id_of = {names[row]: number for number, row in enumerate(rows)}
    state = ClusterState(where, tuple(dict.fromkeys(one.user for one in jobs)))
    events: list[Event] = []
    for number, row in enumerate(rows):
        events += _story(jobs[row], number, id_of, state, _models(jobs))
    events += [Event(_ms(now), Kind.NODE_DOWN, node=node) for node in down]
    events += [Event(_ms(now), Kind.NODE_DRAIN, node=node) for node in draining]
    events += [Event(_ms(now), Kind.GPU_WITHHELD, node=node, gpu=gpu) for node, gpu in withheld]
    for event in sorted(events, key=lambda event: (event.time_ms, _STORY_ORDER.index(event.kind))):
        state.apply(event)
    return state


def snapshot_of(
    cluster: Cluster | str, *jobs: Job, now: float = 0, down: Sequence[int] = (), draining: Sequence[int] = (),
    withheld: Sequence[tuple[int, int]] = (),
) -> Snapshot:
    """Freeze ``state_with`` at ``now``."""
    return state_with(cluster, *jobs, now=now, down=down, draining=draining, withheld=withheld).freeze(_ms(now))


_STORY_ORDER = (
    Kind.SUBMITTED, Kind.START, Kind.STARTED, Kind.REPORTED, Kind.PREEMPT, Kind.NODE_DRAIN, Kind.NODE_DOWN,
    Kind.GPU_WITHHELD,
)


def _story(
    one: Job, number: int, id_of: dict[str, int], state: ClusterState, models: tuple[str, ...]
) -> list[Event]:
    """Events that bring one job into its phase."""
    types = state.cluster.gpu_types
    if one.gpu_type and one.gpu_type not in types:
        raise ConfigError(f"job {number} asks for {one.gpu_type!r}, but the cluster has {', '.join(types)}")
    least, most, batch, small, large, local_min, local_max = limits_of(one, one.asked)
    spec = JobSpec(
        id=number, user=state.user_code(one.user), submit_ms=_ms(one.at), gpus=one.asked,
        share_milli=one.share, cpu_milli=one.cpu, mem_mib=one.mem,
        gpu_type=types.index(one.gpu_type) if one.gpu_type else NONE,
        time_limit_ms=NONE if one.limit is None else _ms(one.limit),
        after=id_of[one.after] if one.after else NONE, gpus_min=least, gpus_max=most, batch=batch, batch_min=small,
        batch_max=large, local_batch_min=local_min, local_batch_max=local_max,
        profile=models.index(one.model) if one.model else NONE, cpu_ranks_max=one.cpu_ranks,
        sizes=one.sizes, priority=one.priority, job_class=one.job_class,
        deadline_ms=NONE if one.deadline is None else _ms(one.deadline), gpu_util_milli=one.gpu_util,
        gpu_mem_mib=one.gpu_mem,
    )
    phase = one.phase
    if phase is None:
        phase = Phase.RUNNING if one.on else Phase.HELD if one.after else Phase.PENDING
    story = [Event(_ms(one.at), Kind.SUBMITTED, number, spec=spec, held=phase is Phase.HELD)]
    if one.on:
        start_ms = _ms(one.at if one.start is None else one.start)
        given = one.batch if one.batch_now == NONE else one.batch_now
        setting = setting_of(
            sorted(one.on), batch=given, share_milli=one.share, loader_workers=one.loaders, revocable=one.revocable
        )
        story.append(Event(start_ms, Kind.START, number, setting=setting))
        if phase is not Phase.STARTING:
            story.append(Event(start_ms, Kind.STARTED, number))
            if one.report is not None:
                story.append(Event(start_ms, Kind.REPORTED, number, report=one.report))
        if phase is Phase.STOPPING:
            story.append(Event(start_ms, Kind.PREEMPT, number))
    return story


def names_of(jobs: Sequence[Job]) -> list[str]:
    """Ids of the jobs, in the order given."""
    return [one.name or f"j{row}" for row, one in enumerate(jobs)]


def _models(jobs: Sequence[Job]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.model for one in jobs if one.model))


def _row_of(name: str, names: Sequence[str]) -> int:
    if not name:
        return NONE
    if name not in names:
        raise ConfigError(f"a job waits for job {name!r}, which is not in the trace")
    return names.index(name)


def _ms(seconds: float) -> int:
    return round(seconds * MS_PER_S)
