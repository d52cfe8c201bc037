"""``brim demo``: a cluster on this machine, nine real training jobs of three people, and the twin's replay of them.

One of them is a padding job: it fills idle slots, leaves when the others come, and comes back by itself. The cluster is
that of ``brim up``, with a controller and an agent of its own that end with the demo; the jobs are submitted as ``brim
submit`` does it, and the controller decides who runs, on how many slots, and who is preempted.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from brim.cli.options import JsonOption, OutputOption, output_of
from brim.errors import ConfigError, RefusedError

if TYPE_CHECKING:
    from rich.console import Console

    from brim.api.client import Client
    from brim.cli.session import Planned, Session
    from brim.core.replay import Replay
    from brim.live.records import JobRecord

SCHEMA: Final = 2
SLOTS: Final = 4
CLUSTER: Final = f"1x{SLOTS}xcpu-slot"
COMPILING: Final = "about 30 s of CPU time for those of the demo"
"""25 and 34 s measured with an empty cache, on two busy cores: what elastic policies and the placement walk call."""
TICK_S: Final = 0.2
"""Time between two looks at the jobs: a resize takes longer."""
GRACE_S: Final = 10.0
LINES_SHOWN: Final = 10
"""Of the log of a job that failed."""
TEMPLATES: Final = Path(__file__).parent / "templates"
POLICY: Final = TEMPLATES / "demo_policy.py"
SCRIPT: Final = TEMPLATES / "demo_train.py"
BATCH: Final = 64
SAMPLE_MS: Final = 2.0
"""Least time that a rank takes for a sample: a step takes 128 ms on one slot and 32 ms on four, whatever else this
machine does. Without it, four ranks on two cores would be as slow as two."""
PADDING: Final = ("cem-pad", "1-4", 165)
"""The padding job: name, slots, steps. It comes first; about 70 steps are left when it has to leave."""
ALONE_S: Final = 3.0
"""Time that it runs before the others come."""
JOBS: Final = (  # seconds after the first of them comes, name, slots, steps
    (0.0, "ana-1", "1-4", 420), (0.0, "bo-1", "1-4", 340), (0.0, "cem-1", "2", 240), (6.0, "ana-2", "1", 100),
    (7.0, "bo-2", "1", 80), (26.0, "cem-2", "1-4", 200), (28.0, "bo-3", "2", 90), (30.0, "cem-3", "1", 60),
)
"""Two jobs that can be resized and a rigid one fill the slots, and two small ones take the place of the rigid one. The
slots that they leave go to whoever can use them, and the rigid job continues when there are two of them."""

app = typer.Typer()


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="New folder to keep logs and checkpoints in.")
    ] = None,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Run nine real training jobs on a cluster of four CPU slots, which ends with it, and replay them: 100 s."""
    from rich.console import Console

    from brim.cli.demo_replay import replay_of
    from brim.cli.outputs import console
    from brim.core.cluster import parse_cluster
    from brim.policies.presets import find_policy

    wanted = output_of(output, as_json)
    _check_extras()
    with _folder(out) as folder:
        prepare()
        began_s = time.monotonic()
        screen = Console(stderr=True, highlight=False)
        session = run_jobs(plan(), folder, screen, temporary=folder if out is None else None)
        wall_s = time.monotonic() - began_s
        for job in session.failed:
            say_why(job, folder, screen)
        if session.failed:
            raise typer.Exit(1)
    result = replay_of(session, parse_cluster(CLUSTER), find_policy(str(POLICY)), BATCH)
    if wanted == "json":
        print(json.dumps({"schema": SCHEMA, "slots": SLOTS, "wall_s": round(wall_s, 1), **result.as_json()}))
    else:
        result.print(console())
        print(f"The cluster and its jobs took {wall_s:.0f} s, and none of their processes is left. The three users are "
              "only names here: on a shared machine, each has an agent of their own.")


def _check_extras() -> None:
    missing = [name for name in ("fastapi", "uvicorn", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise RefusedError(
            f"brim demo needs the extras `live` and `train` ({', '.join(missing)} cannot be found): "
            "pip install -e '.[live,train]'"
        )


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """A new folder for what the demo writes; a temporary one, if none is given.

    Raises:
        ConfigError: the folder is not empty (old checkpoints would be taken for new ones) or cannot be made.
    """
    if out is None:
        found = Path(tempfile.mkdtemp(prefix="brim-demo-"))
        try:
            yield found
        finally:
            shutil.rmtree(found, ignore_errors=True)
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        taken = any(out.iterdir())
        (out / "jobs").mkdir(exist_ok=True)
    except FileExistsError:
        taken = True
    except OSError as error:
        raise ConfigError(f"--out: cannot write to folder {out}: {error.strerror}") from None
    if taken:
        raise ConfigError(f"--out: {out} exists already; give a new or empty folder")
    yield out.absolute()


def plan() -> tuple[Planned, ...]:
    """The padding job, and the eight regular ones."""
    from brim.cli.session import Planned

    jobs = [(0.0, *PADDING), *((ALONE_S + at_s, name, gpus, steps) for at_s, name, gpus, steps in JOBS)]
    return tuple(
        Planned(
            at_ms=round(at_s * 1000), name=name, gpus=gpus, samples=steps * BATCH, is_padding=not row,
            words=(sys.executable, str(SCRIPT), "--steps", str(steps), "--checkpoint", name, "--sample-ms",
                   str(SAMPLE_MS)),
        )
        for row, (at_s, name, gpus, steps) in enumerate(jobs)
    )


def prepare() -> None:
    """Compile what the rounds of the demo call, once; the controller could not answer meanwhile."""
    from brim.cli.compiling import CompileStep, compile_first

    compile_first([CompileStep(name="rounds", key="demo", run=rehearse)], COMPILING)


def rehearse(slower: float = 1.0, start_ms: int = 200) -> Replay:
    """Replay the plan in the twin, before the first run of it: this compiles all that its rounds call.

    Args:
        slower: Time of a step relative to the least that ``SAMPLE_MS`` allows.
        start_ms: Time that a start takes; the jobs that come later are submitted after it.
    """
    import numpy as np

    from brim.core.cluster import parse_cluster
    from brim.core.trace import trace_of
    from brim.engine.journal import Journal
    from brim.policies.presets import find_policy
    from brim.sim.overheads import Overheads
    from brim.sim.truths.seen import SeenRates
    from brim.sim.twin import ReplaySettings, replay

    jobs = plan()
    least, most = (np.array([int(job.gpus.split("-")[end]) for job in jobs]) for end in (0, -1))
    trace = trace_of(
        name="the demo's plan", format="live", job_id=[job.name for job in jobs], gpus=least,
        submit_ms=[job.at_ms + start_ms * (job.at_ms > 0) for job in jobs], batch=[BATCH] * len(jobs),
        job_class=[job.job_class for job in jobs],
    )
    rate_G = np.arange(1, SLOTS + 1) * 1_000 / SAMPLE_MS / slower
    rate_JG = np.tile(rate_G, (len(jobs), 1))
    truth = SeenRates(trace, rate_JG, samples=np.array([job.samples for job in jobs]), gpus_min=least, gpus_max=most)
    costs = ReplaySettings(overheads=Overheads.of_live(start_ms=start_ms, restart_ms=start_ms, save_ms=200))
    return replay(trace, parse_cluster(CLUSTER), find_policy(str(POLICY)), costs, truth=truth, journal=Journal())


def run_jobs(
    jobs: Sequence[Planned], folder: Path, screen: Console, *, temporary: Path | None = None
) -> Session:
    """Run jobs on a cluster of their own, displayed as the console allows; see ``private_cluster`` on ``temporary``.

    Raises:
        KeyboardInterrupt: a signal stopped it, and every process is gone.
        BrimError: the cluster does not start or end.
    """
    from brim.cli.private_cluster import private_cluster
    from brim.cli.session import Session

    work = folder / "jobs"
    work.mkdir(exist_ok=True)
    session = None
    try:
        words = ["--devices", str(SLOTS), "--policy", str(POLICY)]
        with private_cluster(folder / "state", words, temporary=temporary) as at:
            session = Session(jobs, at.jobs().now_ms)
            _watch(at, session, work, screen)
    except KeyboardInterrupt:
        ended = 0 if session is None else sum(job.has_ended for job in session.jobs.values())
        with contextlib.suppress(OSError):  # the terminal may be gone
            screen.print(f"stopped: {ended} of {len(jobs)} jobs had ended; none of their processes is left")
        raise
    return session


def _watch(at: Client, session: Session, work: Path, screen: Console) -> None:
    """Submit the jobs when their time comes, and show them until they have ended."""
    from rich.live import Live

    from brim.cli.watch import Lines, View

    with contextlib.ExitStack() as opened:
        if screen.is_terminal:
            show = View(opened.enter_context(Live(console=screen, auto_refresh=False))).show
        else:
            show = Lines(screen).show
        while True:
            session.note(at.jobs("all"))
            while (due := session.due()) is not None:
                session.ids.append(_submit(at, due, work))
            if screen.is_terminal:
                session.ask_why(at)
            show(session.view(SLOTS))
            if session.is_over:
                return
            time.sleep(TICK_S)


def say_why(job: JobRecord, folder: Path, screen: Console) -> None:
    """Say how a job failed, with the end of what it wrote."""
    from brim.agent.folders import log_folder

    screen.print(f"job {job.id} ({job.request.name}) {job.state}: {job.reason}", markup=False, soft_wrap=True)
    for log in sorted(log_folder(folder / "state" / "agent", job.id, job.attempt).glob("rank-*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES_SHOWN:]
        screen.print(*lines, sep="\n", markup=False, soft_wrap=True)


def _submit(at: Client, job: Planned, work: Path) -> int:
    """Submit a job, as ``brim submit`` does; returns its id."""
    from brim.cli.capture import requests_of, work_of
    from brim.cli.job_options import asked

    options = {"name": job.name, "gpus": job.gpus, "batch": str(BATCH), "chdir": str(work), "time": "10m",
               "grace": f"{GRACE_S:g}s", "class": job.job_class.name.lower()}  # fmt: skip
    (request,) = requests_of(work_of(job.words), asked(options), {})
    # a rigid job may be one process on all of its devices: these have a rank on each
    return at.submit([replace(request, ranks="per-gpu", local_batch_max=BATCH)])[0]
