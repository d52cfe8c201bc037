"""The policy of `brim demo`: `goodput` with rounds for jobs of seconds, where the preset has them for jobs of hours.

A padding job fills what it leaves. In a demo no gap is known to be long, so it takes every one.
"""

from dataclasses import replace

from brim.policies.fill.padding import Padding
from brim.policies.presets import PRESETS

policy = replace(
    PRESETS["goodput"], name="goodput and padding, rounds 1 to 4 s apart", gap_ms=1_000, period_ms=4_000,
    fill=Padding(join_ratio=0.0),
)
