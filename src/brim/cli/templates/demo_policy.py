"""The policy of `brim demo`: `goodput` with rounds for jobs of seconds, where the preset has them for jobs of hours."""

from dataclasses import replace

from brim.policies.presets import PRESETS

policy = replace(PRESETS["goodput"], name="goodput, rounds 1 to 4 s apart", gap_ms=1_000, period_ms=4_000)
