"""The public import path of `brim.train.integrations.lightning`."""

from brim.train.integrations.lightning import BrimCallback, ResumableLoader, newest_checkpoint

__all__ = ["BrimCallback", "ResumableLoader", "newest_checkpoint"]
