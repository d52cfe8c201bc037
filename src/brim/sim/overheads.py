"""Costs of changes in the twin, with their sources. Policies do not see these parameters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from brim.beliefs.overheads import IN_PLACE_MS, RESTART_MS
from brim.errors import ConfigError
from brim.units import MS_PER_MIN, MS_PER_S, show_duration

FACTOR_MAX: Final = 10_000
"""Largest factor on the costs of changes; ours: a restart then takes days, longer than nearly all jobs run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingCosts:
    """Time that changes cost a padding job on GPUs that may be taken from it at once, in ms.

    Attributes:
        grace_ms: Until its GPUs are free at the latest. What it cannot save by then is lost. 5 s, ours.
        in_place: Whether the processes that stay go on when others come or leave. If not, all of them go back to the
            last checkpoint and start again, as under TorchElastic.
        change_ms: Until those that stay go on. 200 ms, as ``beliefs.overheads.IN_PLACE_MS``.
        join_ms: Until a process that joins works; the others go on meanwhile. 5 s: 2 to 5 s with an interpreter that is
            warm.
        blocking_ms: What a checkpoint takes from the training. 1 s: copies to host memory take up to 1 or 2 s.
    """

    grace_ms: int = 5 * MS_PER_S
    in_place: bool = True
    change_ms: int = round(IN_PLACE_MS)
    join_ms: int = 5 * MS_PER_S
    blocking_ms: int = MS_PER_S

    def __post_init__(self) -> None:
        for name in ("grace_ms", "change_ms", "join_ms", "blocking_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"overheads of padding: found {name}={getattr(self, name)}, expected at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Time that changes cost a job while it holds GPUs, in ms.

    Attributes:
        start_ms: From the first start to the first useful step. 0: run times recorded in traces contain it.
        save_ms: From the preemption decision until the GPUs are free. 5 s: our grace for padding, and of the order of
            Acme's blocking checkpoints (NSDI 2024).
        restart_ms: From GPUs granted again to the next useful step: load and warm-up. 30 s, as in Pollux (OSDI 2021).
        checkpoint_ms: Time between checkpoints; a failure loses the work since the last. 30 min, ours.
        resize_ms: What a resize costs where its processes stay, as under a live controller, whose rules for rounds then
            hold (docs/decisions/0003). None: it saves, and restarts.
        padding: What they cost padding jobs, where a policy takes these as such.
    """

    start_ms: int = 0
    save_ms: int = 5 * MS_PER_S
    restart_ms: int = 30 * MS_PER_S
    checkpoint_ms: int = 30 * MS_PER_MIN
    resize_ms: int | None = None
    padding: PaddingCosts = field(default_factory=PaddingCosts)

    def __post_init__(self) -> None:
        for name, least in (("start_ms", 0), ("save_ms", 0), ("restart_ms", 0), ("checkpoint_ms", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"overheads: found {name}={getattr(self, name)}, expected at least {least}")

    @property
    def change_ms(self) -> int:
        """Time in which a job that is started or moved, and then left alone, makes lasting progress."""
        return self.checkpoint_ms + self.start_ms + self.save_ms + self.restart_ms

    @classmethod
    def of_pollux(cls) -> Overheads:
        """Any change of placement, the first included, stops the job for 30 s and loses no step.

        Source: Qiao et al., Pollux, OSDI 2021, section 5.3 (measured: 15 to 120 s), and its published simulator.
        """
        return cls(start_ms=30 * MS_PER_S, save_ms=0, restart_ms=30 * MS_PER_S)

    @classmethod
    def of_live(cls, *, start_ms: int, restart_ms: int, save_ms: int) -> Overheads:
        """Costs that a live cluster recorded, where a resize leaves processes running, as under its controller."""
        return cls(start_ms=start_ms, restart_ms=restart_ms, save_ms=save_ms, resize_ms=round(IN_PLACE_MS))

    def times(self, factor: float) -> Overheads:
        """Scale the costs of changes (not the checkpoint interval): the ``--overheads x2`` of the command line.

        Raises:
            ConfigError: the factor is negative, or above ``FACTOR_MAX``.
        """
        if not 0 <= factor <= FACTOR_MAX:
            once, most = (show_duration(times * RESTART_MS / MS_PER_S) for times in (1, FACTOR_MAX))
            expected = f"x0 to x{FACTOR_MAX}, at which a restart of {once} takes {most}"
            raise ConfigError(f"found x{factor:g}, expected {expected}")
        return Overheads(
            start_ms=round(self.start_ms * factor), save_ms=round(self.save_ms * factor),
            restart_ms=round(self.restart_ms * factor), checkpoint_ms=self.checkpoint_ms,
            resize_ms=None if self.resize_ms is None else round(self.resize_ms * factor),
            padding=replace(
                self.padding, change_ms=round(self.padding.change_ms * factor),
                join_ms=round(self.padding.join_ms * factor),
            ),
        )
