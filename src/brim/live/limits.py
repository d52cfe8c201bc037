"""How many jobs of a group may wait for devices or run at the same time; the others are held with that reason.

Nothing is counted along: of a group of which a job has changed, all jobs are looked at before the next round. So a
restart, a job that is held, or one that is cancelled is no case of its own.
"""

from __future__ import annotations

from brim.live import holds
from brim.live.books import Books


def keep_array_limits(books: Books) -> bool:
    """Let as many jobs of each array wait for devices as may run at the same time; returns whether any changed.

    Those that have begun come first, then those that wait already, then the others by id. A job that is held for
    another reason takes no place.
    """
    changed, limited = False, (holds.ARRAY_LIMIT,)
    for array in sorted(books.limited):
        jobs = [books.jobs[job] for job in books.arrays.get(array, ())]
        ready = [job for job in jobs if job.id in books.ledger or job.holds in ((), limited)]
        ready.sort(key=lambda job: (job.id not in books.ledger, job.holds == limited, job.id))
        for place, job in enumerate(ready):
            may_run = job.id in books.ledger or place < job.request.array_limit
            if may_run and holds.ARRAY_LIMIT in job.holds:
                books.drop_hold(job.id, holds.ARRAY_LIMIT)
            elif not may_run and not job.holds:
                books.add_hold(job.id, holds.ARRAY_LIMIT, holds.because(limited))
            else:
                continue
            changed = True
    books.limited.clear()
    return changed
