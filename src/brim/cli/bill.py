"""``brim bill``: what jobs and users held, used and cost on this user's cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer

from brim.cli.bill_table import bill_lines, check_by
from brim.cli.options import JsonOption, OutputOption, output_of
from brim.cli.unconverted import UnconvertedCommand
from brim.errors import NotFoundError

if TYPE_CHECKING:
    from brim.live.store.reading import History
    from brim.reports.bill import Bill

SCHEMA: Final = 1

app = typer.Typer()


@app.command(cls=UnconvertedCommand)
def bill(
    by: Annotated[str, typer.Option("--by", metavar="user|job", help="A row for each user, or for each job.")] = "user",
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="USER", help="Only the jobs of this user.")
    ] = None,
    price: Annotated[
        str | None,
        typer.Option("--price", metavar="X", help="Price of a GPU-hour, or a TOML file with prices by tier."),
    ] = None,
    power: Annotated[
        str, typer.Option("--power", metavar="CURVES", help="Power of nodes: builtin, or a TOML file.")
    ] = "",
    output: OutputOption = "table", as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show GPU-hours, energy and cost of everybody's jobs, as this user's controller recorded them."""
    from brim.beliefs.cost import load_prices
    from brim.beliefs.power import curves_for, load_curves
    from brim.cli.report import read_history
    from brim.core.cluster import parse_cluster
    from brim.live.billing import bill_of
    from brim.live.recording import recorded_jobs

    wanted = output_of(output, as_json)
    check_by("--by", by)
    prices = None if price is None else load_prices(price)
    curves = load_curves(power) if power else {}
    history = read_history()
    found = recorded_jobs(history.jobs, history.attempts, history.lines, history.seen_ms)
    if not found:
        raise NotFoundError("no job has held a device yet: there is nothing to bill")
    if user is not None and not any(one.job.user == user for one in found):
        raise NotFoundError(f"--user: no job of {user} has held a device")
    cluster = parse_cluster(_cluster(history))
    whole = bill_of(
        found, cluster, history.seen_ms, prices=prices, curves=curves_for(cluster, curves) if power else (),
    )
    shown = whole if user is None else _only(whole, user)
    if wanted == "json":
        print(json.dumps({"schema": SCHEMA, **shown.as_json()}))
        return
    print(*bill_lines(shown, by, {str(one.job.id): one.job.request.name for one in found}), sep="\n")


def _cluster(history: History) -> str:
    """The cluster of the newest controller; jobs of others are billed on it.

    Raises:
        NotFoundError: none was recorded.
    """
    if not history.settings:
        raise NotFoundError("these jobs ran under an earlier brim, which did not record the cluster")
    return history.settings[-1][1].cluster


def _only(bill: Bill, user: str) -> Bill:
    from dataclasses import replace

    jobs = [one for one in bill.jobs if one.user == user]
    own = {one.job for one in jobs}
    return replace(bill, jobs=jobs, idle_kwh=None, taken=[one for one in bill.taken if one.job in own])
