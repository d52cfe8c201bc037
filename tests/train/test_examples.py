"""The examples that train: alone, on two ranks, they come to the same bits."""

import re
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("train_*.py"))
TIMEOUT_S = 240


def ran(zygote, *words):
    """What the command prints."""
    return forked.run(*words, zygote=zygote, cwd=ROOT, timeout_s=TIMEOUT_S, check=True).stdout


def on_ranks(zygote, size, *words):
    return ran(zygote, "-m", "brim.train.launch", "--zygote", zygote, "--nproc", size, *words)


def last_line(printed):
    found = re.findall(r"^(\d+) steps, sha256 ([0-9a-f]{64})$", printed, re.MULTILINE)
    assert len(found) == 1, printed
    return found[0]


def test_there_are_three():
    assert [path.stem for path in EXAMPLES] == ["train_characters", "train_digits", "train_proteins"]


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_one_and_two_ranks_come_to_the_same_bits(zygote, script):
    alone = last_line(ran(zygote, script, "--steps", 6))
    assert alone == last_line(on_ranks(zygote, 2, script, "--steps", 6))
    assert alone[0] == "6"


def test_the_digits_are_learned(zygote):
    printed = ran(zygote, ROOT / "examples" / "train_digits.py", "--steps", 160)
    accuracies = [float(found) for found in re.findall(r"not seen (\S+)", printed)]
    assert max(accuracies[-2:]) > 0.85, printed


def test_the_proteins_are_what_is_stated():
    """Every sequence matches the pattern of its family, and residues are as frequent as stated."""
    source = (ROOT / "examples" / "train_proteins.py").read_text()
    found = {}
    head, _, _ = source.partition("class Proteins")
    head = re.sub(r"^(parser|options).*\n( .*\n)*", "", head, flags=re.MULTILINE)
    exec(compile(head, "train_proteins.py", "exec"), found)
    patterns = [
        re.sub(r"\((\d+(?:,\d+)?)\)", r"{\1}", re.sub(r"\{(\w+)\}", r"[^\1]", motif)).replace("x", ".").replace("-", "")
        for motif in found["MOTIFS"].values()
    ]
    made = [found["sequence"](number) for number in range(800)]
    assert all(re.search(patterns[family], letters) for letters, family in made)
    assert {family for _, family in made} == {0, 1, 2, 3}
    assert all(40 <= len(letters) <= 100 for letters, _ in made)
    background = "".join(letters for letters, family in made if family == 0)
    for letter, percent in found["PERCENT"].items():
        assert 100 * background.count(letter) / len(background) == pytest.approx(percent, abs=1.0)


AROUND = """
import torch
from torch.nn.functional import cross_entropy
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
dataset = torch.utils.data.TensorDataset(
    torch.randn(512, 4, generator=generator), torch.randint(0, 3, (512,), generator=generator)
)
"""


def test_the_loop_of_the_document_runs(tmp_path, zygote):
    document = (ROOT / "docs" / "how-to-train-elastically.md").read_text(encoding="utf-8")
    loop = re.findall(r"^```python\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)[0]
    start, prepare = loop.index("run = "), loop.index("model, optimizer = ")
    model = "model = torch.nn.Linear(4, 3)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    loop = loop[:prepare] + model + loop[prepare:] + "print(run.steps_done, run.samples)\n"
    script = tmp_path / "loop.py"
    script.write_text(AROUND + loop[:start] + loop[start:].replace("out/job", str(tmp_path / "job")))
    assert ran(zygote, script).split() == ["20", "5120"]
