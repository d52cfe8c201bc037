"""Why a job may not start whatever is free, and what the engine is told of a request.

A job has as many holds as there are reasons; it waits for devices only without any. Each hold is a text that users
read: ``user``, ``begin``, ``agent``, ``crash guard``, ``back-off``, ``array limit``, ``quota``, ``after 3``,
``after 3 failed`` (for good), ``impossible: ...``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from brim.core.cluster import UNNAMED, Cluster
from brim.core.events import JobSpec
from brim.core.gpu_names import is_of_type
from brim.core.trace import NONE, JobClass
from brim.live.records import JobRecord, JobStatus
from brim.live.requests import JobRequest
from brim.policies.sockets import Policy
from brim.units import MS_PER_S

USER: Final = "user"
BEGIN: Final = "begin"
AGENT: Final = "agent"
CRASH_GUARD: Final = "crash guard"
BACK_OFF: Final = "back-off"
ARRAY_LIMIT: Final = "array limit"
QUOTA: Final = "quota"
_IMPOSSIBLE: Final = "impossible: "
_WAITS_FOR: Final = "it waits for job "
RELEASED: Final = (USER, CRASH_GUARD, BACK_OFF)
"""The holds that a user's release takes off."""
_CLASSES: Final[Mapping[str, JobClass]] = {
    "regular": JobClass.REGULAR, "urgent": JobClass.URGENT, "padding": JobClass.PADDING,
}
_CORE_MILLI: Final = 1_000
_MILLION: Final = 1_000_000


def after(job: int) -> str:
    """The hold of a job that waits for another."""
    return f"after {job}"


def after_ended(request: JobRequest, job: int, state: JobStatus) -> str:
    """The hold, for good, of a job that waits for another to end otherwise than it did; empty if that end lets it go.

    Args:
        request: The job that waits.
        job: The job that has ended.
        state: How that has ended: ``finished``, ``cancelled`` or ``failed``.
    """
    wrong = (job in request.after and state != "finished") or (job in request.after_not_ok and state == "finished")
    return f"after {job} {state}" if wrong else ""


def impossible(reason: str) -> str:
    """The hold of a job that could not run if the cluster were empty."""
    return f"{_IMPOSSIBLE}{reason}"


def is_of_cluster(hold: str) -> bool:
    """Whether it is the hold of a job that could run on another cluster or under another policy."""
    return hold.startswith(_IMPOSSIBLE) and not hold.startswith(impossible(_WAITS_FOR))


def because(held: tuple[str, ...]) -> str:
    """The reason of a job with these holds; empty without any. Limits are none as long as anything else holds it."""
    others = tuple(hold for hold in held if hold not in (ARRAY_LIMIT, QUOTA))
    return f"held: {', '.join(others or held)}" if held else ""


def first_holds(
    job: JobRecord, cluster: Cluster, end_of: Callable[[int], JobStatus | None], *, begins: bool, absent: bool,
    limited: bool = False, policy: Policy | None = None,
) -> tuple[str, ...]:
    """Return the holds of a new job.

    Args:
        job: The job as submitted, with the holds its user gave it.
        cluster: The cluster.
        end_of: State in which an earlier job ended, None while it has not.
        begins: Whether the time before which it must not start is still to come.
        absent: Whether its user's agent is not there.
        limited: Whether users have a quota; whether the job fits it is found out before the next round.
        policy: The policy; see ``why_impossible``.

    Raises:
        LookupError: ``end_of`` may raise it for a job that does not exist.
    """
    found = [*job.holds, *([USER] if job.request.hold else [])]
    for other in job.request.before:
        try:
            end = end_of(other)
        except LookupError:
            found.append(impossible(f"{_WAITS_FOR}{other}, which does not exist"))
            continue
        if end is None:
            found.append(after(other))
        elif hold := after_ended(job.request, other, end):
            found.append(hold)
    found += [BEGIN] * begins + [AGENT] * absent
    found += [ARRAY_LIMIT] * (job.request.array_limit != NONE) + [QUOTA] * limited
    reason = why_impossible(job.request, cluster, policy)
    return tuple(dict.fromkeys([*found, *([impossible(reason)] if reason else [])]))


def why_impossible(request: JobRequest, cluster: Cluster, policy: Policy | None = None) -> str:
    """Why a job could not run if the cluster were empty; empty if it could.

    Args:
        request: The job.
        cluster: The cluster.
        policy: The policy; None if it is not known, and counts as one that runs jobs on CPU.
    """
    runs_on_cpu = policy is None or policy.places_on_cpu
    if request.is_cpu_only:
        if policy is not None and not runs_on_cpu:
            return f"policy {policy.name} runs no job on CPU"
        return _why_not_on_cpu(request, cluster)
    reason = _why_not_on_gpu(request, cluster)
    return "" if "cpu" in request.devices and runs_on_cpu and not _why_not_on_cpu(request, cluster) else reason


def _why_not_on_cpu(request: JobRequest, cluster: Cluster) -> str:
    """Why the ranks of a job do not fit on the cores of the nodes."""
    cores, mem = max(request.cpus_per_gpu, 1.0) * _CORE_MILLI, request.mem_mib_per_gpu
    room = cluster.cpu_milli_N // cores
    if mem:
        room = np.minimum(room, cluster.mem_mib_N // mem)
    if int(room.sum()) >= request.gpus:
        return ""
    wants = [_cores(request.gpus * cores / _CORE_MILLI)] + [_gib(request.gpus * mem)] * bool(mem)
    node_cores, node_mem = cluster.cpu_milli_N.max() / _CORE_MILLI, int(cluster.mem_mib_N.max())
    has = [_cores(node_cores)] + [_gib(node_mem)] * bool(mem)
    return f"it needs {' and '.join(wants)} on CPU, a node has {' and '.join(has)}"


def _why_not_on_gpu(request: JobRequest, cluster: Cluster) -> str:
    code, least = type_code(request, cluster), request.limits[0]
    if request.gpu_type and code == NONE and UNNAMED not in cluster.gpu_types:
        return f"it needs GPUs of type {request.gpu_type}, the cluster has {' and '.join(cluster.gpu_types)}"
    fits = (cluster.gpu_type_N == code) | (code == NONE)
    most = int(cluster.gpus_N[fits].sum())
    if least > most:
        kind = f" {request.gpu_type}" if request.gpu_type else ""
        return f"it needs {least}{kind} GPUs, the cluster has {most}"
    cores, mem = request.cpus_per_gpu * _CORE_MILLI, request.mem_mib_per_gpu
    room = cluster.gpus_N.astype(np.float64)
    for asked, has in ((cores, cluster.cpu_milli_N), (mem, cluster.mem_mib_N)):
        if asked:
            room = np.minimum(room, has // asked)
    if int(room[fits].sum()) < least:
        node_cores, node_mem = cluster.cpu_milli_N[fits].max() / _CORE_MILLI, int(cluster.mem_mib_N[fits].max())
        wants = [_cores(least * request.cpus_per_gpu)] * bool(cores) + [_gib(least * mem)] * bool(mem)
        return f"it needs {' and '.join(wants)}, a node has {_cores(node_cores)} and {_gib(node_mem)}"
    return ""


def _cores(number: float) -> str:
    return f"{number:g} core{'' if number == 1 else 's'}"


def _gib(mem_mib: int) -> str:
    gib = mem_mib / 1024
    return f"{gib:,.0f} GiB of memory" if gib >= 1000 else f"{gib:.4g} GiB of memory"


def is_room_for(devices: Mapping[int, int], requests: Mapping[int, JobRequest], cluster: Cluster) -> bool:
    """Whether a cluster of one node has the cores and the memory of jobs on these numbers of devices, by job id."""
    cores = sum(count * requests[job].cpus_per_gpu * _CORE_MILLI for job, count in devices.items())
    mem_mib = sum(count * requests[job].mem_mib_per_gpu for job, count in devices.items())
    return bool(cores <= cluster.cpu_milli_N.sum() and mem_mib <= cluster.mem_mib_N.sum())


def sizes_within(request: JobRequest, quota: int) -> tuple[int, int]:
    """Fewest and most GPUs on which a job can run without having more than a quota, if it can; NONE for no quota."""
    if request.is_cpu_only:
        return 0, 0
    least, most = request.limits
    if quota == NONE or not least <= quota < most:
        return least, most
    return least, max(size for size in request.sizes or (quota,) if size <= quota)


def spec_of(job: JobRecord, cluster: Cluster, user: int, submit_ms: int, quota: int = NONE) -> JobSpec:
    """Return what the engine is told of a job; a job that asks for more GPUs than it can get gets what it can run on.

    Args:
        job: The job.
        cluster: The cluster.
        user: Code of its user.
        submit_ms: Time of its submission.
        quota: Most GPUs that the jobs of a user may have; NONE for no quota.
    """
    request = job.request
    least, most = sizes_within(request, quota)
    sizes = tuple(size for size in request.sizes if size <= most)  # of a job that runs on CPU alone: none
    total = min(int(cluster.num_gpus), most)
    gpus = request.gpus
    if least <= total < gpus:
        gpus = max(size for size in sizes or (total,) if size <= total)
    on_cpu = request.gpus if "cpu" in request.devices else 0
    batch = request.batch
    batch_min = batch if request.batch_min == NONE else request.batch_min
    local_batch_max = request.local_batch_max
    if local_batch_max == NONE and batch_min != NONE:  # that much fits, since the job runs on its fewest GPUs with it
        local_batch_max = -(-batch_min // (least or request.gpus))
    return JobSpec(
        id=job.id, user=user, submit_ms=submit_ms, gpus=gpus,
        cpu_milli=round(request.cpus_per_gpu * _CORE_MILLI), mem_mib=request.mem_mib_per_gpu,
        gpu_type=type_code(request, cluster),
        time_limit_ms=request.time_limit_s * MS_PER_S if request.time_limit_s else NONE,
        gpus_min=least, gpus_max=most, sizes=sizes, batch=batch,
        batch_min=batch_min,
        batch_max=batch if request.batch_max == NONE else request.batch_max,
        local_batch_min=request.local_batch_min, local_batch_max=local_batch_max, profile=profile_of(job),
        priority=request.priority, job_class=_CLASSES[request.job_class],
        deadline_ms=cluster_ms(job, request.deadline_s) if request.deadline_s else NONE,
        gpu_util_milli=request.gpu_util_milli, gpu_mem_mib=request.gpu_mem_mib, cpu_ranks_max=on_cpu,
        target_loss_ppm=NONE if request.target_loss == NONE else max(1, round(request.target_loss * _MILLION)),
    )


def cluster_ms(job: JobRecord, unix_s: float) -> int:
    """Cluster time of a moment of the wall clock, as that was when the job was submitted."""
    return job.submit_ms + round((unix_s - job.submitted_s) * MS_PER_S)


def profile_of(job: JobRecord) -> int:
    """Code under which step times of a job are kept after its end: jobs of one user with one name share them."""
    digest = hashlib.sha256(f"{job.uid} {job.request.name}".encode()).digest()
    return int.from_bytes(digest[:6], "big")  # 48 bits: tables of floats hold it exactly


def type_code(request: JobRequest, cluster: Cluster) -> int:
    """Code of the GPU type asked for, NONE for any or for one that the cluster does not have."""
    types = enumerate(cluster.gpu_types)
    return next((code for code, name in types if is_of_type(request.gpu_type, name)), NONE)
