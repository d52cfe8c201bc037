"""``brim policy``: which policies there are, of which parts, and whether a user's own keeps the rules."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from brim.cli.options import JsonOption, OutputOption, output_of

app = typer.Typer(name="policy", help="Policies and their parts.", no_args_is_help=True)

PARTS: Final = ("order", "size", "place", "feed", "fill")


@app.command("list")
def list_policies(output: OutputOption = "table", as_json: JsonOption = False) -> None:
    """List the presets."""
    import json

    from brim.policies.presets import PARTS as AVAILABLE
    from brim.policies.presets import PRESETS

    rows = [
        {"name": p.name, **{part: str(getattr(p, part)) for part in PARTS}, "oracle": p.oracle, "source": p.source}
        for p in PRESETS.values()
    ]
    if output_of(output, as_json) == "json":
        parts = {socket: [f"{k.__module__}.{k.__name__}" for k in kinds] for socket, kinds in AVAILABLE.items()}
        print(json.dumps({"schema": 1, "policies": rows, "parts": parts}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("policy", "order", "size", "place", "source"):
        table.add_column(column)
    for policy in PRESETS.values():
        misfit = getattr(policy.place, "misfit", "")
        place = type(policy.place).__name__ + (f", {misfit}" if misfit else "")
        table.add_row(policy.name, type(policy.order).__name__, type(policy.size).__name__, place, policy.source)
    console = Console()
    console.print(table)
    console.print("\nParts to combine in a file of your own:")
    for socket, kinds in AVAILABLE.items():
        console.print(f"  {socket:6} {', '.join(kind.__name__ for kind in kinds)}", highlight=False)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Preset, or a Python file with a Policy.")],
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show the five parts of a policy with their constants."""
    import inspect
    import json

    from rich.console import Console
    from rich.markup import escape

    from brim.policies.presets import find_policy
    from brim.units import show_duration

    policy = find_policy(name)
    if output_of(output, as_json) == "json":
        parts = {part: str(getattr(policy, part)) for part in PARTS}
        facts = {name: getattr(policy, name) for name in ("period_ms", "gap_ms", "fixed_rounds", "oracle", "source")}
        print(json.dumps({"schema": 1, "policy": {"name": policy.name, **parts, **facts}}, indent=2))
        return
    console = Console()
    console.print(f"[bold]{escape(policy.name)}[/bold]  {escape(policy.source)}")
    every = show_duration(policy.period_ms / 1000)
    period = f"on events, and every {every}" if policy.period_ms else "on events"
    period += f", at least {show_duration(policy.gap_ms / 1000)} apart" if policy.gap_ms else ""
    period = f"at whole multiples of {every}" if policy.fixed_rounds else period
    console.print(f"rounds  {period}{'; needs true run times (oracle)' if policy.oracle else ''}")
    for part in PARTS:
        value = getattr(policy, part)
        doc = (inspect.getdoc(type(value)) or "").split("\n")[0]
        console.print(f"{part:7} {escape(repr(value))}\n        [dim]{escape(doc)}[/dim]")


@app.command()
def check(
    file: Annotated[str, typer.Argument(help="Python file with a Policy, or a preset.")],
    examples: Annotated[int, typer.Option("--examples", min=1, help="Random cases per rule.")] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Try a policy against the rules on random clusters; shows the smallest case that breaks one."""
    import json

    from brim.policies.presets import find_policy
    from brim.testing import check_policy

    wanted, policy = output_of(output, as_json), find_policy(file)
    check_policy(policy, examples=examples, seed=seed)
    if wanted == "json":
        print(json.dumps({"schema": 1, "policy": policy.name, "examples": examples, "keeps_the_rules": True}))
        return
    print(f"{policy.name}: keeps the rules on {examples} random cases each")
