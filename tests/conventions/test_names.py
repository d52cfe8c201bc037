"""Names and shapes that the house keeps."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import brim.testing

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "brim"
BANNED = ("util", "helper", "manager", "common", "misc")
CLASS_LINES_MAX = 300
FILES = sorted([*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])


def test_no_file_hides_behind_a_name_that_says_nothing():
    assert not [path for path in FILES if any(word in path.stem.lower() for word in BANNED)]


def test_every_module_says_what_it_is_for():
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert not [path for path, text in texts.items() if text and not ast.get_docstring(ast.parse(text))]


def classes():
    """Every class of the package, and its file."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield path, node


def test_a_class_name_has_one_meaning():
    """Two libraries have a callback for brim; their users import one of them by its module."""
    counts = Counter(node.name for _, node in classes() if not node.name.startswith("_"))
    assert [name for name, count in counts.items() if count > 1] == ["BrimCallback"]


def test_a_long_class_says_why():
    for path, node in classes():
        if node.end_lineno - node.lineno >= CLASS_LINES_MAX:
            assert "because" in (ast.get_docstring(node) or ""), f"{path}:{node.lineno} class {node.name}"


def test_no_mutable_default_arguments():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                    assert not isinstance(default, ast.List | ast.Dict | ast.Set), f"{path}:{node.lineno}"


def test_nothing_is_caught_and_forgotten():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                raise AssertionError(f"{path}:{node.lineno} catches everything")


def test_exports_exist_once():
    names = brim.testing.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(brim.testing, name) for name in names)
