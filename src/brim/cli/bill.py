"""``brim bill``: what jobs and users held, used and cost on this user's cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args

import typer

from brim.cli.options import JsonOption, OutputOption, output_of
from brim.cli.unconverted import UnconvertedCommand
from brim.errors import ConfigError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brim.live.recording import RecordedJob
    from brim.live.store.reading import History
    from brim.reports.bill import Amounts, Bill

SCHEMA: Final = 1
_By = Literal["user", "job"]

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
    if by not in get_args(_By):
        raise ConfigError(f"--by: found {by!r}, expected user or job")
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
    print(_table(shown, by, found))
    for one in shown.taken:
        to = f", for job {' and '.join(one.gained)}" if one.gained else ""
        print(
            f"Job {one.job} was preempted on {one.gpus} GPU{'s' if one.gpus > 1 else ''}{to}: "
            f"{one.thrown_away_gpu_s:,.1f} GPU-s to save and to start again"
        )
    print(*whole.basis, sep="\n")


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


def _table(bill: Bill, by: str, found: Iterable[RecordedJob]) -> str:
    from brim.cli.job_table import table

    names = {str(one.job.id): one.job.request.name for one in found}
    if by == "user":
        heads, rows = ["USER"], [([user], amounts) for user, amounts in bill.by_user().items()]
    else:
        heads = ["JOB", "NAME", "USER", "TIER"]
        rows = [([one.job, names[one.job], one.user, one.tier], one.amounts) for one in bill.jobs]
    lines = [[*heads, "GPU-H", "LOST GPU-H", "KWH", "CO2 KG", "COST"]]
    lines += [[*first, *_figures(amounts)] for first, amounts in rows]
    if bill.idle_kwh is not None:
        lines.append(["(idle)", *[""] * (len(heads) - 1), "", "", f"{bill.idle_kwh:,.3f}", "", ""])
    total = bill.total
    if bill.idle_kwh is not None and total.kwh is not None:
        from dataclasses import replace

        total = replace(total, kwh=total.kwh + bill.idle_kwh)
    lines.append(["(all)", *[""] * (len(heads) - 1), *_figures(total)])
    return table(lines)


def _figures(amounts: Amounts) -> list[str]:
    def shown(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    return [
        shown(amounts.gpu_h, 3), shown(amounts.lost_gpu_h, 3), shown(amounts.kwh, 3), shown(amounts.co2_kg, 3),
        shown(amounts.cost, 2),
    ]
