"""``brim policy``: listing, showing, and checking a user's own file."""

from __future__ import annotations

import json

from tests.cli.commands import MINE, brim


def test_list_and_show():
    found = json.loads(brim("policy", "list", "--json").stdout)
    assert {"fifo", "backfill", "tiresias", "fair"} <= {row["name"] for row in found["policies"]}
    assert "brim.policies.place.parts.Fragmentation" in found["parts"]["place"]
    assert json.loads(brim("policy", "show", "fifo", "--json").stdout)["policy"]["order"] == "Arrival()"
    shown = brim("policy", "show", "tiresias").stdout
    assert "ServiceQueues" in shown
    assert "promote_ratio" in shown


def test_a_good_policy_of_ones_own_passes(tmp_path):
    path = tmp_path / "small_first.py"
    body = "return np.lexsort((snapshot.jobs.gpus, ~snapshot.jobs.holds))"
    path.write_text(MINE.format(name="SmallFirst", body=body))
    done = brim("policy", "check", path, "--examples", "5")
    assert done.returncode == 0, done.stderr
    assert "keeps the rules" in done.stdout


def test_a_policy_that_gambles_is_caught_with_its_rule(tmp_path):
    path = tmp_path / "gambler.py"
    body = "return np.random.default_rng().permutation(len(snapshot.jobs))"
    path.write_text(MINE.format(name="Gambler", body=body))
    done = brim("policy", "check", path, "--examples", "20")
    assert done.returncode != 0
    assert "breaks the rule" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_policy_of_ones_own_is_compared_with_others(tmp_path):
    """Comparing uses several processes, to which the parts of a user's file cannot be sent."""
    path, trace = tmp_path / "small_first.py", tmp_path / "t.parquet"
    path.write_text(MINE.format(name="SmallFirst", body="return np.argsort(~snapshot.jobs.holds, kind='stable')"))
    brim("trace", "synth", "philly", trace, "--jobs", 50, "--seed", 1, "--cluster", "2x8xV100", "--load", 1)
    done = brim("sim", "compare", trace, "-c", "2x8xV100", "-p", f"fifo,{path}", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["policy"] for row in json.loads(done.stdout)["results"]] == ["fifo", "mine"]
