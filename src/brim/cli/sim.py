"""``brim sim``: replay a trace under one policy, or compare several."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer

from brim.cli import replay_options as option
from brim.cli.factorial import factorial
from brim.cli.options import (
    AnonymiseOption,
    ClusterOption,
    JsonOption,
    ObjectiveOption,
    OutputOption,
    complete_policies,
    complete_policy,
    naming,
    numbers,
    output_of,
)
from brim.cli.outputs import check_outputs, console, payload
from brim.cli.replay_inputs import cluster_of, overheads_of, read_trace, sleep_of, truth_option, warn_of_useless
from brim.cli.reproduce import reproduce
from brim.cli.unconverted import UnconvertedGroup
from brim.errors import ConfigError, shown
from brim.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brim.cli.replays import Task
    from brim.core.cluster import Cluster
    from brim.core.prices import Prices
    from brim.core.replay import Replay
    from brim.core.trace import Trace
    from brim.reports.record import NoRecord, RecordedMetrics
    from brim.sim.faults import Drain, Faults
    from brim.sim.truth_option import TruthOption
    from brim.sim.twin import ReplaySettings

app = typer.Typer(
    name="sim",
    cls=UnconvertedGroup,
    help="Replay a trace under other policies, and compare them.",
    no_args_is_help=True,
)
app.command("reproduce")(reproduce)
app.command("factorial")(factorial)

DEFAULT_POLICIES: Final = "fifo,backfill,sjf,srtf,las,gittins,tiresias,fair"
SEEDS_MAX: Final = 1000


@app.command()
def run(
    trace: option.Trace,
    cluster: ClusterOption = None,
    policy: Annotated[
        str,
        typer.Option("--policy", "-p", metavar="POLICY", help="Preset, or a Python file with a Policy.",
                     autocompletion=complete_policy),
    ] = "fifo",
    objective: ObjectiveOption = None,
    format: option.Format = None,
    limit: option.Limit = None,
    from_date: option.From = None,
    load: option.Load = "1",
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="0 replays the trace as recorded; others resample.")
    ] = 0,
    truth: option.Truth = "rigid",
    profiles: option.Profiles = None,
    elastic_share: option.ElasticShare = None,
    sharing: option.Sharing = "",
    loading: option.Loading = "",
    overheads: option.Overheads = "x1",
    estimates: option.Estimates = "limits",
    library: option.Library = "",
    node_mtbf: option.NodeMtbf = "",
    job_mtbf: option.JobMtbf = "",
    drain: option.Drain = None,
    suspend_time: option.SuspendTime = "",
    drop_too_large: option.DropTooLarge = False,
    price: option.Price = None,
    power: option.Power = "",
    bill: Annotated[
        str, typer.Option("--bill", metavar="user|job", help="Show what each user or job held, used, cost and lost.")
    ] = "",
    html: option.Html = None,
    jobs: option.Jobs = None,
    anonymise: AnonymiseOption = False,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Replay a trace under one policy."""
    from brim.policies.presets import with_objective

    policy = with_objective(policy, objective)
    loads = numbers(load, "--load")
    if bill:
        from brim.cli.bill_table import check_by

        check_by("--bill", bill)
    if len(loads) != 1:
        raise ConfigError(f"--load: found {shown(load)}, expected one number; `brim sim compare` takes several")
    with payload() as out:
        _replay_and_report(
            trace, cluster, [policy], format, limit, from_date, loads, [seed],
            truth_option(truth, profiles, elastic_share, sharing, loading, [policy]), overheads, estimates, library,
            node_mtbf, job_mtbf, drain, suspend_time, drop_too_large, price, power, html, jobs, anonymise,
            output_of(output, as_json), out, bill,
        )


@app.command()
def compare(
    trace: option.Trace,
    cluster: ClusterOption = None,
    policies: Annotated[
        str,
        typer.Option(
            "--policies", "-p", metavar="POLICIES", help="Presets (`brim policy list`) or files, separated by commas.",
            autocompletion=complete_policies,
        ),
    ] = DEFAULT_POLICIES,
    format: option.Format = None,
    limit: option.Limit = None,
    from_date: option.From = None,
    load: Annotated[
        str, typer.Option("--load", metavar="LIST", help="Arrival rates relative to the trace: 0.7,0.9,1.1.")
    ] = "1",
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds", metavar="N", min=1, max=SEEDS_MAX,
            help="Number of replays of each, such as 5: one as recorded, the others with resampled arrivals. Two or "
            "more give intervals.",
        ),
    ] = 1,
    truth: option.Truth = "rigid",
    profiles: option.Profiles = None,
    elastic_share: option.ElasticShare = None,
    sharing: option.Sharing = "",
    loading: option.Loading = "",
    overheads: option.Overheads = "x1",
    estimates: option.Estimates = "limits",
    library: option.Library = "",
    node_mtbf: option.NodeMtbf = "",
    job_mtbf: option.JobMtbf = "",
    drain: option.Drain = None,
    suspend_time: option.SuspendTime = "",
    drop_too_large: option.DropTooLarge = False,
    price: option.Price = None,
    power: option.Power = "",
    html: option.Html = None,
    jobs: option.Jobs = None,
    anonymise: AnonymiseOption = False,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Replay a trace under several policies and compare."""
    names = [name.strip() for name in policies.split(",")]
    with payload() as out:
        _replay_and_report(
            trace, cluster, names, format, limit, from_date, numbers(load, "--load"), list(range(seeds)),
            truth_option(truth, profiles, elastic_share, sharing, loading, filter(None, names)), overheads, estimates,
            library, node_mtbf, job_mtbf, drain, suspend_time, drop_too_large, price, power, html, jobs, anonymise,
            output_of(output, as_json), out,
        )


def _replay_and_report(
    path: str, cluster_text: str | None, names: list[str], format: str | None, limit: int | None, from_date: str | None,
    loads: list[float], seeds: list[int], truth: TruthOption, overheads: str, estimates: str, library: str,
    node_mtbf: str, job_mtbf: str, drain: list[str] | None, suspend_time: str, drop_too_large: bool,
    price: str | None, power: str, html: Path | None, jobs: Path | None, anonymise: bool, output: str, out: TextIO,
    bill: str = "",
) -> None:
    """Check all input before the first replay, then run, then report."""
    from dataclasses import replace

    from brim.beliefs.cost import load_prices
    from brim.beliefs.library import load
    from brim.beliefs.power import curves_for, load_curves
    from brim.core.cluster import parse_cluster
    from brim.policies.presets import find_policy
    from brim.sim.truths.rigid import rigid_run_ms
    from brim.sim.twin import ReplaySettings

    policies = list(dict.fromkeys(filter(None, names)))
    if not policies:
        raise ConfigError("--policies: no policy was given; see `brim policy list`")
    files = filter(os.path.isfile, [cluster_text or "."])
    inputs = [path, library, power, price, truth.profiles, *policies, *files]
    _check_results(html, jobs, inputs)
    given = None if cluster_text is None else parse_cluster(cluster_text)
    called: dict[str, str] = {}
    for name in policies:  # unknown names and broken files are found before anything runs
        other = called.setdefault(find_policy(name).name, name)
        if other != name:
            raise ConfigError(f"--policies: {other} and {name} are both called {find_policy(name).name!r}; rename one")
    settings = ReplaySettings(
        overheads=overheads_of(truth, overheads), estimates=estimates, library=library,
    )
    if library:
        load(library)  # a wrong name is an error even if no policy asks for the models
    prices = None if price is None else load_prices(price)
    curves = load_curves(power) if power else {}
    recorded, part = read_trace(path, format, limit, from_date, anonymise)
    if truth.profiles is None:
        rigid_run_ms(recorded, truth.name)  # a trace without run times is an error on every cluster
    cluster = cluster_of(recorded, given, max(loads), curves)
    settings = replace(
        settings, faults=_faults(node_mtbf, job_mtbf, drain, cluster), sleep=sleep_of(suspend_time),
        power=curves_for(cluster, curves) if power else (),
    )
    if drop_too_large:
        recorded, notes = _without_too_large(recorded, cluster)
        settings = replace(settings, notes=notes)
    recorded, left_out = truth.runnable(recorded, cluster)
    for note in left_out:
        print(f"brim: {note}", file=sys.stderr)
    settings = replace(settings, notes=settings.notes + left_out)
    truth.build(recorded, cluster)  # errors in it are found before the first replay
    shows = [option for option, value in (("power", power), ("price", price)) if value]
    warn_of_useless(list(map(find_policy, policies)), recorded, truth, shows=shows)
    tasks = _tasks(recorded, cluster, policies, settings, loads, seeds, truth)
    record = _record(recorded, cluster, loads, seeds, truth, part=part)
    words = sys.argv[1:]
    if anonymise:  # the page shows its command, without the names of folders and of the trace
        words = [re.sub(r"[^=,]*/", "", "TRACE" if word == path else word) for word in words]
    _run_and_report(tasks, record, prices, html, jobs, output, out, shlex.join(["brim", *words]), bill)


def _check_results(html: Path | None, jobs: Path | None, inputs: Sequence[str | Path | None]) -> None:
    check_outputs({"--html": html, "--jobs": jobs}, inputs)
    if jobs:
        from brim.reports.files import check_jobs_path

        check_jobs_path(jobs)


def _record(
    trace: Trace, cluster: Cluster, loads: list[float], seeds: list[int], truth: TruthOption, *, part: bool
) -> RecordedMetrics | NoRecord:
    """Return what the trace recorded, if the replays serve the same jobs at the same times for the same run times."""
    from dataclasses import replace

    from brim.reports.record import NoRecord, record_of
    from brim.traces import absent_types

    found = record_of(trace)
    if isinstance(found, NoRecord):
        return found
    if 1 not in loads:
        return NoRecord("with --load, jobs do not arrive at their recorded times")
    if seeds != [0]:
        return NoRecord("with --seed or --seeds, jobs do not arrive at their recorded times")
    if part:
        return NoRecord("--limit and --from replay only some of the jobs, but all jobs influenced the recorded waits")
    if truth.name != "rigid":
        return NoRecord(f"with --truth {truth.name}, jobs do not run for their recorded run times")
    return replace(found, absent_types=absent_types(trace, cluster))


def _without_too_large(trace: Trace, cluster: Cluster) -> tuple[Trace, tuple[str, ...]]:
    import numpy as np

    from brim.sim.feasibility import fits, lacks_type, type_codes

    lacking = lacks_type(trace, cluster)
    there = trace.take(np.flatnonzero(~lacking))
    fit = fits(there, cluster, type_codes(there, cluster)[there.gpu_type])
    if not fit.any():
        raise ConfigError(f"{trace.name}: every job is too large for cluster {cluster}, or of a GPU type that it lacks")
    left_out = {"too large for the cluster": ~fit, "of a GPU type that the cluster lacks": lacking}
    notes = tuple(f"{counted(int(jobs.sum()), 'job')} {why} left out." for why, jobs in left_out.items() if jobs.any())
    for note in notes:
        print(f"brim: {note}", file=sys.stderr)
    return there.take(np.flatnonzero(fit)) if notes else trace, notes


def _faults(node_mtbf: str, job_mtbf: str, drain: list[str] | None, cluster: Cluster) -> Faults:
    from brim.sim.faults import Faults

    return Faults(
        node_mtbf_ms=_mean_time_ms("--node-mtbf", node_mtbf), job_mtbf_ms=_mean_time_ms("--job-mtbf", job_mtbf),
        drains=tuple(_parse_drain(text, cluster) for text in drain or ()),
    )


def _mean_time_ms(option: str, text: str) -> int:
    from brim.units import parse_duration_ms

    if not text:
        return 0
    with naming(option):
        mean_ms = parse_duration_ms(text)
    if not mean_ms:
        raise ConfigError(f"{option}: found {shown(text)}, expected a time above zero")
    return mean_ms


def _parse_drain(text: str, cluster: Cluster) -> Drain:
    from brim.sim.faults import Drain
    from brim.units import parse_duration_ms, parse_whole

    nodes, at, times = text.partition("@")
    start, plus, length = times.partition("+")
    first, _, last = nodes.partition("-")
    if not (at and plus and first.isdecimal() and (last or first).isdecimal()):
        raise ConfigError(f"--drain: found {shown(text)}, expected NODES@START+LENGTH, such as 0-3@2d+12h")
    with naming("--drain"):
        numbers_of = range(parse_whole(first), parse_whole(last or first) + 1)
        if not numbers_of or numbers_of[-1] >= cluster.num_nodes:
            raise ConfigError(f"found nodes {nodes}, cluster {cluster} has nodes 0 to {cluster.num_nodes - 1}")
        start_ms, length_ms = parse_duration_ms(start), parse_duration_ms(length)
    return Drain(nodes=tuple(numbers_of), start_ms=start_ms, end_ms=start_ms + length_ms)


def _tasks(
    trace: Trace, cluster: Cluster, policies: list[str], settings: ReplaySettings, loads: list[float],
    seeds: list[int], truth: TruthOption,
) -> list[Task]:
    """One task per load, seed and policy; the tasks of one load and seed share their trace."""
    from dataclasses import replace

    from brim import traces
    from brim.cli.replays import Task

    tasks = []
    for load in loads:
        for seed in seeds:
            drawn = traces.scale_load(traces.resample(trace, seed), load)
            drawn_settings = replace(settings, seed=seed, load=load)
            tasks += [
                Task(trace=drawn, cluster=cluster, policy=policy, settings=drawn_settings, truth=truth)
                for policy in policies
            ]
    return tasks


def _run_and_report(
    tasks: list[Task], record: RecordedMetrics | NoRecord, prices: Prices | None, html: Path | None,
    jobs: Path | None, output: str, out: TextIO, command: str, bill: str,
) -> None:
    from brim.cli.bill_table import bill_lines
    from brim.cli.replays import run_all
    from brim.reports.files import dump_json, packed_jobs, write_jobs
    from brim.reports.page import write_page
    from brim.reports.replay_bill import bill_of_replay
    from brim.reports.summary import results_json, summarise
    from brim.reports.table import comparison

    shown: list[Replay] = []  # the page draws one replay per policy; the others are summarised and freed
    packed: list[bytes] = []

    def kept() -> object:
        for replay in run_all(tasks):
            if replay.load == tasks[0].settings.load and replay.seed == tasks[0].settings.seed:
                shown.append(replay)
            if jobs:
                packed.append(packed_jobs(replay, prices))
            yield replay

    summaries = summarise(kept(), record=record, prices=prices)  # type: ignore[arg-type]
    if not summaries:
        raise typer.Exit(130)
    if output == "json":
        billed = {"bill": bill_of_replay(shown[0], prices).as_json()} if bill else {}
        print(dump_json(results_json(shown[0], summaries, record) | billed), file=out, flush=True)
    else:
        console(out).print(comparison(summaries, record))
        if bill:
            print("", *bill_lines(bill_of_replay(shown[0], prices), bill), sep="\n", file=out)
        out.flush()
    if jobs:
        write_jobs(packed, jobs)
        print(f"jobs: {jobs}", file=sys.stderr)
    if html:
        write_page(shown, html, command=command, summaries=summaries, record=record)
        print(f"page: {html}", file=sys.stderr)
    if len(summaries) < len(tasks) or any(summary.partial for summary in summaries):
        print(f"brim: partial: {len(summaries)} of {len(tasks)} replays were begun", file=sys.stderr)
        raise typer.Exit(130)
