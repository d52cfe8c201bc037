"""The documents say nothing that is not so: code blocks, paths, links, commands and columns are compared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from brim import traces
from brim.cli.main import app
from brim.traces.formats import FORMATS
from brim.traces.sacct import WANTED

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")), *sorted((ROOT / "docs").rglob("*.md")),
]


def blocks(language: str) -> list[str]:
    """Fenced blocks of one language in the README, '' for those without one."""
    return [code for kind, code in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S) if kind == language]


def test_the_example_and_its_output_are_those_that_run():
    assert (ROOT / "examples/compare.py").read_text(encoding="utf-8") == blocks("python")[0]
    assert (ROOT / "examples/compare.out").read_text(encoding="utf-8") == blocks("")[0]


def test_the_policy_shown_is_the_policy_that_is_checked():
    text = (ROOT / "examples/my_policy.py").read_text(encoding="utf-8")
    assert text.endswith("\n\n" + blocks("python")[1])


def test_the_loop_shown_is_the_one_of_the_example():
    assert blocks("python")[2] in (ROOT / "examples/train_digits.py").read_text(encoding="utf-8")


def tree_paths() -> list[str]:
    """Paths of the file tree; two spaces a level."""
    found: list[str] = []
    parents: list[str] = []
    for line in blocks("")[-1].splitlines():
        name = line.split()[0]
        level = (len(line) - len(line.lstrip())) // 2
        parents[level:] = [name]
        found.append("".join(parents))
    return found


def test_every_path_of_the_tree_exists_and_has_a_phrase():
    assert len(tree_paths()) > 20
    for path, line in zip(tree_paths(), blocks("")[-1].splitlines(), strict=True):
        where = ROOT / path
        assert where.is_dir() if path.endswith("/") else where.is_file(), path
        assert len(line.split()) > 2, line


def test_the_tree_lists_every_part_of_the_package():
    listed = tree_paths()
    for path in (ROOT / "src/brim").iterdir():
        if path.suffix == ".py" and not path.name.startswith("__"):
            assert f"src/brim/{path.name}" in listed
        elif path.is_dir() and path.name != "__pycache__":
            assert f"src/brim/{path.name}/" in listed


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_paths_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert target.startswith("https://") or (document.parent / target).exists(), target
    for path in re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`((?:core|beliefs|policies|engine|sim|live|traces|reports|cli|testing)/[\w./]+)`", text):
        assert (ROOT / "src/brim" / path).exists(), path


@pytest.mark.cases(25)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_their_options_exist(document):
    """Every ``brim`` command in a document names verbs and options that the command line has."""
    text = document.read_text(encoding="utf-8")
    verbs = "|".join(typer.main.get_command(app).commands)
    commands = re.findall(rf"(?:^|`|/)brim ((?:{verbs})\b[^\n`#]*)", text, re.M)
    for words in (command.split(" -- ")[0].split() for command in commands):
        verb: Any = typer.main.get_command(app)
        while hasattr(verb, "get_command") and words and (inner := verb.get_command(None, words[0])) is not None:
            verb = inner
            words.pop(0)
        known = {option for parameter in verb.params for option in parameter.opts} | {"-h", "--help"}
        asked = {word.strip("[],;") for word in words if re.fullmatch(r"\[?--?[a-z][\w-]*[\],;]*", word)}
        assert asked <= known, f"{document.name}: brim {' '.join(words)}: {asked - known}"


def test_the_sacct_line_asks_for_what_the_reader_wants(tmp_path):
    columns = re.search(r"sacct .* -o (\S+)", README)[1].split(",")
    assert set(WANTED) - {"TimelimitRaw", "Cluster"} <= set(columns)  # the last, of several clusters
    row = {
        "JobID": "7", "JobIDRaw": "7", "User": "ann", "Account": "vision", "Partition": "gpu", "State": "COMPLETED",
        "Submit": "2026-05-04T10:00:00", "Eligible": "2026-05-04T10:00:00", "Start": "2026-05-04T10:05:00",
        "End": "2026-05-04T11:05:00", "Timelimit": "02:00:00", "AllocTRES": "cpu=16,mem=128G,gres/gpu=2",
        "ReqTRES": "cpu=16,mem=128G,gres/gpu=2", "Suspended": "00:00:00", "Restarts": "0", "ExitCode": "0:0",
    }
    dump = tmp_path / "jobs.txt"
    dump.write_text("|".join(columns) + "\n" + "|".join(row.get(name, "") for name in columns) + "\n", encoding="utf-8")
    trace, report = traces.read(dump)
    assert (report.format, trace.gpus.tolist(), trace.run_ms.tolist()) == ("sacct", [2], [3_600_000])


def test_the_number_of_formats_is_right():
    assert f"{len(FORMATS)} formats" in README


def test_every_decision_record_has_its_five_sections():
    records = sorted((ROOT / "docs/decisions").glob("*.md"))
    assert [path.name[:4] for path in records] == [f"{number:04}" for number in range(1, len(records) + 1)]
    for record in records:
        headings = re.findall(r"^## (.*)$", record.read_text(encoding="utf-8"), re.M)
        assert headings == ["Context", "Options", "Choice", "Evidence", "What would change our mind"], record.name
