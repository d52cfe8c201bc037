"""Names and shapes that the house keeps."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import brim.testing

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "brim"
BANNED = ("util", "helper", "manager", "common", "misc")
OURS_ALONE = {
    "Ahead", "Alone", "Ask", "At", "Board", "By", "Company", "Course", "Outset", "Room", "Saw", "Scene", "Seats",
    "SeenBook", "Summer", "Timed", "What", "Where", "Why", "Wired", "as_main", "belongings", "bury", "certificate",
    "hear", "how", "loader_climb", "nursery", "sealed", "surroundings", "tell", "why_senseless",
}
"""Names that nobody guesses who knows PyTorch, Slurm or Kubernetes; each once named a class or function here."""
CLASS_LINES_MAX = 300
FILES = sorted([*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])


def test_no_file_hides_behind_a_name_that_says_nothing():
    assert not [path for path in FILES if any(word in path.stem.lower() for word in BANNED)]


@pytest.fixture(scope="module")
def found():
    """What the rules below are about, each with its file, from reading every file once."""
    found = SimpleNamespace(unexplained=[], classes=[], mutable=[], swallowed=[], named=[])
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        ours = SOURCE in path.parents
        if ours and tree.body and not ast.get_docstring(tree):
            found.unexplained.append(path)
        for node in ast.walk(tree):
            place = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ours:
                found.named.append((place, node.name.strip("_")))
            if isinstance(node, ast.ClassDef) and ours:
                lines = (node.end_lineno or node.lineno) - node.lineno
                found.classes.append((place, node.name, lines, ast.get_docstring(node) or ""))
            elif isinstance(node, ast.FunctionDef):
                defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
                if any(isinstance(default, ast.List | ast.Dict | ast.Set) for default in defaults):
                    found.mutable.append(place)
            elif isinstance(node, ast.ExceptHandler) and node.type is None and ours:
                found.swallowed.append(place)
    return found


def test_every_module_says_what_it_is_for(found):
    assert not found.unexplained


def test_a_class_name_has_one_meaning(found):
    """Two libraries have a callback for brim; their users import one of them by its module."""
    counts = Counter(name for _, name, _, _ in found.classes if not name.startswith("_"))
    assert [name for name, count in counts.items() if count > 1] == ["BrimCallback"]


def test_names_are_those_of_the_field(found):
    assert not [(place, name) for place, name in found.named if name in OURS_ALONE]


def test_a_long_class_says_why(found):
    long = [(place, name, said) for place, name, lines, said in found.classes if lines >= CLASS_LINES_MAX]
    assert not [(place, name) for place, name, said in long if "because" not in said]


def test_no_mutable_default_arguments(found):
    assert not found.mutable


def test_nothing_is_caught_and_forgotten(found):
    assert not found.swallowed, "catches everything"


def test_exports_exist_once():
    names = brim.testing.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(brim.testing, name) for name in names)
