"""Replays of GPU clusters under other scheduling policies, live sessions on one machine, and elastic training."""

__version__ = "0.1.0"
