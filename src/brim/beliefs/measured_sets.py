"""Measured slowdowns of sets of jobs that share GPUs: those that come with brim, or those of a TOML file.

``profiles/sharing.toml`` has sets with their source, and the parameter of the rule for all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from brim.beliefs.interference import DemandRule
from brim.beliefs.toml_files import parse_toml, read_toml
from brim.core.gpu_names import is_of_type
from brim.core.slowdowns import NEIGHBOURS_MAX, MeanRatio, ResidentKind, ResidentSet
from brim.core.trace import NONE
from brim.errors import ConfigError

BUILTIN: Final = "builtin"
"""Name of the measured sets that come with brim."""


class MeasuredSet(NamedTuple):
    """Slowdowns of one set of jobs on GPUs of one type: models, then the slowdown of each."""

    gpu_type: str
    models: tuple[str, ...]
    ratios: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSets:
    """One file of measured sets.

    Attributes:
        rule: The rule for sets that were not measured.
        sets: The measured sets.
    """

    rule: DemandRule = field(default_factory=DemandRule)
    sets: tuple[MeasuredSet, ...] = ()


def load_sets(name: str, option: str) -> MeasuredSets:
    """Load the sets that come with brim, or those of a TOML file; ``option`` names the command-line option in errors.

    Raises:
        NotFoundError: there is no such file.
        ConfigError: the file is broken; the message names file, entry and field.
    """
    if name == BUILTIN:
        return _builtin()
    return parse_sets(read_toml(name, option, "demand or a .toml file"), name)


@cache
def _builtin() -> MeasuredSets:
    return parse_sets(files("brim.beliefs").joinpath("profiles", "sharing.toml").read_text("utf-8"), "sharing.toml")


def parse_sets(text: str, file: str) -> MeasuredSets:
    """Read measured sets from TOML; ``file`` names it in errors.

    Raises:
        ConfigError: it is not TOML, or an entry is impossible, such as a slowdown below 1.
    """
    content = parse_toml(text, file)
    rule, sets = content.get("rule", {}), content.get("set", [])
    unknown = sorted(content.keys() - {"rule", "set", "source", "licence", "fitted"})
    if unknown:
        raise ConfigError(f"{file}: found {unknown[0]!r}, expected [rule] and [[set]]")
    if not isinstance(rule, dict):
        raise ConfigError(f"{file}: found rule={rule!r}, expected one table [rule]")
    if not isinstance(sets, list) or not (sets or rule):
        raise ConfigError(f"{file}: found {'[set]' if sets else 'neither'}, expected tables [[set]] or [rule]")
    odd = sorted(rule.keys() - {"per_neighbour", "deviation"})
    if odd:
        raise ConfigError(f"{file}, rule: found {odd[0]!r}, expected per_neighbour and deviation")
    for key, value in rule.items():
        _check_number(value, f"{file}, rule: found {key}={value!r}, expected a number from 0 up")
    try:
        parameters = DemandRule(**rule)
    except ConfigError as error:
        raise ConfigError(f"{file}, {error}") from None
    found = tuple(_set(entry, f"{file}, set {row}") for row, entry in enumerate(sets, 1))
    keys = [(one.gpu_type.lower(), sorted(map(str.lower, one.models))) for one in found]
    for row, key in enumerate(keys):
        if key in keys[:row]:
            same = f"found the models of set {keys.index(key) + 1}"
            raise ConfigError(f"{file}, set {row + 1}: {same}, expected them once for each GPU type")
    return MeasuredSets(rule=parameters, sets=found)


def _set(entry: Any, where: str) -> MeasuredSet:
    fields = {"gpu_type", "models", "slowdown_ratio"}
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: found {entry!r}, expected a table [[set]]")
    if odd := sorted(entry.keys() ^ fields):
        said = f"no {odd[0]!r}" if odd[0] in fields else repr(odd[0])
        raise ConfigError(f"{where}: found {said}, expected gpu_type, models and slowdown_ratio")
    gpu_type, models, ratio = entry["gpu_type"], entry["models"], entry["slowdown_ratio"]
    if not isinstance(gpu_type, str):
        raise ConfigError(f"{where}: found gpu_type={gpu_type!r}, expected the name of a GPU type")
    many = 2 <= len(models) <= NEIGHBOURS_MAX + 1 if isinstance(models, list) else False
    if not many or not all(isinstance(model, str) and model for model in models):
        raise ConfigError(f"{where}: found models={models!r}, expected the names of 2 to {NEIGHBOURS_MAX + 1} models")
    ratios = ratio if isinstance(ratio, list) else [ratio] * len(models)
    if len(ratios) != len(models):
        found = f"{len(ratios)} slowdown_ratio for {len(models)} models"
        raise ConfigError(f"{where}: found {found}, expected one, or one for each")
    for value in ratios:
        said = f"{where}: found slowdown_ratio={value!r}, expected a number of at least 1"
        _check_number(value, said)
        if not 1 <= value < math.inf:
            raise ConfigError(said)
    return MeasuredSet(gpu_type, tuple(models), tuple(float(value) for value in ratios))


def _check_number(value: object, said: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(said)


def seeds_of(
    measured: MeasuredSets, profiles: Sequence[str], gpu_types: Sequence[str]
) -> dict[ResidentSet, MeanRatio]:
    """Return measured sets as a history of jobs without a batch, for models and GPU types by their codes."""
    code_of = {name.lower(): code for code, name in enumerate(profiles)}
    seeds: dict[ResidentSet, MeanRatio] = {}
    for one in measured.sets:
        codes = [code_of.get(model.lower(), NONE) for model in one.models]
        types = [code for code, name in enumerate(gpu_types) if is_of_type(one.gpu_type, name)]
        if NONE in codes:
            continue
        everyone = [ResidentKind(code, NONE) for code in codes]
        for row, ratio in enumerate(one.ratios):
            others = tuple(sorted(everyone[:row] + everyone[row + 1 :]))
            for gpu_type in types:
                key = ResidentSet(everyone[row], gpu_type, others)
                seeds[key] = seeds.get(key, MeanRatio(0, 0.0, 0.0)).with_one(ratio)
    return seeds
