"""Three users of one machine: each runs jobs as that user, sees the queue of all, and no more of the others' jobs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import brim as brim_package
from tests.cli.commands import brim
from tests.gang.conftest import PATIENCE_S

ANN, BO, EVE = 12301, 12302, 12303
PROGRAM = "import sys; sys.argv[0] = 'brim'; from brim.cli.main import main; main()"

pytestmark = [
    pytest.mark.slow, pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users"),
]  # fmt: skip


def environment_of(uid, folder):
    """An interpreter that this user may run, and variables with which it finds brim: a copy if need be."""
    variables = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    for find in (lambda: sys.path, lambda: [visible_copy(folder / "packages")]):
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, map(str, find())))
        for python in (sys.executable, "/usr/bin/python3"):
            probe = [python, "-c", "import brim.cli.main, brim.agent.agent, polars"]
            with contextlib.suppress(OSError):
                if subprocess.run(probe, user=uid, group=uid, extra_groups=[], env=variables, cwd="/", check=False,
                                  capture_output=True).returncode == 0:
                    return python, variables
    pytest.skip("no interpreter here can be run by other users")


def visible_copy(target):
    """What the service imports, and nothing else of this environment: links, or copies on another file system."""
    target.mkdir(mode=0o755)
    shutil.copytree(Path(brim_package.__file__).parent, target / "brim", ignore=shutil.ignore_patterns("__pycache__"))
    wanted, seen = ["brim[live]"], set()
    while wanted:
        needed = Requirement(wanted.pop())
        name = canonicalize_name(needed.name)
        if (name, *needed.extras) in seen:
            continue
        seen.add((name, *needed.extras))
        found = metadata.distribution(name)
        wanted += [one for one in found.requires or () if applies(Requirement(one), needed.extras)]
        for file in found.files or () if name != "brim" else ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(file.locate(), target / file)
    return target


def applies(requirement, extras):
    """Whether a requirement holds here, where these extras were asked for."""
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": one}) for one in ("", *extras))


def link_or_copy(source, target):
    """A second name of a file, or its copy where that is not possible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="brim-"))
    path.chmod(0o755)
    for uid in (ANN, BO, EVE):
        (path / str(uid)).mkdir()
        os.chown(path / str(uid), uid, uid)
    yield path
    for lock in path.glob("*/agent/lock"):
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(int(lock.read_text()), signal.SIGTERM)
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.slow
def test_each_user_runs_and_sees_what_is_theirs(folder):
    python, variables = environment_of(ANN, folder)
    mine = {**os.environ, "BRIM_STATE": str(folder / "0"), "BRIM_RUNTIME": str(folder / "run")}

    def owner(*words):
        done = brim(*words, cwd=folder, env=mine)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def user(uid, *words, code=0):
        env = {**variables, "BRIM_STATE": str(folder / str(uid)), "HOME": str(folder / str(uid))}
        done = subprocess.run(
            [python, "-c", PROGRAM, *map(str, words)], user=uid, group=uid, extra_groups=[], env=env,
            cwd=folder / str(uid), capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == code, (uid, words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    owner("up", "--devices", "4", "--allow", f"{ANN},{BO}")
    try:
        unit = Path(user(ANN, "join", folder / "run", "--systemd").splitlines()[0])
        assert f'"--controller" "{folder}/run/agents.sock" "--devices" "4"' in unit.read_text(encoding="utf-8")
        assert not (folder / str(ANN) / "agent").exists(), "nothing was started"
        for uid in (ANN, BO):
            assert "joined" in user(uid, "join", folder / "run")
        assert "may not use this controller" in user(EVE, "join", folder / "run", code=4)
        assert f"uid={ANN} gid={ANN} groups={ANN}\n" in user(ANN, "run", "--", "id")
        job = user(ANN, "submit", "-n", "secret-name", "sleep", "3600").strip()
        others = user(BO, "ps")
        assert re.search(rf"^{job} +- +{ANN} ", others, re.M)
        assert "secret-name" not in others
        for verb in ("cancel", "hold", "requeue", "logs", "explain", "redo"):
            assert f"there is no job {job} of yours" in user(BO, verb, job, code=3)
        assert "secret-name" in owner("ps"), "who runs the controller sees all jobs"
        deadline_s = time.monotonic() + PATIENCE_S
        while "running" not in user(ANN, "ps"):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        with pytest.raises(AssertionError, match="who alone can read"):
            owner("logs", job)
        with pytest.raises(AssertionError, match="who alone can submit it again"):
            owner("redo", job)
        assert f"job {job} of {ANN} goes on" in owner("down")
        owner("up", "--devices", "4", "--allow", str(ANN))
        assert re.search(rf"^{job} +secret-name .* running ", user(ANN, "ps"), re.M)
        assert "may not use this controller" in user(BO, "ps", code=4)
        user(ANN, "cancel", job)
    finally:
        brim("down", "--stop", cwd=folder, env=mine)


def test_a_user_without_a_home_folder_is_told_what_to_set(folder):
    python, variables = environment_of(ANN, folder)
    done = subprocess.run(
        [python, "-c", PROGRAM, "ps"], user=ANN, group=ANN, extra_groups=[], env=variables, cwd="/",
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == f"brim: error: user {ANN} has no home folder: set HOME or BRIM_STATE\n"
    assert done.returncode == 4
