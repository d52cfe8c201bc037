"""Measured application profiles: step times and gradient statistics of real training jobs.

A folder contains one folder per application in the layout of Pollux (OSDI 2021): step times by placement, and gradient
statistics by batch size and epoch. They are interpreted as in the published simulator; where it stops with an error,
``StepTimes`` says what happens here.

Source: github.com/petuum/adaptdl, branch osdi21-artifact, simulator/applications.py and simulator.py.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from brim.core.arrays import FloatArray, IntArray
from brim.errors import ConfigError, InvariantError
from brim.sim.truths.profile_tables import (
    PLACEMENTS,
    SCALABILITY,
    Placement,
    Times,
    Validation,
    grouped,
    read_placements,
    read_scalability,
    read_validation,
    rotated,
    shown,
)
from brim.units import counted

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

NODES_MAX: Final = 16
"""More nodes are treated as this many, the most that were measured. Source: the published simulator."""

_NEAR: Final = 1e-8
"""A point that lies outside a simplex by less than this, in barycentric coordinates, counts as inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Properties of an application that its tables do not contain.

    Attributes:
        epochs: Epochs that a job trains.
        local_batch_max: Most samples per GPU, if fewer than were measured.
        fixed_gpus: Number of GPUs of a job that is not elastic; None for elastic jobs.
        fixed_batch: Global batch of a job that is not elastic; None for elastic jobs.
    """

    epochs: int
    local_batch_max: int | None = None
    fixed_gpus: int | None = None
    fixed_batch: int | None = None


KNOWN: Final[Mapping[str, Known]] = {
    "bert": Known(epochs=2),
    "cifar10": Known(epochs=100),
    "deepspeech2": Known(epochs=80),
    "imagenet": Known(epochs=90),
    "ncf": Known(epochs=10, fixed_gpus=1, fixed_batch=32_768),
    "yolov3": Known(epochs=50, local_batch_max=8),
}
"""Source: the published simulator, applications.py (epochs, yolov3's limit) and simulator.py (ncf)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Geometry:
    """The S simplices with a volume, in (nodes, GPUs, local batch).

    Attributes:
        times: Step and exchange times at the corners (2, 4, S).
        origin: The last corner (3, S).
        normals: Gradients of the barycentric coordinates of the other three (3, 3, S).
        low: Least nodes and GPUs of a corner (2, S).
        high: Most nodes and GPUs of a corner (2, S).
    """

    times: FloatArray
    origin: FloatArray
    normals: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTimes:
    """Times of a step and its gradient exchange, by placement and local batch. Results are cached.

    - For a placement in ``placements.csv``, times are interpolated linearly over the local batch.
    - For any other, they are interpolated linearly over (nodes, GPUs, local batch), within the Delaunay simplices of
      the measured points: the means of ``placements.csv`` and the rows of ``scalability.csv``, which take precedence.
      More than 16 nodes are treated as 16.
    - With fewer samples per GPU than were ever measured, a step takes as long as with the fewest measured.
    - Anything else outside the measurements is an error: more samples per GPU than measured on a placement, or more
      GPUs per node or per job. The published simulator stops there too, and also below the fewest samples.
      ``extrapolated_s`` gives times for these.

    Step times are used as measured even if more samples took less time, which is common (yolov3 on one GPU: 0.45 s at 6
    samples, 0.33 s at 8).

    Attributes:
        name: Name of the application, for messages.
        curves: Measured times by placement, rotated to its smallest form, and local batch.
        points: Measured times by (nodes, GPUs, local batch).
        local_batch_min: Fewest samples per GPU measured.
    """

    name: str
    curves: Mapping[Placement, Mapping[int, Times]]
    points: Mapping[tuple[int, int, int], Times]
    local_batch_min: int
    _kept: dict[tuple[Placement, int], Times] = field(default_factory=dict, repr=False)
    _between: list[LinearNDInterpolator] = field(default_factory=list, repr=False)
    _fitted: list[FloatArray] = field(default_factory=list, repr=False)

    def times_s(self, placement: Placement, local_batch: int) -> Times:
        """Return the seconds of one step and of its exchange of gradients.

        Raises:
            ConfigError: the configuration lies outside the measurements.
            InvariantError: the placement is empty or has a node without GPUs, or there are no samples.
        """
        kept = self._kept.get((placement, local_batch))
        if kept is None:
            if not placement or min(placement) < 1 or local_batch < 1:
                raise InvariantError(f"{self.name}: placement {placement} with {local_batch} samples per GPU")
            smallest, local_batch_measured = rotated(placement), max(local_batch, self.local_batch_min)
            curve = self.curves.get(smallest)
            kept = (
                self._around(smallest, local_batch_measured) if curve is None
                else self._along(curve, smallest, local_batch_measured)
            )  # fmt: skip
            self._kept[placement, local_batch] = kept
        return kept

    def _along(self, curve: Mapping[int, Times], placement: Placement, local_batch: int) -> Times:
        if local_batch in curve:
            return curve[local_batch]
        above = min((batch for batch in curve if batch > local_batch), default=None)
        below = max((batch for batch in curve if batch < local_batch), default=None)
        if above is None:
            raise self._unmeasured(placement, local_batch, f"at most {max(curve)} there")
        if below is None:
            return curve[above]
        share = (local_batch - below) / (above - below)
        (step_0, sync_0), (step_1, sync_1) = curve[below], curve[above]
        return step_0 + share * (step_1 - step_0), sync_0 + share * (sync_1 - sync_0)

    def between(self, nodes: IntArray, gpus: int, local_batch: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Interpolate step and exchange times, in s, at N numbers of nodes and B local batches at once, each (N, B).

        NaN outside the simplices. Barycentric coordinates are linear in the local batch, so each simplex covers an
        interval of local batches. The points lie on a grid, and where the simplices on two sides of a face divide it
        differently, they give different times there. ``times_s`` returns those of one side; here, the step and the
        step without its exchange are the least of all sides.

        Args:
            nodes: Numbers of nodes (N,).
            gpus: GPUs in all.
            local_batch: Samples per GPU, ascending (B,).

        Raises:
            ConfigError: too few points were measured to interpolate between.
        """
        at, simplex, slope, start = self._barycentric(nodes, gpus)
        with np.errstate(divide="ignore", invalid="ignore"):
            zero = (-_NEAR - start) / slope
        low = np.where(slope > 0, zero, -np.inf).max(axis=0)
        high = np.where(slope < 0, zero, np.inf).min(axis=0)
        never = ((slope == 0) & (start < -_NEAR)).any(axis=0)
        first = np.searchsorted(local_batch, low, side="left")
        counts = np.where(never, 0, np.maximum(np.searchsorted(local_batch, high, side="right") - first, 0))
        pair = np.repeat(np.arange(len(counts)), counts)
        batch = np.arange(len(pair)) + np.repeat(first - np.cumsum(counts) + counts, counts)
        weights = start[:, pair] + local_batch[batch] * slope[:, pair]
        step, sync = (weights * self._geometry.times[:, :, simplex[pair]]).sum(axis=1)
        least = np.full((2, len(nodes) * len(local_batch)), np.inf)
        where = at[pair] * len(local_batch) + batch
        np.minimum.at(least[0], where, step)
        np.minimum.at(least[1], where, step - sync)
        least[np.isinf(least)] = np.nan
        shape = len(nodes), len(local_batch)
        return least[0].reshape(shape), (least[0] - least[1]).reshape(shape)

    def _barycentric(self, nodes: IntArray, gpus: int) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """Return the F pairs of a number of nodes and a simplex that reaches it with these GPUs.

        Returns:
            Index of the number of nodes and of the simplex, each (F,), and slope and start, each (4, F): the
            barycentric coordinates at a local batch b are start + b * slope.
        """
        self._interpolator(int(nodes[0]), gpus)
        geometry = self._geometry
        place = np.minimum(nodes, NODES_MAX).astype(np.float64)
        reach = np.flatnonzero((geometry.low[1] <= gpus) & (gpus <= geometry.high[1]))
        at, found = np.nonzero((geometry.low[0, reach] <= place[:, None]) & (place[:, None] <= geometry.high[0, reach]))
        simplex = reach[found]
        normals = geometry.normals[:, :, simplex]
        away = np.stack((place[at], np.full(len(at), float(gpus)), np.zeros(len(at)))) - geometry.origin[:, simplex]
        slope, start = normals[:, 2], (normals * away).sum(axis=1)
        return at, simplex, np.vstack((slope, -slope.sum(axis=0))), np.vstack((start, 1 - start.sum(axis=0)))

    @cached_property
    def placements(self) -> Mapping[int, list[Placement]]:
        """The placements with curves, by their number of GPUs."""
        of_gpus: dict[int, list[Placement]] = {}
        for placement in self.curves:
            of_gpus.setdefault(sum(placement), []).append(placement)
        return of_gpus

    @cached_property
    def _geometry(self) -> _Geometry:
        triangles = self._between[0].tri
        corners = triangles.points[triangles.simplices]
        origin = corners[:, 3]
        one, two, three = (corners[:, k] - origin for k in range(3))
        normals = np.stack((np.cross(two, three), np.cross(three, one), np.cross(one, two)), axis=1)
        volume = (normals[:, 0] * one).sum(axis=1)
        solid = volume != 0  # exact: coordinates are whole numbers
        return _Geometry(
            times=np.ascontiguousarray(self._values()[triangles.simplices[solid]].T), origin=origin[solid].T.copy(),
            normals=np.ascontiguousarray(np.moveaxis(normals[solid] / volume[solid, None, None], 0, -1)),
            low=corners[solid, :, :2].min(axis=1).T.copy(), high=corners[solid, :, :2].max(axis=1).T.copy(),
        )

    def extrapolated_s(self, nodes: int, gpus: int, local_batch: FloatArray | int) -> tuple[FloatArray, FloatArray]:
        """Return the seconds of a step and of its exchange by the throughput model fitted to all measured points.

        NaN if no model fits, or for several GPUs if only one was measured. If exchanges were measured only within a
        node or only across nodes, the same times are used for both.
        """
        from brim.beliefs.throughput import grad_s, step_s  # noqa: PLC0415 - see _interpolator

        parameters = self._model()
        if gpus > 1 and not self.exchanges:
            parameters = np.full_like(parameters, np.nan)
        if nodes == 1 and gpus > 1 and not any(n == 1 and g > 1 for n, g, _ in self.points):
            nodes = 2
        step = step_s(parameters, nodes, gpus, local_batch)
        return step, step - grad_s(parameters, local_batch)

    @property
    def exchanges(self) -> bool:
        """Whether steps on more than one GPU were measured."""
        return any(gpus > 1 for _, gpus, _ in self.points)

    def _model(self) -> FloatArray:
        """Parameters of ``beliefs.throughput``."""
        if not self._fitted:
            from brim.beliefs.throughput import Observations, fit  # noqa: PLC0415

            rows = [(*key, *times) for key, times in self.points.items() if times[1] < times[0]]
            nodes, gpus, local_batch, step, sync = np.array(rows, dtype=np.float64).reshape(-1, 5).T
            seen = Observations(
                nodes=nodes.astype(np.int64), gpus=gpus.astype(np.int64), local_batch=local_batch, step_s=step,
                sync_s=sync,
            )
            found = fit(seen)
            self._fitted.append(found.parameters if found.ok else np.full_like(found.parameters, np.nan))
        return self._fitted[0]

    def _values(self) -> FloatArray:
        return np.array(list(self.points.values()), dtype=np.float64)

    def _around(self, placement: Placement, local_batch: int) -> Times:
        nodes, gpus = min(len(placement), NODES_MAX), sum(placement)
        step_s, sync_s = self._interpolator(nodes, gpus)([[nodes, gpus, local_batch]])[0].tolist()
        if math.isnan(step_s):
            raise self._unmeasured(
                placement, local_batch, f"one within the measurements, which reach {max(map(max, self.curves))} GPUs "
                f"per node, {max(nodes for nodes, _, _ in self.points)} nodes and "
                f"{max(gpus for _, gpus, _ in self.points)} GPUs"
            )  # fmt: skip
        return step_s, sync_s

    def _interpolator(self, nodes: int, gpus: int) -> LinearNDInterpolator:
        if self._between:
            return self._between[0]
        from scipy.interpolate import LinearNDInterpolator  # noqa: PLC0415 - a third of a second, often not needed
        from scipy.spatial import QhullError  # noqa: PLC0415

        try:
            self._between.append(LinearNDInterpolator(np.array(list(self.points), dtype=np.float64), self._values()))
        except (QhullError, ValueError):
            raise ConfigError(
                f"{self.name}: no measurement of {counted(gpus, 'GPU')} on {counted(nodes, 'node')} so placed, and "
                f"the {len(self.points)} measured points (nodes, GPUs, local batch) span no volume in which to "
                "interpolate"
            ) from None
        return self._between[0]

    def _unmeasured(self, placement: Placement, local_batch: int, expected: str) -> ConfigError:
        return ConfigError(
            f"{self.name}: placement {shown(placement)} with {counted(local_batch, 'sample')} per GPU was not "
            f"measured; expected {expected}"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Application:
    """One measured training application.

    Attributes:
        name: Name of its folder.
        batch_min: Initial global batch: the smallest validated.
        batch_max: Largest validated global batch.
        local_batch_min: Fewest samples per GPU measured.
        local_batch_max: Most samples per GPU.
        epochs: Epochs that a job trains.
        elastic: Whether a policy may choose its GPUs and batch.
        fixed_gpus: GPUs of a job that is not elastic.
        fixed_batch: Global batch of a job that is not elastic.
        progress_E: Progress at which each epoch ends, in iterations of the initial batch; the last ends the job.
        validation: Gradient statistics.
        step_times: Step times.
    """

    name: str
    batch_min: int
    batch_max: int
    local_batch_min: int
    local_batch_max: int
    epochs: int
    elastic: bool
    fixed_gpus: int | None
    fixed_batch: int | None
    progress_E: FloatArray
    validation: Validation
    step_times: StepTimes

    def times_s(self, placement: Placement, local_batch: int) -> tuple[float, float]:
        """Return the seconds of one step and of its exchange of gradients.

        Outside the measurements, times are extrapolated by the fitted throughput model.

        Args:
            placement: GPUs on each node, each above 0.
            local_batch: Samples per GPU.

        Raises:
            ConfigError: the times cannot be extrapolated either, because no model fits the measurements.
        """
        try:
            return self.step_times.times_s(placement, local_batch)
        except ConfigError:
            step_s, sync_s = self.step_times.extrapolated_s(len(placement), sum(placement), local_batch)
            if math.isnan(step_s):
                raise
            return float(step_s), float(sync_s)

    def measured(self, placement: Placement, local_batch: int) -> bool:
        """Return whether times were measured there, or are interpolated between measured ones."""
        try:
            self.step_times.times_s(placement, local_batch)
        except ConfigError:
            return False
        return True

    def gradient(self, batch: int, epoch: int) -> tuple[float, float]:
        """Return variance and squared norm of the gradient, interpolated linearly between validated batches.

        Raises:
            ConfigError: the batch lies outside the validated ones.
            InvariantError: there is no such epoch.
        """
        if not 0 <= epoch < self.epochs:
            raise InvariantError(f"{self.name}: epoch {epoch} of {self.epochs}")
        if not self.batch_min <= batch <= self.batch_max:
            raise ConfigError(
                f"{self.name}: global batch {batch}, expected {self.batch_min} to {self.batch_max}"
            )
        known = self.validation
        above = bisect_left(known.batch_B, batch)
        high = int(known.batch_B[above])
        var_1, sqr_1 = float(known.grad_var_BE[above, epoch]), float(known.grad_sqr_BE[above, epoch])
        if high == batch:
            return var_1, sqr_1
        low = int(known.batch_B[above - 1])
        var_0, sqr_0 = float(known.grad_var_BE[above - 1, epoch]), float(known.grad_sqr_BE[above - 1, epoch])
        share = (batch - low) / (high - low)
        return var_0 + share * (var_1 - var_0), sqr_0 + share * (sqr_1 - sqr_0)

    def gain(self, batch: int, epoch: int) -> float:
        """Return how many iterations of the initial batch give the same progress as one step at this global batch.

        Raises:
            ConfigError: the batch lies outside the validated ones.
        """
        variance, square = self.gradient(batch, epoch)
        return (variance + square) / (variance / (batch / self.batch_min) + square)

    def split(self, gpus: int, batch: int) -> tuple[int, int]:
        """Return the local batch and the number of extra accumulation steps for a global batch on that many GPUs.

        The resulting batch, GPUs times local batch times (accumulation + 1), is the given one rounded up to whole
        samples per GPU and micro-step, but never above ``batch_max``. On one GPU, a batch above the initial one is
        accumulated at least once, because gradient statistics need two samples of the gradient.

        Raises:
            ConfigError: the largest batch has less than one sample for each GPU.
            InvariantError: no GPUs or no batch.
        """
        if gpus < 1 or batch < 1:
            raise InvariantError(f"{self.name}: batch {batch} on {counted(gpus, 'GPU')}")
        local_batch = -(-batch // gpus)
        accumulation = -(-local_batch // self.local_batch_max) - 1
        if gpus == 1 and batch > self.batch_min:
            accumulation = max(1, accumulation)
        steps = accumulation + 1
        local_batch = min(-(-local_batch // steps), self.batch_max // (gpus * steps))
        if local_batch < 1:
            raise ConfigError(
                f"{self.name}: batch {batch} on {counted(gpus, 'GPU')}: the largest batch, {self.batch_max}, has less "
                "than one sample for each GPU and micro-step"
            )
        return local_batch, accumulation

    def rate(self, placement: Placement, local_batch: int, accumulation: int, epoch: int) -> float:
        """Return the progress per second, in iterations of the initial batch.

        Raises:
            ConfigError: the batch lies outside the validated ones, or the times cannot be extrapolated.
        """
        step_s, sync_s = self.times_s(placement, local_batch)
        gain = self.gain(sum(placement) * local_batch * (accumulation + 1), epoch)
        return gain / (step_s + accumulation * (step_s - sync_s))


def read_applications(folder: Path) -> dict[str, Application]:
    """Read all applications of a folder, in order of their names; plain files and hidden folders are ignored.

    Raises:
        ConfigError: the folder or a table is missing or empty, or a value is impossible; the message names file, row
            and column.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder, expected one with a folder for each profiled application")
    if (folder / PLACEMENTS).exists():
        raise ConfigError(f"{folder}: this is the folder of one application, expected the folder above it")
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not inside:
        raise ConfigError(f"{folder}: it contains no folders, expected one for each profiled application")
    return {path.name: _read_application(path) for path in inside}


def _read_application(folder: Path) -> Application:
    name = folder.name
    known = KNOWN.get(name)
    curves = read_placements(folder / PLACEMENTS)
    points = grouped(curves)
    if (folder / SCALABILITY).exists():
        points |= read_scalability(folder / SCALABILITY)
    validation = read_validation(folder, known.epochs if known else None)
    measured = {local_batch for curve in curves.values() for local_batch in curve}
    local_batch_min, local_batch_max = min(measured), max(measured)
    if known and known.local_batch_max is not None:
        if known.local_batch_max < local_batch_min:
            raise ConfigError(
                f"{folder / PLACEMENTS}: the smallest local_bsz is {local_batch_min}, but {name} has at most "
                f"{known.local_batch_max} samples per GPU"
            )
        local_batch_max = min(local_batch_max, known.local_batch_max)
    return Application(
        name=name, batch_min=int(validation.batch_B[0]), batch_max=int(validation.batch_B[-1]),
        local_batch_min=local_batch_min, local_batch_max=local_batch_max,
        epochs=len(validation.progress_E), elastic=known is None or known.fixed_gpus is None,
        fixed_gpus=known.fixed_gpus if known else None, fixed_batch=known.fixed_batch if known else None,
        progress_E=validation.progress_E, validation=validation,
        step_times=StepTimes(name=name, curves=curves, points=points, local_batch_min=local_batch_min),
    )  # fmt: skip
