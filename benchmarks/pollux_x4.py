"""A policy file: the preset `pollux` with the limits of `goodput` and `brim`, growth x4 and rounds from 30 s on."""

from dataclasses import replace

from brim.policies.presets import PRESETS
from brim.policies.size.goodput import PolluxFitness

policy = replace(PRESETS["pollux"], name="pollux-x4", size=PolluxFitness(growth=4), gap_ms=30_000)
