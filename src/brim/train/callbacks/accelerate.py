"""The public import path of `brim.train.integrations.accelerate`."""

from brim.train.integrations.accelerate import BrimLoop

__all__ = ["BrimLoop"]
