"""Policies of Python files and of installed packages: what is found, and what is said where nothing is."""

from __future__ import annotations

import json
import os
import sys

import pytest

from brim.errors import ConfigError
from brim.policies.presets import PRESETS, find_policy
from tests.cli.commands import brim

MADE = "from dataclasses import replace\nfrom brim.policies.presets import PRESETS\n"
GOOD = f"{MADE}policy = replace(PRESETS['sjf'], name='mine', source='ours')\n"


def install(folder, name="plug", **entries):
    """Install a distribution: an entry point of each name, with the text of its module; returns the folder."""
    package, info = folder / name, folder / f"{name}-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").touch()
    for point, text in entries.items():
        (package / f"{point}.py").write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = "".join(f"{point} = {name}.{point}\n" for point in entries)
    (info / "entry_points.txt").write_text(f"[brim.policies]\n{points}")
    return folder


def point_to(folder, value, name="plug"):
    """Add an entry point ``pointed`` of this value."""
    with (folder / f"{name}-1.0.dist-info" / "entry_points.txt").open("a") as file:
        file.write(f"pointed = {value}\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("plug", "other")]:
        del sys.modules[name]


# -- installed packages --------------------------------------------------------------------------------------------


def test_a_policy_of_an_installed_package_has_the_name_of_its_entry_point(folder):
    install(folder, good=GOOD)
    assert find_policy("good").name == "good"
    assert find_policy("good").order == PRESETS["sjf"].order
    assert find_policy("good+padding").name == "good+padding"
    point_to(folder, "plug.good:policy")
    assert find_policy("pointed").source == "ours"


@pytest.mark.parametrize(("text", "said"), [
    ("\nraise RuntimeError('own')", "plug/broken.py:2: RuntimeError: own"),
    ("import nope", "plug/broken.py:1: ModuleNotFoundError: No module named 'nope'"),
    ("def f(:", "plug/broken.py:1: SyntaxError: invalid syntax (broken.py, line 1)"),
    ("import sys; sys.exit(0)", "plug/broken.py:1: SystemExit: 0"),
    ("import json\njson.loads('{')", "plug/broken.py:2: JSONDecodeError: Expecting property name"),
    ("policy = 3", "plug.broken: found 0 objects of type Policy, expected exactly one"),
    (f"{MADE}a, b = (replace(PRESETS['sjf'], name=name) for name in 'ab')",
     "plug.broken: found 2 objects of type Policy, expected exactly one: a, b"),
])
def test_a_package_that_cannot_be_used_is_one_line_with_its_place(folder, text, said):
    install(folder, broken=text)
    with pytest.raises(ConfigError) as caught:
        find_policy("broken")
    line = str(caught.value)
    assert line.startswith("policy broken of plug, ")
    assert said in line
    assert "\n" not in line


@pytest.mark.parametrize(("value", "said"), [
    ("plug.nowhere", "plug.nowhere: ModuleNotFoundError: No module named 'plug.nowhere'"),
    ("plug.good:nothing", "plug.good:nothing: AttributeError: module 'plug.good' has no attribute 'nothing'"),
    ("plug.good:replace", "plug.good:replace: found an object of type function, expected a Policy or a"),
    ("not a name", "not a name: AttributeError:"),
])
def test_an_entry_point_that_names_no_policy_says_what_it_names(folder, value, said):
    install(folder, good=GOOD)
    point_to(folder, value)
    with pytest.raises(ConfigError) as caught:
        find_policy("pointed")
    assert str(caught.value).startswith(f"policy pointed of plug, {said}")


def test_the_place_is_the_innermost_in_the_package(folder):
    install(folder, broken="from plug.inner import constant", inner="\n\nimport json; constant = json.loads('{')")
    with pytest.raises(ConfigError, match=r"^policy broken of plug, .*/plug/inner.py:3: JSONDecodeError"):
        find_policy("broken")


def test_ctrl_c_while_a_package_is_imported_is_ctrl_c(folder):
    install(folder, broken="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        find_policy("broken")


def test_a_file_with_the_name_of_a_preset_is_refused_unless_it_is_that_preset(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"{MADE}policy = replace(PRESETS['srtf'], name='fifo')\n")
    with pytest.raises(ConfigError, match=r"mine.py: found name 'fifo', which a preset has, expected another"):
        find_policy(str(path))
    path.write_text(f"{MADE}policy = PRESETS['fifo']\n")
    assert find_policy(str(path)) is PRESETS["fifo"]


def test_a_name_that_two_packages_have_is_refused(folder):
    install(folder, fifo=GOOD, good=GOOD)
    with pytest.raises(ConfigError, match=r"policy fifo: found in brim and in plug, expected in one"):
        find_policy("fifo")
    assert find_policy("backfill") is PRESETS["backfill"]
    install(folder, "other", good=GOOD)
    with pytest.raises(ConfigError, match=r"policy good: found in (plug and in other|other and in plug), expected in"):
        find_policy("good")


def test_the_module_of_a_package_is_executed_anew_where_nobody_else_sees_it(folder):
    install(folder, good=f"{GOOD}LOADED = []\n")
    point_to(folder, "plug.good:policy")
    policy = find_policy("good")
    module = sys.modules["plug.good"]
    for name in ("good", "pointed"):
        assert find_policy(name, afresh=True) == find_policy(name)
    (folder / "plug" / "good.py").write_text(GOOD.replace("ours", "theirs"))
    os.utime(folder / "plug" / "good.py", (1, 1))
    assert find_policy("good", afresh=True).source == "theirs"
    assert find_policy("good") == policy
    assert sys.modules["plug.good"] is module


def test_the_list_names_the_policies_of_packages_and_why_one_cannot_be_used(folder):
    install(folder, good=GOOD, broken="raise RuntimeError('own')", fifo=GOOD)
    rows = json.loads(brim("policy", "list", "--json", cwd=folder).stdout)["installed"]
    assert [(row["name"], row["distribution"], row["source"]) for row in rows] == [
        ("good", "plug", "ours"), ("broken", "plug", None), ("fifo", "plug", None),
    ]
    assert rows[0]["error"] is None
    assert "plug/broken.py:1: RuntimeError: own" in rows[1]["error"]
    assert "found in brim and in plug" in rows[2]["error"]
    done = brim("policy", "list", cwd=folder)
    table = done.stdout.partition("Policies of installed packages:\n")[2].splitlines()
    assert table[0].split() == ["good", "plug", "ours"]
    assert table[1].split()[:2] == ["broken", "plug"]
    assert table[1].endswith("RuntimeError: own")
    assert done.stderr == ""


def test_without_packages_the_list_has_none():
    assert json.loads(brim("policy", "list", "--json").stdout)["installed"] == []
    assert "installed" not in brim("policy", "list").stdout


def test_a_package_that_cannot_be_used_ends_a_command_as_a_file_does(folder):
    install(folder, broken="raise RuntimeError('own')")
    done = brim("policy", "show", "broken", cwd=folder)
    assert done.returncode == 2
    assert done.stderr == f"brim: error: policy broken of plug, {folder}/plug/broken.py:1: RuntimeError: own\n"


@pytest.mark.slow
def test_a_check_finds_state_that_the_module_of_a_package_keeps(folder):
    install(folder, keeps=(
        f"{MADE}import numpy as np\nfrom brim.policies.order.arrival import Arrival\nFIRST = {{}}\n"
        "class Mine(Arrival):\n    def __call__(self, snapshot, beliefs):\n        jobs = snapshot.jobs\n"
        "        key = [FIRST.setdefault(*one) for one in zip(jobs.id, jobs.gpus * snapshot.now_ms)]\n"
        "        return np.lexsort((key, ~jobs.holds))\n"
        "policy = replace(PRESETS['sjf'], name='mine', order=Mine())\n"
    ))
    done = brim("policy", "check", "keeps", "--examples", 10, cwd=folder)
    assert done.returncode == 1
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"brim: error: {folder}/plug/keeps.py:7 (order): breaks the rule 'keeps nothing between re")


# -- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "name"), [
    ("policy = mine\n", "mine"), ("B = PRESETS['backfill']\n", "mine"), ("B = F = PRESETS['fifo']\n", "mine"),
])
def test_an_alias_and_a_preset_that_is_looked_up_are_no_second_policy(tmp_path, text, name):
    path = tmp_path / "mine.py"
    path.write_text(f"{MADE}mine = replace(PRESETS['sjf'], name='mine')\n{text}")
    assert find_policy(str(path)).name == name


def test_a_file_that_only_looks_up_a_preset_holds_that(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"{MADE}policy = PRESETS['backfill']\n")
    assert find_policy(str(path)) is PRESETS["backfill"]


@pytest.mark.parametrize(("text", "said"), [
    ("", "found 0 objects of type Policy, expected exactly one"),
    ("a = b = replace(PRESETS['sjf'], name='a')\nc = replace(a, name='c')\nP = PRESETS['fifo']\n",
     "found 2 objects of type Policy, expected exactly one: a, c"),
    ("P, Q = PRESETS['fifo'], PRESETS['sjf']\n", "found 2 objects of type Policy, expected exactly one: P, Q"),
])
def test_the_policies_of_a_file_that_holds_not_one_are_named(tmp_path, text, said):
    path = tmp_path / "mine.py"
    path.write_text(MADE + text)
    with pytest.raises(ConfigError) as caught:
        find_policy(str(path))
    assert str(caught.value) == f"policy {path}: {said}"


def test_a_syntax_error_of_a_file_has_its_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("\ndef f(:\n")
    with pytest.raises(ConfigError, match=r"^policy file .*/mine.py:2: SyntaxError: invalid syntax"):
        find_policy(str(path))
