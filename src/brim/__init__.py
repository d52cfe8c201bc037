"""Replays of GPU clusters under other scheduling policies, the service of a shared machine, and elastic training."""

__version__ = "0.1.0"
