"""Actions in a few words, for jobs that were started once and not changed since."""

from __future__ import annotations

from brim.core.actions import Resize, Start, Tune
from brim.core.setting import setting_of
from brim.core.trace import NONE


def start(job, attempt, gpus, loaders=0, batch=NONE, analyse=False, *, share=1000):
    """A first start if ``attempt`` is 1."""
    return Start(
        job, attempt, attempt, setting_of(gpus, batch=batch, share_milli=share, loader_workers=loaders), analyse
    )


def resize(job, sequence, gpus, batch=NONE, loaders=0, *, share=1000):
    """The first change after a start if ``sequence`` is 2."""
    setting = setting_of(gpus, batch=batch, share_milli=share, loader_workers=loaders)
    return Resize(job, sequence - 1, sequence, setting)


def tune(job, attempt, gpus, batch=NONE, loaders=0, *, revocable=False, share=1000):
    """The first change after a start."""
    return Tune(job, attempt, attempt + 1, setting_of(
        gpus, batch=batch, loader_workers=loaders, revocable=revocable, share_milli=share,
    ))
