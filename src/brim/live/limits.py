"""How many jobs of a group may wait for devices or run at the same time; the others are held with that reason.

Nothing is counted along: of a group of which a job has changed, all jobs are looked at before the next round. So a
restart, a job that is held, or one that is cancelled is no case of its own.
"""

from __future__ import annotations

from brim.live import holds
from brim.live.books import Books
from brim.live.records import JobRecord
from brim.live.requests import NONE


def keep_array_limits(books: Books, most: int) -> bool:
    """Let as many jobs of each array wait for devices as may run at the same time; returns whether any changed.

    Those that have begun come first, then those that wait already, then the others by id. A job that is held for
    another reason than its user's quota takes no place, nor one that needs more than the whole quota.

    Args:
        books: The books.
        most: Most GPUs that the jobs of a user may have at the same time; NONE for no quota.
    """
    changed, limits = False, {holds.ARRAY_LIMIT, holds.QUOTA}
    for array in sorted(books.arrays_changed):
        jobs = [books.jobs[job] for job in books.arrays.get(array, ())]
        ready = [job for job in jobs if job.id in books.ledger or limits.issuperset(job.holds)]
        ready.sort(key=lambda job: (job.id not in books.ledger, holds.ARRAY_LIMIT in job.holds, job.id))
        taken = 0
        for job in ready:
            takes_none = job.id not in books.ledger and _never_fits(job, most)
            may_run = job.id in books.ledger or takes_none or taken < job.request.array_limit
            taken += not takes_none
            if may_run and holds.ARRAY_LIMIT in job.holds:
                books.drop_hold(job.id, holds.ARRAY_LIMIT)
            elif not may_run and holds.ARRAY_LIMIT not in job.holds:
                books.add_hold(job.id, holds.ARRAY_LIMIT, holds.because((holds.ARRAY_LIMIT,)))
            else:
                continue
            changed = True
    books.arrays_changed.clear()
    return changed


def keep_quotas(books: Books, most: int) -> bool:
    """Let jobs of each user wait for devices as long as they have no more GPUs than a user may; whether any changed.

    Those that have begun come first, then those that wait already, then the others by id; a later one may pass one
    that does not fit. A job that can be resized counts with all that it may get: no policy can exceed the quota.

    Args:
        books: The books.
        most: Most GPUs that the jobs of a user may have at the same time; NONE for no quota.
    """
    changed = False
    for uid in sorted(books.users_changed) if most != NONE else ():
        jobs = [books.jobs[job] for job in books.users.get(uid, ())]
        ready = [job for job in jobs if job.id in books.ledger or job.holds in ((), (holds.QUOTA,))]
        ready.sort(key=lambda job: (job.id not in books.ledger, job.holds == (holds.QUOTA,), job.id))
        taken = 0
        for job in ready:
            gpus = job.request.limits[0] if _never_fits(job, most) else holds.sizes_within(job.request, most)[1]
            if job.id in books.ledger or not gpus or taken + gpus <= most:
                taken += gpus
                if holds.QUOTA in job.holds:
                    books.drop_hold(job.id, holds.QUOTA)
                    changed = True
                continue
            reason = f"held: quota: jobs of {job.user} may have {most} GPUs at the same time, and it needs {gpus}"
            if not job.holds:
                books.add_hold(job.id, holds.QUOTA, reason)
                changed = True
            elif job.reason != reason:  # a record for each of many jobs that wait on is most of the time of a pass
                books.put(job.id, reason=reason)
    books.users_changed.clear()
    return changed


def _never_fits(job: JobRecord, most: int) -> bool:
    """Whether a job needs more GPUs than its user may have."""
    return most != NONE and not job.request.is_cpu_only and job.request.limits[0] > most
