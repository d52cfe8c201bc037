"""The examples run, and print what stands beside them. Those that train are run in tests/train/test_examples.py."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from brim import traces
from brim.cli.main import app
from brim.core.cluster import parse_cluster
from brim.policies.presets import find_policy
from brim.sim.twin import replay
from brim.testing import job, small_trace
from tests import forked

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = {"compare.py": (), "my_policy.py": ("-m", "brim.cli.main", "policy", "check")}
"""How each example is run: alone, or as the argument of a command."""


def test_every_example_has_its_output():
    assert sorted(path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("train_")) == sorted(SCRIPTS)
    assert sorted(path.stem for path in EXAMPLES.glob("*.out")) == sorted(Path(name).stem for name in SCRIPTS)


def test_every_example_prints_what_stands_beside_it():
    env = {**os.environ, "COLUMNS": "80"}
    for name, command in SCRIPTS.items():
        ran = forked.run(*command, EXAMPLES / name, cwd=ROOT, env=env, timeout_s=600)
        assert ran.returncode == 0, ran.stderr  # which may say that something is compiled for the first time
        assert ran.stdout == (EXAMPLES / name).with_suffix(".out").read_text(encoding="utf-8")


def test_the_policy_serves_least_work_first_and_then_the_patient():
    """One GPU. The long job comes first; of those that wait, the shortest estimate runs first."""
    policy = find_policy(str(EXAMPLES / "my_policy.py"))
    hour = 3600
    trace = small_trace(
        job(at=0, run=10, limit=hour), job(at=1, run=20, limit=3 * hour), job(at=2, run=30, limit=2 * hour),
    )
    assert (replay(trace, parse_cluster("1x1xT4"), policy).finish_ms / 1000).tolist() == [10, 60, 40]
    late = small_trace(  # the second has waited for more than a day when the first ends, the third has not
        job(at=0, run=25 * hour, limit=30 * hour), job(at=1, run=10, limit=9 * hour),
        job(at=24 * hour, run=10, limit=hour),
    )
    finish = (replay(late, parse_cluster("1x1xT4"), policy).finish_ms / 1000).tolist()
    assert finish == [25 * hour, 25 * hour + 10, 25 * hour + 20]


@pytest.mark.slow
def test_the_replay_of_elastic_jobs_in_the_document_is_that_of_the_command_line(tmp_path, monkeypatch, capsys):
    document = (ROOT / "docs/how-to-write-a-policy.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", document, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "my_policy.py", tmp_path)
    cluster = parse_cluster("2x8xV100")
    traces.write(traces.synthesize("philly", jobs=40, seed=1, cluster=cluster, load=0.9), tmp_path / "jobs.csv")
    exec(code, {})
    said = dict(re.findall(r"^([\w-]+): mean JCT (\d+) s$", capsys.readouterr().out, re.M))
    command = ["sim", "compare", "jobs.csv", "-c", "2x8xV100", "-p", "backfill,elastic,my_policy.py", "--json"]
    ran = CliRunner().invoke(app, [*command, "--truth", "parametric", "--elastic-share", "0.5"])
    assert ran.exit_code == 0, ran.output
    rows = json.loads(ran.stdout)["results"]
    assert said == {row["policy"]: f"{row['jct_mean_s']:.0f}" for row in rows}
    assert len(said) == 3
    assert any(row["resizes"] for row in rows)


LOOP_AROUND = """
import torch
from torch.nn.functional import cross_entropy
dataset = torch.utils.data.TensorDataset(torch.randn(600, 4), torch.randint(0, 3, (600,)))
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def test_the_ledger_of_the_training_loop_is_proved_as_the_document_says(tmp_path, zygote):
    document = (ROOT / "docs/how-to-train-elastically.md").read_text(encoding="utf-8")
    loop, *others = re.findall(r"^```python\n(.*?)^```$", document, re.M | re.S)
    (proof,) = (other for other in others if "ledger.verify" in other)
    script = tmp_path / "loop.py"
    script.write_text(LOOP_AROUND + loop.replace("out/job", str(tmp_path / "job")) + proof, encoding="utf-8")
    said = re.search(r"`(Verified\(.*?\))`", document)[1]
    for _ in range(2):  # the second start does no step and has the ledger of the first
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        ran = forked.run(script, zygote=zygote, cwd=tmp_path, env=env, timeout_s=120, check=True)
        assert ran.stdout == said + "\n"


def test_early_stopping_ends_the_job_and_does_so_again_as_the_document_says(tmp_path, zygote):
    document = (ROOT / "docs/how-to-train-elastically.md").read_text(encoding="utf-8")
    loop, *others = re.findall(r"^```python\n(.*?)^```$", document, re.M | re.S)
    (evaluation,) = (other for other in others if "def evaluate" in other)
    (early,) = (other for other in others if "no better" in other)
    before = loop.partition("for epoch")[0].replace("out/job", str(tmp_path / "job"))
    text = (
        f"{LOOP_AROUND}from torch.utils.data import DataLoader, Subset\ntest_set = dataset\n{before}"
        f"{evaluation.partition('for x, y in run.steps')[0]}{early}print(run.epoch, best['epoch'])\n"
    )
    said = []
    for epochs in (50, 50, 60):
        script = tmp_path / f"early{len(said)}.py"
        script.write_text(text.replace("run.epochs(50)", f"run.epochs({epochs})"), encoding="utf-8")
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        ran = forked.run(script, zygote=zygote, cwd=tmp_path, env=env, timeout_s=120, check=True)
        said.append([int(word) for word in ran.stdout.split()])
    (done, best), again, more = said
    assert done == best + 4 < 50
    assert again == [done, best]
    assert more == [done + 1, best] or more[1] >= done


def test_a_policy_file_replays_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    trace = tmp_path / "trace.csv"
    runner = CliRunner()
    made = runner.invoke(app, ["trace", "synth", "philly", str(trace), "-n", "40", "-c", "16x8xV100", "--load", "0.8"])
    assert made.exit_code == 0, made.output
    command = ["sim", "run", str(trace), "-c", "16x8xV100", "-p", "examples/my_policy.py", "--json"]
    ran = runner.invoke(app, command)
    assert ran.exit_code == 0, ran.output
    assert '"policy": "my-policy"' in ran.stdout
