"""Policies that brim does not ship: Python files with a ``Policy``, and entry points of installed packages."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import reduce
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

from brim.errors import ConfigError, one_line
from brim.policies.sockets import Policy

GROUP: Final = "brim.policies"
"""The group of entry points that name a policy, or a module with one."""


def offered() -> EntryPoints:
    """The entry points of installed packages that name policies."""
    return entry_points(group=GROUP)


def policy_of_file(name: str, shipped: Collection[Policy]) -> Policy:
    """Execute a Python file and return its policy; ``shipped`` are those of brim, which a file may look up.

    Raises:
        ConfigError: the file cannot be executed, does not hold one policy, or gives it the name of one of brim.
    """
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"policy file {path}: no such file")
    try:
        names = runpy.run_path(str(path), run_name=f"policy_file:{path.stem}")  # a name that no module has
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a policy file must not end the program
        where = _line_in(error, lambda frame: frame.f_code.co_filename == str(path))
        if isinstance(error, OSError) and not where:
            raise ConfigError(f"policy file {path}: cannot be read: {error.strerror}") from None
        raise ConfigError(f"policy file {where or path}: {_words(error)}") from error
    found = _policy_in(names, f"policy {path}", shipped)
    if any(found.name == preset.name and found is not preset for preset in shipped):
        raise ConfigError(
            f"policy {path}: found name {found.name!r}, which a preset has, expected another, such as 'my-{found.name}'"
        )
    return found


def policy_of(point: EntryPoint, shipped: Collection[Policy], *, afresh: bool = False) -> Policy:
    """Return the policy of an entry point, under its name; ``afresh`` executes its module anew.

    Raises:
        ConfigError: the module cannot be imported, or the entry point names no policy and no module with one.
    """
    what = f"policy {point.name} of {owner(point)}"
    package = point.value.replace(":", ".").partition(".")[0]
    try:
        found = _executed_anew(point) if afresh else point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: an installed package must not end the program
        where = _line_in(error, lambda frame: str(frame.f_globals.get("__name__")).partition(".")[0] == package)
        raise ConfigError(f"{what}, {where or point.value}: {_words(error)}") from error
    if isinstance(found, ModuleType):
        found = _policy_in(vars(found), f"{what}, {point.value}", shipped)
    if not isinstance(found, Policy):
        raise ConfigError(
            f"{what}, {point.value}: found an object of type {type(found).__name__}, expected a Policy or a module "
            "with one"
        )
    return replace(found, name=point.name)


def owner(point: EntryPoint) -> str:
    """The name of the distribution that has the entry point."""
    return point.dist.name if point.dist is not None else "an unknown distribution"


def _executed_anew(point: EntryPoint) -> Any:
    """What the entry point names in another execution of its module, which nobody else sees."""
    spec = find_spec(point.module)
    if spec is None or spec.loader is None:
        return point.load()
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return reduce(getattr, point.attr.split(".") if point.attr else (), module)


def _line_in(error: BaseException, is_own: Callable[[FrameType], bool]) -> str:
    """File and line of the innermost own frame that raised; else those of a syntax error, empty for other errors."""
    lines = [
        f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(error.__traceback__) if is_own(frame)
    ]
    if not lines and isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{error.filename}:{error.lineno}"
    return lines[-1] if lines else ""


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


def _policy_in(names: dict[str, Any], what: str, shipped: Collection[Policy]) -> Policy:
    """The only policy of a module; a preset that it looks up counts only where there is no other."""
    found: dict[int, tuple[str, Policy]] = {}
    for name, value in names.items():
        if isinstance(value, Policy):
            found.setdefault(id(value), (name, value))
    presets = {id(preset) for preset in shipped}
    own = [one for key, one in found.items() if key not in presets] or list(found.values())
    if len(own) != 1:
        named = f": {', '.join(name for name, _ in own)}" if own else ""
        raise ConfigError(f"{what}: found {len(own)} objects of type Policy, expected exactly one{named}")
    return own[0][1]
