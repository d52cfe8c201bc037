"""Profiles that come with brim: fitted to published measurements, with source, licence and error.

They are priors for jobs of a known kind, and parameters for the twin. The files in ``profiles/`` are written by
benchmarks/refit_profiles.py and contain no measurements. ``brim profile`` writes the same format for one job, with its
measurements in further tables, which this module does not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import numpy as np

from brim.beliefs import loading
from brim.beliefs.throughput import GAMMA_MAX, PARAMETERS
from brim.beliefs.toml_files import parse_toml, read_toml
from brim.core.arrays import FloatArray, frozen
from brim.errors import ConfigError, NotFoundError

NAMES: Final = ("pollux", "gavel", "mlperf", "synergy")
"""The profile files."""
WITH_LOADING: Final = ("synergy",)
"""Those that say how fast jobs load their data."""
QUANTITIES: Final = ("samples_per_s", "time_to_train_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Step times of one model on one GPU type.

    Attributes:
        name: Application, or model and GPU type.
        gpu_type: GPU type it was measured on.
        parameters: Parameters of ``beliefs.throughput``, (P,), read-only.
        residual: Root mean square logarithmic error of the step times it was fitted to.
        points: Configurations it was fitted to.
        gpus_max: Most GPUs among them. The profile is not supported beyond, and at 1 it contains no exchange.
        local_batch: Fewest and most samples per GPU and micro-step among them.
    """

    name: str
    gpu_type: str
    parameters: FloatArray
    residual: float
    points: int
    gpus_max: int
    local_batch: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Speed of one benchmark by the number of accelerators n: ``at_one * n ** exponent``.

    Attributes:
        name: Benchmark and accelerator.
        quantity: One of ``QUANTITIES``.
        at_one: Value extrapolated to one accelerator.
        exponent: 1 (-1 for times) is perfect scaling.
        residual: Root mean square logarithmic error; 0 with two points.
        points: System sizes it was fitted to.
        runs: Number of runs of which these are medians.
        accelerators: Fewest and most accelerators.
    """

    name: str
    quantity: str
    at_one: float
    exponent: float
    residual: float
    points: int
    runs: int
    accelerators: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingProfile:
    """The input pipeline of one model on one machine.

    Attributes:
        name: Model.
        gpu_type: GPU type it was measured on.
        parameters: Parameters of ``beliefs.loading``, (P,), read-only.
        residual: Root mean square logarithmic error of the speeds it was fitted to.
        points: Speeds it was fitted to.
    """

    name: str
    gpu_type: str
    parameters: FloatArray
    residual: float
    points: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One profile file.

    Attributes:
        source: Repository, commit and files of the published measurements.
        licence: Licence of that source.
        fitted: Description of the fit.
        steps: Step-time profiles by name.
        scaling: Scaling laws by name.
        loading: Input pipelines by name.
    """

    source: str
    licence: str
    fitted: str
    steps: Mapping[str, StepProfile]
    scaling: Mapping[str, Scaling]
    loading: Mapping[str, LoadingProfile]


def load(name: str, option: str = "--library", names: Sequence[str] = NAMES) -> Library:
    """Load one of ``NAMES``, or the file at a path that ends in ``.toml``, as ``brim profile`` writes it.

    The option that named it names it in errors, which offer ``names``.

    Raises:
        NotFoundError: there is no such file.
        ConfigError: the file is broken.
    """
    if name in NAMES:
        return _ours(name)
    expected = f"{', '.join(names)} or a .toml file"
    if not name.endswith(".toml"):
        raise NotFoundError(f"{option}: found {name!r}, expected {expected}")
    return parse(read_toml(name, option, expected), name)


@cache
def _ours(name: str) -> Library:
    content = files("brim.beliefs").joinpath("profiles", f"{name}.toml").read_bytes()
    return parse(content.decode(), f"{name}.toml")


def parse(text: str, file: str) -> Library:
    """Read a profile file; ``file`` names it in errors.

    Raises:
        ConfigError: it is not TOML, lacks a field, or has an impossible value; the message names file, entry and field.
    """
    content = parse_toml(text, file)
    top = _Fields(content, file)
    steps = [_step(_Fields(entry, f"{file}, steps {row}")) for row, entry in enumerate(top.tables("steps"), 1)]
    laws = [_scaling(_Fields(entry, f"{file}, scaling {row}")) for row, entry in enumerate(top.tables("scaling"), 1)]
    loaders = [_loading(_Fields(entry, f"{file}, loading {row}")) for row, entry in enumerate(top.tables("loading"), 1)]
    for entries in (steps, laws, loaders):
        names = [entry.name for entry in entries]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"{file}: found {twice[0]!r} twice, expected every name once")
    return Library(
        source=top.text("source"), licence=top.text("licence"), fitted=top.text("fitted"),
        steps={entry.name: entry for entry in steps}, scaling={entry.name: entry for entry in laws},
        loading={entry.name: entry for entry in loaders},
    )


@dataclass(frozen=True, slots=True)
class _Fields:
    """A TOML table whose fields are checked as they are read."""

    content: Mapping[str, Any]
    where: str

    def _get(self, field: str, expected: str) -> Any:
        if field not in self.content:
            raise ConfigError(f"{self.where}: found no {field!r}, expected {expected}")
        return self.content[field]

    def _refuse(self, field: str, value: Any, expected: str) -> ConfigError:
        return ConfigError(f"{self.where}: found {field}={value!r}, expected {expected}")

    def text(self, field: str) -> str:
        value = self._get(field, "a text")
        if not isinstance(value, str) or not value:
            raise self._refuse(field, value, "a text")
        return value

    def real(self, field: str, low: float = -np.inf, high: float = np.inf) -> float:
        to = "up" if high == np.inf else f"to {high:g}"
        expected = "a number above 0" if low == np.finfo(float).tiny else f"a number from {low:g} {to}"
        value = self._get(field, expected)
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise self._refuse(field, value, expected)
        if not low <= value <= high:
            raise self._refuse(field, value, expected)
        return float(value)

    def count(self, field: str) -> int:
        value = self._get(field, "a count from 1 up")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._refuse(field, value, "a count from 1 up")
        return value

    def range(self, field: str) -> tuple[int, int]:
        value = self._get(field, "two counts, the smaller first")
        if not (isinstance(value, list) and len(value) == 2 and all(isinstance(end, int) for end in value)
                and 1 <= value[0] <= value[1]):  # fmt: skip
            raise self._refuse(field, value, "two counts, the smaller first")
        return value[0], value[1]

    def tables(self, field: str) -> list[Mapping[str, Any]]:
        value = self.content.get(field, [])
        if not (isinstance(value, list) and all(isinstance(entry, dict) for entry in value)):
            raise self._refuse(field, value, "an array of tables")
        return value


def _step(fields: _Fields) -> StepProfile:
    values = [fields.real(name, 1.0, GAMMA_MAX) if name == "gamma" else fields.real(name, 0.0) for name in PARAMETERS]
    return StepProfile(
        name=fields.text("name"), gpu_type=fields.text("gpu_type"), parameters=frozen(np.array(values)),
        residual=fields.real("residual", 0.0), points=fields.count("points"), gpus_max=fields.count("gpus_max"),
        local_batch=fields.range("local_batch"),
    )


def _loading(fields: _Fields) -> LoadingProfile:
    lowest = {"rate_per_s": np.finfo(float).tiny, "knee": loading.KNEE_MIN}
    highest = {"knee": loading.KNEE_MAX}
    values = [
        fields.real(name, lowest.get(name, 0.0), highest.get(name, np.inf)) for name in loading.PARAMETERS
    ]
    return LoadingProfile(
        name=fields.text("name"), gpu_type=fields.text("gpu_type"), parameters=frozen(np.array(values)),
        residual=fields.real("residual", 0.0), points=fields.count("points"),
    )


def _scaling(fields: _Fields) -> Scaling:
    quantity = fields.text("quantity")
    if quantity not in QUANTITIES:
        raise ConfigError(f"{fields.where}: found quantity={quantity!r}, expected one of {', '.join(QUANTITIES)}")
    return Scaling(
        name=fields.text("name"), quantity=quantity, at_one=fields.real("at_one", 0.0),
        exponent=fields.real("exponent"), residual=fields.real("residual", 0.0), points=fields.count("points"),
        runs=fields.count("runs"), accelerators=fields.range("accelerators"),
    )
