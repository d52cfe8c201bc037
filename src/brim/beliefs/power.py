"""Power of nodes: curves that come with brim, fitted to published measurements, or those of a TOML file.

The curve and the meter are in ``core/power.py`` and ``core/energy.py``. The file ``profiles/power.toml`` is written by
benchmarks/refit_power.py and contains no measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from brim.beliefs.toml_files import parse_toml, read_toml
from brim.core.cluster import Cluster
from brim.core.gpu_names import is_of_type, words_of
from brim.core.power import PowerCurve
from brim.errors import ConfigError

BUILTIN: Final = "builtin"
"""Name of the curves that come with brim."""
LEAST_GPU_W: Final = 5.0
"""Power of a busy GPU below which a curve must be in another unit. Ours: less than a tenth of what a T4 uses."""
_NUMBERS: Final = ("idle_w", "full_w", "exponent", "asleep_w")
_WITH_DEFAULT: Final = ("exponent", "asleep_w")
_FACTS: Final = frozenset({"name", "source", "licence", "fitted", "residual_w"})
"""Fields of an entry that say where it comes from; they are not read."""


def load_curves(name: str) -> dict[str, PowerCurve]:
    """Load the curves that come with brim, or those of a TOML file, by GPU type in lower case.

    Raises:
        NotFoundError: there is no such file.
        ConfigError: the file is broken; the message names file, entry and field.
    """
    if name == BUILTIN:
        return parse_curves(files("brim.beliefs").joinpath("profiles", "power.toml").read_text("utf-8"), "power.toml")
    return parse_curves(read_toml(name, "--power", f"{BUILTIN} or a file"), name)


def parse_curves(text: str, file: str) -> dict[str, PowerCurve]:
    """Read power curves from TOML; ``file`` names it in errors.

    Raises:
        ConfigError: it is not TOML, or an entry is impossible.
    """
    content = parse_toml(text, file)
    entries = content.get("node")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{file}: found no [[node]], expected one for each GPU type")
    curves: dict[str, PowerCurve] = {}
    for row, entry in enumerate(entries, 1):
        where = f"{file}, node {row}"
        curve = _curve(entry, where)
        if curve.gpu_type.lower() in curves:
            raise ConfigError(f"{where}: found gpu_type={curve.gpu_type!r} again, expected every type once")
        curves[curve.gpu_type.lower()] = curve
    return curves


def _curve(entry: Mapping[str, Any], where: str) -> PowerCurve:
    unknown = sorted(entry.keys() - {"gpu_type", "gpus", *_NUMBERS} - _FACTS)
    if unknown:
        raise ConfigError(f"{where}: found {unknown[0]!r}, expected gpu_type, gpus, {', '.join(_NUMBERS)}")
    missing = [field for field in ("gpu_type", "gpus", *_NUMBERS) if field not in entry and field not in _WITH_DEFAULT]
    if missing:
        raise ConfigError(f"{where}: found no {missing[0]!r}, expected gpu_type, gpus, idle_w and full_w")
    if not isinstance(entry["gpu_type"], str) or not entry["gpu_type"]:
        raise ConfigError(f"{where}: found gpu_type={entry['gpu_type']!r}, expected the name of a GPU type")
    if isinstance(entry["gpus"], bool) or not isinstance(entry["gpus"], int):
        raise ConfigError(f"{where}: found gpus={entry['gpus']!r}, expected the GPUs of a node, at least 1")
    numbers = {field: entry[field] for field in _NUMBERS if field in entry}
    for field, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{where}: found {field}={value!r}, expected a number")
    if 0 < numbers["full_w"] < LEAST_GPU_W * entry["gpus"]:
        raise ConfigError(
            f"{where}: found full_w={numbers['full_w']:g} for {entry['gpus']} GPUs, expected watts, not kilowatts: at "
            f"least {LEAST_GPU_W:g} for each"
        )
    try:
        return PowerCurve(gpu_type=entry["gpu_type"], gpus=entry["gpus"], **numbers)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def curves_for(cluster: Cluster, curves: Mapping[str, PowerCurve]) -> tuple[PowerCurve, ...]:
    """Return the curve of each GPU type of a cluster, in their order.

    The curve of A100 is also that of A100-SXM4-80GB, unless there is one with more words of that name.

    Raises:
        ConfigError: a type has no curve.
    """
    found = []
    for name in cluster.gpu_types:
        fitting = [curve for curve in curves.values() if is_of_type(curve.gpu_type, name)]
        if name.lower() not in curves and not fitting:
            type_ = f"GPUs of type {name}" if name else "GPUs without a type"
            known = ", ".join(sorted(curve.gpu_type for curve in curves.values()))
            raise ConfigError(
                f"--power: found {type_} in the cluster, expected one of {known}, or a TOML file that has it"
            )
        found.append(curves.get(name.lower()) or max(fitting, key=lambda curve: len(words_of(curve.gpu_type))))
    return tuple(found)
