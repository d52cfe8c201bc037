"""``brim policy``: list presets and parts, show a policy, check it against the rules, create one from a template."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from brim.cli.options import JsonOption, OutputOption, complete_policy, listing, output_of
from brim.cli.outputs import console, payload
from brim.cli.unconverted import UnconvertedCommand, UnconvertedGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brim.policies.sockets import Policy

app = typer.Typer(
    name="policy", cls=UnconvertedGroup, help="List, show, check and create policies.", no_args_is_help=True
)

_TEMPLATES: Final = Path(__file__).parent / "templates"
_NAME: Final = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", re.ASCII)
_Name = Annotated[
    str,
    typer.Argument(metavar="POLICY", help="Preset, or a Python file with a Policy.", autocompletion=complete_policy),
]


@app.command("list", cls=UnconvertedCommand)
def list_policies(output: OutputOption = "table", as_json: JsonOption = False) -> None:
    """List presets, policies of packages, and the parts to combine."""
    wanted, found = output_of(output, as_json), {**listing(), "installed": _installed()}
    if wanted == "json":
        print(json.dumps({"schema": 1, **found}, indent=2))
        return
    columns = ("name", "order", "size", "place", "feed", "fill", "source")
    headings = ("policy", *columns[1:])
    rows = [headings, *([_brief(row[column]) for column in columns] for row in found["policies"])]
    _print_columns(rows)
    print("After a comma: what happens if a job does not fit: stop the queue, reserve its place, or skip the job.")
    print("NAME+padding: the same policy, with padding jobs (--class padding) on the GPUs that it leaves.")
    if found["installed"]:
        print("\nPolicies of installed packages:")
        _print_columns([
            (f"  {row['name']}", row["distribution"], row["error"] or row["source"]) for row in found["installed"]
        ])
    print("\nParts to combine in a file of your own:")
    for socket, kinds in found["parts"].items():
        print(f"  {socket:6} {', '.join(kind.rpartition('.')[2] for kind in kinds)}")


def _installed() -> list[dict[str, str | None]]:
    """The policies that installed packages offer, each with its source, or the reason why it cannot be used."""
    from importlib.metadata import entry_points

    points = entry_points(group="brim.policies")
    if not points:
        return []  # importing the presets takes half a second
    from brim.errors import ConfigError
    from brim.policies.loading import owner
    from brim.policies.presets import find_policy

    rows: list[dict[str, str | None]] = []
    for point in points:
        source, fault = None, None
        try:
            source = find_policy(point.name).source
        except ConfigError as error:
            fault = str(error)
        rows.append({"name": point.name, "distribution": owner(point), "source": source, "error": fault})
    return rows


def _brief(part: str) -> str:
    """Show ``Consolidate(misfit='stop')`` as ``Consolidate, stop``; ``brim policy show`` shows the constants."""
    kind, parenthesis, constants = part.partition("(")
    misfit = re.search(r"misfit='(\w+)'", constants)
    return f"{kind}, {misfit[1]}" if misfit else kind if parenthesis and kind.isidentifier() else part


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command()
def show(name: _Name, output: OutputOption = "table", as_json: JsonOption = False) -> None:
    """Show the five parts of a policy with their constants."""
    import inspect

    from rich.markup import escape

    from brim.policies.presets import find_policy
    from brim.policies.sockets import SOCKETS
    from brim.units import show_duration

    wanted = output_of(output, as_json)
    with payload() as out:
        policy = find_policy(name)
        if wanted == "json":
            kinds = ("period_ms", "gap_ms", "fixed_rounds", "oracle", "source")
            facts = {kind: getattr(policy, kind) for kind in kinds}
            row = {"name": policy.name, **{part: str(getattr(policy, part)) for part in SOCKETS}, **facts}
            print(json.dumps({"schema": 1, "policy": row}, indent=2), file=out)
            return
        screen = console(out)
        screen.print(f"[bold]{escape(policy.name)}[/bold]  {escape(policy.source)}")
        every = show_duration(policy.period_ms / 1000)
        period = f"on events, and every {every}" if policy.period_ms else "on events"
        period += f", at least {show_duration(policy.gap_ms / 1000)} apart" if policy.gap_ms else ""
        period = f"at whole multiples of {every}" if policy.fixed_rounds else period
        screen.print(f"rounds  {period}{'; needs true run times (oracle)' if policy.oracle else ''}")
        for part in SOCKETS:
            value = getattr(policy, part)
            doc = (inspect.getdoc(type(value)) or "").split("\n")[0]
            screen.print(f"{part:7} {escape(repr(value))}\n        [dim]{escape(doc)}[/dim]")


@app.command()
def check(
    file: _Name,
    examples: Annotated[int, typer.Option("--examples", metavar="N", min=1, help="Random cases per rule.")] = 100,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Equal seeds try equal cases.")] = 0,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Check a policy against the rules on random clusters.

    A failure shows the smallest case that breaks a rule.
    """
    from brim.policies.presets import find_policy
    from brim.testing import check_policy

    wanted = output_of(output, as_json)
    with payload() as out:
        policy = find_policy(file)
        check_policy(policy, examples=examples, seed=seed, load=lambda: find_policy(file, afresh=True))
        if wanted == "json":
            found = {"schema": 1, "policy": policy.name, "examples": examples, "keeps_the_rules": True}
            print(json.dumps(found), file=out)
        else:
            print(f"{policy.name}: kept all rules in {examples} random cases per rule", file=out)


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Lower-case words joined by - or _, such as short-first.")
    ],
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Create a policy from a template, and its test.

    They are NAME.py and test_NAME.py in the current folder.
    """
    from brim.errors import RefusedError
    from brim.replacing import replacing

    wanted = output_of(output, as_json)
    module = _module_name(name)
    files = [Path(f"{module}.py"), Path(f"test_{module}.py")]
    for file in files:
        if file.exists() or file.is_symlink():
            raise RefusedError(f"{file} exists already; remove it, or give the new policy another name")
    for file, template in zip(files, ("my_policy.py", "test_my_policy.py"), strict=True):
        text = (_TEMPLATES / template).read_text(encoding="utf-8")
        with replacing(file) as part:
            part.write_text(text.replace("my_policy", module).replace("my-policy", module.replace("_", "-")), "utf-8")
    if wanted == "json":
        print(json.dumps({"schema": 1, "files": [str(file) for file in files]}))
    else:
        print(*files, sep="\n")


def _module_name(name: str) -> str:
    """Turn the policy's name into the name of a Python file.

    Raises:
        ConfigError: the name is not made of lower-case words, or Python or brim already use it.
    """
    import importlib.util
    import keyword

    from brim.errors import ConfigError, shown

    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or len(name) > 100 or name.startswith("test"):
        raise ConfigError(f"policy name {shown(name)}: expected lower-case words joined by - or _, such as short-first")
    if name in {row["name"] for row in listing()["policies"]}:
        raise ConfigError(f"policy name {shown(name)} is the name of a preset; give another name")
    taken = keyword.iskeyword(module) or (not Path(f"{module}.py").exists() and importlib.util.find_spec(module))
    if taken:
        raise ConfigError(f"policy name {shown(name)} is the name of a Python module or keyword; give another name")
    return module


def listed(policies: Sequence[Policy], parts: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    """Describe the presets for ``policy list``; kept in a file, because importing them takes half a second."""
    from brim.policies.sockets import SOCKETS

    rows = [
        {"name": p.name, **{part: str(getattr(p, part)) for part in SOCKETS}, "oracle": p.oracle, "source": p.source}
        for p in policies
    ]
    kinds = {socket: [f"{k.__module__}.{k.__name__}" for k in these] for socket, these in parts.items()}
    return {"policies": rows, "parts": kinds}
