"""Names and shapes that the house keeps."""

from __future__ import annotations

import ast
from pathlib import Path

import brim.testing

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "brim"
BANNED = ("util", "helper", "manager", "common", "misc")
FILES = sorted([*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])


def test_no_file_hides_behind_a_name_that_says_nothing():
    assert not [path for path in FILES if any(word in path.stem.lower() for word in BANNED)]


def test_every_module_says_what_it_is_for():
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert not [path for path, text in texts.items() if text and not ast.get_docstring(ast.parse(text))]


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
