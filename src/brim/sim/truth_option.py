"""The truth chosen at the command line; small, so that it can be sent to other processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brim.beliefs.library import WITH_LOADING, load
from brim.beliefs.measured_sets import load_sets
from brim.core.cluster import Cluster
from brim.core.trace import Trace
from brim.errors import ConfigError
from brim.sim.overheads import Overheads
from brim.sim.truths.rigid import Rigid
from brim.sim.truths.truth import Truth

if TYPE_CHECKING:
    from brim.sim.truths.profiles import Application

TRUTHS: Final = ("rigid", "measured", "parametric")


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthOption:
    """The name of a truth, and its inputs.

    Attributes:
        name: One of ``TRUTHS``.
        profiles: Folder of measured applications, for ``measured``.
        elastic_share: Share of jobs that can change their size, for ``parametric``; None for its default.
        sharing: How jobs that share GPUs slow each other down: ``demand``, or a file of measured sets; empty for not
            at all.
        loading: Library of the loaders that jobs really have, by model; empty for data that is always there.

    Raises:
        ConfigError: there is no such truth, it lacks an input, or an input does not belong to it.
    """

    name: str = "rigid"
    profiles: Path | None = None
    elastic_share: float | None = None
    sharing: str = ""
    loading: str = ""

    def __post_init__(self) -> None:
        if self.name not in TRUTHS:
            raise ConfigError(f"--truth: found {self.name!r}, expected one of {', '.join(TRUTHS)}")
        if self.name == "measured" and self.profiles is None:
            raise ConfigError("--truth measured: found no --profiles, expected the folder of the measured applications")
        if self.name != "measured" and self.profiles is not None:
            raise ConfigError(f"--profiles: found {self.profiles} with truth {self.name!r}, expected --truth measured")
        if self.elastic_share is not None:
            if self.name != "parametric":
                raise ConfigError(
                    f"--elastic-share: found {self.elastic_share:g} with truth {self.name!r}, expected --truth "
                    "parametric"
                )
            if not 0 <= self.elastic_share <= 1:
                raise ConfigError(f"--elastic-share: found {self.elastic_share:g}, expected a number from 0 to 1")

    def overheads(self) -> Overheads:
        """Costs of changes under this truth, by default."""
        return Overheads.of_pollux() if self.name == "measured" else Overheads()

    def build(self, trace: Trace, cluster: Cluster, seed: int = 0) -> Truth:
        """Make the truth of one trace on one cluster; the seed is for truths that draw random numbers.

        Raises:
            ConfigError: profiles are missing or wrong, or do not fit the trace.
        """
        truth = self._alone(trace, cluster, seed)
        if self.sharing:
            from brim.sim.truths.sharing import DEMAND, Sharing  # noqa: PLC0415

            measured = DEMAND if self.sharing == "demand" else load_sets(self.sharing, "--sharing")
            truth = Sharing(truth, trace, measured, cluster.gpu_types)
        if self.loading:
            from brim.sim.truths.loading import LoadingData  # noqa: PLC0415

            models = load(self.loading, "--loading", WITH_LOADING).loading
            if not models:
                raise ConfigError(f"--loading {self.loading}: found no 'loading' table, expected at least one")
            truth = LoadingData(truth, trace, cluster, {name: one.parameters for name, one in models.items()})
        return truth

    def _alone(self, trace: Trace, cluster: Cluster, seed: int) -> Truth:
        """The truth of jobs that have their GPUs alone."""
        if self.profiles is not None:
            from brim.sim.truths.measured import Measured  # noqa: PLC0415 - tables are only read where they are asked for

            return Measured(trace, cluster, _applications(self.profiles))
        if self.name == "parametric":
            from brim.sim.truths.categories import ELASTIC_SHARE, drawn_jobs  # noqa: PLC0415

            share = ELASTIC_SHARE if self.elastic_share is None else self.elastic_share
            return drawn_jobs(trace, cluster, share, seed)
        return Rigid(trace)


    def runnable(self, trace: Trace, cluster: Cluster) -> tuple[Trace, tuple[str, ...]]:
        """Leave out jobs without a truth; return the remaining trace and a sentence that says so.

        Raises:
            ConfigError: profiles are wrong, or no job is left.
        """
        if self.profiles is None:
            return trace, ()
        from brim.sim.truths.measured import without_unmeasured  # noqa: PLC0415

        return without_unmeasured(trace, cluster, _applications(self.profiles))


RIGID: Final = TruthOption()


@lru_cache(maxsize=4)
def _applications(folder: Path) -> dict[str, Application]:
    from brim.sim.truths.profiles import read_applications  # noqa: PLC0415

    return read_applications(folder)
