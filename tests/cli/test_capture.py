"""What words mean: a command, a script with its interpreter, a YAML file; and what is taken along."""

from __future__ import annotations

import os
import stat

import pytest

from brim.agent.capture import read_capture
from brim.api.client import Client, NoControllerError
from brim.cli.capture import ENVIRONMENT_BYTES_MAX, requests_of, work_of
from brim.cli.job_options import asked, merged
from brim.cli.slurm_calls import slurm_calls
from brim.cli.submit import _SLURM_CALLS, _accepted, _changes, _unread
from brim.errors import ConfigError
from brim.gang.environment import rank_environment
from brim.gang.inherited import of_this_process


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BRIM_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def file(path, text, mode=0o644):
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return str(path)


def test_words_are_a_command():
    work = work_of(["python", "-u", "dir/train model.py", "--lr", "1"])
    assert work.command == ("python", "-u", "dir/train model.py", "--lr", "1")
    assert work.name == "train-model"
    assert work_of(["sleep", "1"]).name == "sleep"


@pytest.mark.parametrize(("name", "first", "interpreter"), [
    ("a.sh", "#!/bin/bash -e\n", ("/bin/bash", "-e")), ("a", "#!/usr/bin/env bash\n", ("bash",)),
    ("a.sbatch", "", ("/bin/bash",)), ("b", "#! /bin/sh\n", ("/bin/sh",)),
])  # fmt: skip
def test_a_shell_script_is_copied(folder, name, first, interpreter):
    path = file(folder / name, f"{first}echo\n")
    work = work_of([path, "x", "y z"])
    *words, script, one, two = work.command
    assert (tuple(words), one, two) == (interpreter, "x", "y z")
    assert script.startswith(str(folder / "state"))
    assert stat.S_IMODE(os.stat(script).st_mode) == 0o600
    with open(script, encoding="utf-8") as copy:
        assert copy.read() == f"{first}echo\n"
    assert work_of([path]).command[len(interpreter)] == script


def test_a_python_script_runs_where_it_is(folder):
    path = file(folder / "train.py", "#BRIM -g 2\nimport beside\n")
    work = work_of([path, "--lr", "1"])
    assert work.command[1:] == (path, "--lr", "1")
    assert work.options == {"gpus": "2"}
    assert work_of([file(folder / "t", "#!/usr/bin/env python3\n")]).command == ("python3", str(folder / "t"))


def test_a_file_that_is_missing_is_named_with_its_folder(folder):
    with pytest.raises(ConfigError, match=f"there is no file {folder}/nosuch.yaml"):
        work_of([str(folder / "nosuch.yaml")])


def test_a_yaml_file_may_name_a_script(folder):
    file(folder / "job.sh", "#!/bin/sh\n#SBATCH -t 10 -J inner --qos=x\n")
    work = work_of([file(folder / "sweep.yaml", "run: ./job.sh 3\nlimits: {time: 1h}\n")])
    assert work.command[0] == "/bin/sh"
    assert work.options["name"] == "inner"
    assert work.slurm == {}
    assert len(work.ignored) == 1
    with pytest.raises(ConfigError, match="arguments after a YAML file"):
        work_of([str(folder / "sweep.yaml"), "x"])


def test_everything_around_the_command_is_taken_along(folder, monkeypatch):
    monkeypatch.setenv("MARK", "caf\udce9 \u00fc\n")
    monkeypatch.setenv("BRIM_JOB_ID", "9")
    (asked_for,) = requests_of(work_of(["sleep", "1"]), asked({"env": {"A": "1"}, "gpus": "2"}), {"after": [3]})
    assert (asked_for.name, asked_for.gpus, asked_for.after, asked_for.attempts_max) == ("sleep", 2, (3,), 1)
    found = read_capture(folder / "state" / "agent" / "captures", asked_for.capture, asked_for.digest)
    assert (found.command, found.cwd) == (("sleep", "1"), str(folder))
    assert (found.env["MARK"], found.env["A"], found.env["PATH"]) == ("caf\udce9 \u00fc\n", "1", os.environ["PATH"])
    assert "BRIM_JOB_ID" not in found.env
    assert (found.inherits, found.slurm) == (of_this_process(), False)
    assert not any(name.startswith("SLURM_") for name in found.env)
    assert found.env["BRIM_STATE"] == str(folder / "state")


def test_the_jobs_of_an_array_have_one_capture_and_each_an_index(folder):
    file(folder / "job.sh", "#!/bin/sh\n#SBATCH --array=2,5\n")
    work = work_of(["./job.sh"])
    found = requests_of(work, asked(work.options), {})
    assert [each.array_index for each in found] == [2, 5]
    assert len({(each.capture, each.digest) for each in found}) == 1
    assert len(list((folder / "state/agent/captures").iterdir())) == 1
    assert read_capture(folder / "state/agent/captures", found[0].capture, found[0].digest).indices == (2, 5)


def test_a_submission_that_asks_for_too_much_leaves_no_capture(folder):
    with pytest.raises(ConfigError, match="after"):
        requests_of(work_of(["true"]), asked({"array": "0-3"}), {"after": list(range(1, 2_000))})
    assert not (folder / "state").exists()


def test_jobs_that_no_controller_takes_leave_no_capture(folder):
    found = requests_of(work_of(["true"]), asked({"array": "0-3"}), {})
    with pytest.raises(NoControllerError):
        _accepted(Client(folder / "api.sock"), found)
    assert not (folder / "state/agent/captures").exists()


def test_a_script_for_slurm_has_slurms_variables_and_not_those_of_a_job_around_it(folder, monkeypatch):
    file(folder / "job.sh", "#!/bin/sh\n#SBATCH --array=2,5%1 -c 4 --mem=2G -J net --gres=gpu:2\n")
    monkeypatch.setenv("SLURM_JOB_ACCOUNT", "of another job")
    work = work_of(["./job.sh"])
    asked_for = requests_of(work, asked(merged(work.options, {"env": {"SLURM_NTASKS": "8"}})), {})[1]
    found = read_capture(folder / "state/agent/captures", asked_for.capture, asked_for.digest)
    assert found.slurm
    said = {name: value for name, value in found.env.items() if name.startswith("SLURM_")}
    assert said == {
        "SLURM_JOB_NAME": "net", "SLURM_SUBMIT_DIR": str(folder), "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_CPUS_PER_TASK": "4", "SLURM_MEM_PER_NODE": "2048", "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1",
        "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
        "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "2",
        "SLURM_ARRAY_TASK_MAX": "5",
    }  # fmt: skip


@pytest.mark.parametrize(("line", "said"), [("--gres=gpu:2", None), ("-n 2", None), ("-n 1", "1")])
def test_tasks_are_told_only_where_the_script_asks_for_one(folder, line, said):
    """With ``SLURM_NTASKS``, Lightning takes the job for one of ``srun``: ``devices=2`` trained in one process."""
    file(folder / "job.sh", f"#!/bin/sh\n#SBATCH {line}\n")
    work = work_of(["./job.sh"])
    (asked_for,) = requests_of(work, asked(work.options), {})
    env = read_capture(folder / "state/agent/captures", asked_for.capture, asked_for.digest).env
    assert (env.get("SLURM_NTASKS"), env.get("SLURM_NPROCS")) == (said, said)


@pytest.mark.parametrize(("header", "given", "kept"), [
    ("-J 'my job'", {}, "my-job"), ("-J 'my job'", {"name": "x"}, None), ("-J my-job", {}, None), ("-n 1", {}, None),
    ("-J " + "x" * 65, {}, "x" * 64), ("-J a/b\n#BRIM --name c", {}, None),
])  # fmt: skip
def test_a_name_of_slurm_that_brim_does_not_keep_is_told(folder, header, given, kept):
    file(folder / "job.sh", f"#!/bin/sh\n#SBATCH --gpus=1 {header}\n")
    for words in (["./job.sh"], [file(folder / "job.yaml", "run: ./job.sh\n")]):
        work = work_of(words)
        told = list(_changes(work, merged(work.options, given)))
        assert [line.partition("keep: ")[2] for line in told] == ([] if kept is None else [f"the job is {kept}"])


@pytest.mark.parametrize(("text", "given", "told"), [
    ("#SBATCH -c 2", {}, True), ("echo", {}, False), ("#SBATCH -c 2", {"gpus": "1"}, False),
    ("#SBATCH -c 2\n#BRIM --devices cpu", {}, False), ("#SBATCH --gres=gpu:1", {}, False),
    ("#SBATCH --gres=tmpdir:1", {}, True),
])  # fmt: skip
def test_a_script_for_slurm_that_asks_for_no_gpu_is_told_that_it_gets_one(folder, text, given, told):
    work = work_of([file(folder / "job.sh", f"#!/bin/sh\n{text}\n")])
    assert list(_changes(work, merged(work.options, given))) == ["no GPU is asked for: brim gives the job one"] * told


@pytest.mark.parametrize(("given", "told"), [
    ({"priority": "7"}, ["priority 7"]), ({"priority": "-7", "class": "urgent"}, ["priority -7", "class urgent"]),
    ({"priority": "0", "class": "padding"}, []), ({}, []),
])  # fmt: skip
def test_what_no_policy_of_brim_reads_is_told(given, told):
    lines = list(_unread(asked(given).fields))
    assert [line.partition(" counts only under a policy file")[0] for line in lines] == told


def test_commands_of_slurm_in_a_script_for_slurm_are_found(folder):
    text = "# srun x\necho srun $(scontrol show hostnames | head -1)\n  srun python a.py\nsrun b\n"
    assert work_of([file(folder / "a.sh", f"#!/bin/sh\n#SBATCH -n 2\n{text}")]).slurm_calls == ("scontrol", "srun")
    assert work_of([file(folder / "b.sh", f"#!/bin/sh\n{text}")]).slurm_calls == ()


@pytest.mark.parametrize(("text", "calls"), [
    ("time srun x", "srun"), ("exec srun x", "srun"), ("cd a && sbatch b.sh", "sbatch"), ("true; scancel 3", "scancel"),
    ("squeue | grep x", "squeue"), ("yes | sacct", "sacct"), ("n=$(squeue -h)", "squeue"), ("salloc", "salloc"),
    ("A=1 B='x y' srun x", "srun"), ("if squeue; then srun x; fi", "squeue srun"), ("f() { srun x; }", "srun"),
    ('n="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)"', "scontrol"), ("n=`squeue -h`", "squeue"),
    ("cat <<EOF | srun x\ntime squeue\nEOF\nsacct", "srun sacct"), ("true && \\\n  srun x", "srun"),
    ("# don't\nsrun x", "srun"), ("echo ${#a[@]} $(sacct)", "sacct"), ("time -p srun x || sacct", "srun sacct"),
    ("echo srun x", ""), ("# srun x; srun y", ""), ("true # ; srun x", ""), ("echo 'a; srun x'", ""),
    ('echo "a && srun x"', ""), ("cat <<'EOF' > b.sh\nsrun x\nEOF", ""), ("/opt/srun/bin x", ""), ("cd srun; ls", ""),
    ("srun.sh x", ""), ("srun() { true; }", ""), ("srun=1", ""), ("echo a\\; srun x", ""), ("which srun", ""),
    ("command -v srun", ""), ("echo 'a\nsrun b\n'", ""), ("echo it\\'s; true", ""), ("ls srun | wc", ""),
    ("names=(srun sacct)", ""), ('echo "$(date); srun x"', ""), ("export A=srun B=sacct", ""), ("my-srun x", ""),
])  # fmt: skip
def test_calls_are_found_where_a_shell_looks_for_a_command(text, calls):
    assert slurm_calls(f"#!/bin/sh\n{text}\n") == tuple(calls.split())
    assert set(calls.split()) <= set(_SLURM_CALLS)


def test_a_shell_script_with_line_ends_of_windows_is_refused(folder):
    (folder / "dos.sh").write_bytes(b"#!/bin/bash\r\ncd data\r\n")
    with pytest.raises(ConfigError, match=r"dos\.sh: found line ends of Windows"):
        work_of(["./dos.sh"])


def test_a_script_with_a_byte_order_mark_or_in_latin_1_has_its_headers(folder):
    (folder / "a.sh").write_bytes(b"\xef\xbb\xbf#!/bin/sh\n# caf\xe9\n#SBATCH --gres=gpu:2\n")
    work = work_of(["./a.sh"])
    assert (work.command[0], work.options) == ("/bin/sh", {"gpus": "2"})
    with open(work.command[1], "rb") as copy:
        assert copy.read().startswith(b"#!/bin/sh\n# caf\xe9\n")


def test_what_cannot_run_is_refused_where_it_is_submitted(folder, monkeypatch):
    file(folder / "plain", "text")
    for words, options, said in [
        (["nothing-here"], {}, "no command 'nothing-here' on your PATH"), (["./nothing"], {}, "there is no program"),
        (["."], {}, "no command '.' on your PATH"), (["./"], {}, "/ is a folder, expected a program"),
        (["true"], {"chdir": "nowhere"}, "--chdir: found"), (["./a.txt"], {}, "no first line"),
    ]:
        file(folder / "a.txt", "hello")
        with pytest.raises(ConfigError, match=said):
            requests_of(work_of(words), asked(options), {})
    monkeypatch.setenv("LARGE", "x" * ENVIRONMENT_BYTES_MAX)
    with pytest.raises(ConfigError, match=r"the largest variable, LARGE, has 10\d+"):
        requests_of(work_of(["true"]), asked({}), {})
    assert not list((folder / "state").rglob("*.json"))


def test_a_job_that_a_rank_submits_is_no_rank_and_one_that_torchrun_submits_has_its_variables(folder, monkeypatch):
    rank = rank_environment({**os.environ, "BRIM_GANG": "g"}, 1, 1, 2, 29_500, ["GPU-a"], "")
    for name, value in rank.items():
        monkeypatch.setenv(name, value)
    for run_id, place in (("g", (None, None)), ("another", ("1", "2"))):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
        [asked_for] = requests_of(work_of(["true"]), asked({}), {})
        env = read_capture(folder / "state/agent/captures", asked_for.capture, asked_for.digest).env
        assert (env.get("RANK"), env.get("WORLD_SIZE")) == place


def test_a_folder_that_was_removed_is_told(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="does not exist any more"):
        requests_of(work_of(["true"]), asked({}), {})
    monkeypatch.chdir(tmp_path)
