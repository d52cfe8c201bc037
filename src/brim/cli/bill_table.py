"""A bill as a table: of a live cluster, or of a replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from brim.cli.job_table import table
from brim.errors import ConfigError
from brim.units import counted

if TYPE_CHECKING:
    from brim.reports.bill import Amounts, Bill, Taken

MANY: Final = 20
"""Preemptions shown one by one, those that threw away most; JSON has all. Ours: half a screen."""
NAMED: Final = 4
"""Jobs named of those that gained from one preemption. Ours."""


def check_by(option: str, by: str) -> None:
    """Refuse a bill by anything but user or job.

    Raises:
        ConfigError: it is another word.
    """
    if by not in ("user", "job"):
        raise ConfigError(f"{option}: found {by!r}, expected user or job")


def bill_lines(bill: Bill, by: str, names: Mapping[str, str] | None = None) -> Iterator[str]:
    """Lay a bill out as lines.

    Args:
        bill: The bill.
        by: ``user`` or ``job``: what has a row.
        names: Name of each job, for a column of their own.
    """
    yield _table(bill, by, names)
    worst = sorted(bill.taken, key=lambda one: -one.thrown_away_gpu_s)[:MANY]
    shown = [one for one in bill.taken if one in worst]
    yield from map(_preempted, shown)
    if len(shown) < len(bill.taken):
        rest_s = sum(one.thrown_away_gpu_s for one in bill.taken if one not in worst)
        yield (
            f"{counted(len(bill.taken) - len(shown), 'other job')} preempted: {rest_s:,.1f} GPU-s; -o json has them all"
        )
    yield from bill.basis


def _preempted(one: Taken) -> str:
    names = list(one.gained[:NAMED])
    if len(one.gained) > NAMED:
        names.append(counted(len(one.gained) - NAMED, "other"))
    listed = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    to = f", for job{'s' if len(one.gained) > 1 else ''} {listed}" if names else ""
    if one.times > 1:
        return f"Job {one.job} was preempted {one.times} times{to}: {one.thrown_away_gpu_s:,.1f} GPU-s thrown away"
    return (
        f"Job {one.job} was preempted on {counted(one.gpus, 'GPU')}{to}: {one.thrown_away_gpu_s:,.1f} GPU-s thrown away"
    )


def _table(bill: Bill, by: str, names: Mapping[str, str] | None) -> str:
    if by == "user":
        heads, rows = ["USER"], [([user], amounts) for user, amounts in bill.by_user().items()]
    else:
        named = ["NAME"] if names is not None else []
        heads = ["JOB", *named, "USER", "TIER"]
        rows = [
            ([one.job, *([names[one.job]] if names is not None else []), one.user, one.tier], one.amounts)
            for one in bill.jobs
        ]
    blank = [""] * (len(heads) - 1)
    total = bill.total
    measured = total.gpu_kwh is not None
    lines = [[*heads, "GPU-H", "LOST GPU-H", "KWH", *(["GPU KWH"] if measured else []), "CO2 KG", "COST"]]
    lines += [[*first, *_figures(amounts, measured=measured)] for first, amounts in rows]
    if bill.idle_kwh is not None:
        co2_kg = "" if bill.idle_co2_kg is None else f"{bill.idle_co2_kg:,.3f}"
        lines.append(["(idle)", *blank, "", "", f"{bill.idle_kwh:,.3f}", *([""] if measured else []), co2_kg, ""])
        if total.kwh is not None:
            total = replace(total, kwh=total.kwh + bill.idle_kwh)
        if total.co2_kg is not None and bill.idle_co2_kg is not None:
            total = replace(total, co2_kg=total.co2_kg + bill.idle_co2_kg)
    return table([*lines, ["(all)", *blank, *_figures(total, measured=measured)]])


def _figures(amounts: Amounts, *, measured: bool) -> list[str]:
    def shown(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    return [
        shown(amounts.gpu_h, 3), shown(amounts.lost_gpu_h, 3), shown(amounts.kwh, 3),
        *([shown(amounts.gpu_kwh, 3)] if measured else []), shown(amounts.co2_kg, 3), shown(amounts.cost, 2),
    ]
