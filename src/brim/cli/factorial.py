"""``brim sim factorial``: what each decision of a policy contributes, and which contributions do not add up."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from brim.cli import replay_options as option
from brim.cli.options import INTERRUPTED, ClusterOption, JsonOption, OutputOption, complete_policy, numbers, output_of
from brim.cli.outputs import check_outputs, console, payload
from brim.cli.replay_inputs import cluster_of, overheads_of, read_trace, sleep_of, truth_option, warn_of_useless
from brim.errors import ConfigError, shown
from brim.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brim.core.replay import Replay
    from brim.policies.sockets import Policy
    from brim.reports.experiment import Experiment

SCHEMA: Final = 1
_FIGURES: Final = {
    "mean JCT": "jct_mean_s", "p99 JCT": "jct_p99_s", "GPU-h held": "held_gpu_s", "kWh": "energy_kwh",
}
"""Figures, by their heading, and their names in ``Metrics``."""


def factorial(
    trace: option.Trace,
    cluster: ClusterOption = None,
    policy: Annotated[
        str,
        typer.Option("--policy", "-p", metavar="POLICY", autocompletion=complete_policy,
                     help="Preset, or file of brim's parts, whose decisions are switched."),
    ] = "goodput",
    format: option.Format = None,
    limit: option.Limit = None,
    from_date: option.From = None,
    load: option.Load = "1",
    truth: option.Truth = "rigid",
    profiles: option.Profiles = None,
    elastic_share: option.ElasticShare = None,
    sharing: option.Sharing = "",
    loading: option.Loading = "",
    overheads: option.Overheads = "x1",
    suspend_time: option.SuspendTime = "",
    power: option.Power = "",
    html: option.Html = None,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Replay a trace with each decision of a policy on and off.

    Every combination of the policy's own decisions and plain ones is replayed.
    """
    from brim import traces
    from brim.beliefs.power import curves_for, load_curves
    from brim.cli.replays import Task, run_all
    from brim.core.cluster import parse_cluster
    from brim.policies.factorial import switches, variants
    from brim.sim.twin import ReplaySettings

    wanted, whole, loads = output_of(output, as_json), _policy(policy), numbers(load, "--load")
    if len(loads) != 1:
        raise ConfigError(f"--load: found {shown(load)}, expected one number")
    if not switches(whole):
        raise ConfigError(f"--policy: all five decisions of {policy} are plain: there is nothing to switch")
    check_outputs({"--html": html}, [trace, profiles, power])
    curves = load_curves(power) if power else {}
    how = truth_option(truth, profiles, elastic_share, sharing, loading, [policy])
    with payload() as out:
        jobs, _ = read_trace(trace, format, limit, from_date, False)
        where = cluster_of(jobs, None if cluster is None else parse_cluster(cluster), loads[0], curves)
        jobs, notes = how.runnable(jobs, where)
        settings = ReplaySettings(
            overheads=overheads_of(how, overheads), load=loads[0], notes=notes,
            sleep=sleep_of(suspend_time), power=curves_for(where, curves) if power else (),
        )
        warn_of_useless([whole], jobs, how, shows={"price", "power" if power else ""})
        drawn, chosen = traces.scale_load(jobs, loads[0]), variants(whole)
        tasks = [
            Task(trace=drawn, cluster=where, policy=variant, settings=settings, truth=how)
            for variant in chosen.values()
        ]
        replays = list(run_all(tasks))
        if len(replays) < len(tasks) or any(replay.partial for replay in replays):
            done = sum(not replay.partial for replay in replays)
            print(f"brim: interrupted: {done} of {counted(len(tasks), 'replay')} are complete, and effects need all",
                  file=sys.stderr)
            raise typer.Exit(INTERRUPTED)
        _report(whole, dict(zip(chosen, replays, strict=True)), html, wanted, out)


def _policy(name: str) -> Policy:
    """The policy; its variants are sent to other processes, which parts from a file cannot be.

    Raises:
        ConfigError: there is no such policy, or its file has parts of its own.
    """
    from brim.policies.presets import find_policy
    from brim.policies.sockets import SOCKETS

    found = find_policy(name)
    for socket in SOCKETS:
        if (part := type(getattr(found, socket))).__module__.partition(".")[0] != "brim":
            raise ConfigError(
                f"--policy: found {part.__name__} as {socket} part, which is not brim's; expected a preset, or a file "
                "that combines parts of `brim policy list`"
            )
    return found


def _report(
    policy: Policy, replays: Mapping[tuple[str, ...], Replay], html: Path | None, wanted: str, out: Any
) -> None:
    from brim.core.trace import JobClass
    from brim.reports import factorial as design
    from brim.reports.experiment import terminal, write_experiment
    from brim.reports.metrics import measure

    measured = {on: measure(replay) for on, replay in replays.items()}
    figures: dict[str, dict[tuple[str, ...], float | None]] = {
        heading: {on: getattr(metrics, name) for on, metrics in measured.items()}
        for heading, name in _FIGURES.items() if name != "energy_kwh" or next(iter(replays.values())).power
    }
    if (next(iter(replays.values())).trace.job_class == JobClass.PADDING).any():
        regular = {on: metrics.jct_regular_mean_s for on, metrics in measured.items()}
        figures = {"mean JCT, regular jobs": regular} | figures
    incomplete = [on for on, metrics in measured.items() if metrics.finished < metrics.jobs]
    if wanted == "json":
        print(json.dumps({"schema": SCHEMA, "policy": policy.name, **design.as_json(figures)}), file=out)
    experiment = _experiment(policy, replays, figures, incomplete)
    if wanted != "json":
        console(out).print(terminal(experiment))
    if html is not None:
        write_experiment(experiment, html)
        print(f"page: {html}", file=sys.stderr)


def _experiment(
    policy: Policy, replays: Mapping[tuple[str, ...], Replay],
    figures: Mapping[str, Mapping[tuple[str, ...], float | None]], incomplete: Sequence[tuple[str, ...]],
) -> Experiment:
    from brim.policies.factorial import switches
    from brim.reports import factorial as design
    from brim.reports.experiment import Drawing, Experiment, Panel, TextTable

    own, first = switches(policy), next(iter(replays.values()))
    headings, *rows = design.table(figures)
    cells = ["plain" if not on else " + ".join(on) for on in replays]
    values = [[_shown(name, of[on]) for name, of in figures.items()] for on in replays]
    drawings = tuple(
        Drawing(title=f"Effects on {name}",
                note="Blue: one decision; orange: an interaction of two. To the left: less. The widest bar fills half.",
                svg=design.chart(f"Effects on {name}", found))
        for name, of in figures.items() if (found := design.effects(of))
    )
    plain = [one for one in ("order", "size", "place", "feed", "fill") if one not in own]
    return Experiment(
        title=f"What the decisions of {policy.name} contribute",
        about=f"{len(replays)} replays of {first.trace.name} on {first.cluster}: {', '.join(own)} on and off"
        + (f"; {' and '.join(plain)} of {policy.name} are plain" if plain else ""),
        badges=(f"{len(first.trace):,} jobs",),
        alarm="Some replays did not finish all jobs, so that their means are not comparable." if incomplete else "",
        findings=(), terms=(
            ("effect of A", "mean ratio of the figure with A to that without, over all combinations of the others"),
            ("A x B", "interaction: half of what B changes in the effect of A. Above 0 where both lower the figure: "
             "they do not add up"),
            ("off", "order: first come, first served around what does not fit; size: as asked; place: close together; "
             "feed: cores divided equally; fill: nothing"),
        ),
        panels=(
            Panel(title="Effects", note="", charts=(), drawings=drawings,
                  table=TextTable(headings=tuple(headings), rows=tuple(map(tuple, rows)))),
            Panel(title="Combinations", note="", charts=(),
                  table=TextTable(headings=("on", *figures), rows=tuple(
                      (cell, *row) for cell, row in zip(cells, values, strict=True)
                  ))),
        ),
        notes=first.assumptions, command=shlex.join(["brim", *sys.argv[1:]]),
    )


def _shown(name: str, value: float | None) -> str:
    from brim.reports.table import show_hours
    from brim.units import S_PER_H, show_duration

    if value is None:
        return "-"
    if "JCT" in name:
        return show_duration(value)
    return show_hours(value / S_PER_H if name == "GPU-h held" else value)
