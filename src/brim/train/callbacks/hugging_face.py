"""The public import path of `brim.train.integrations.hugging_face`."""

from brim.train.integrations.hugging_face import BrimCallback, newest_checkpoint

__all__ = ["BrimCallback", "newest_checkpoint"]
