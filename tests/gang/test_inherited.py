"""Umask and limits go from one process to another, whatever the hard limits of the other are."""

import json
import os
import resource
import subprocess
import sys

import pytest

from brim.gang.inherited import AS_IT_IS, Inherited, of_this_process, read_inherited

SHOW = "import json; from brim.gang.inherited import *; {}; print(json.dumps(of_this_process().plain()))"


def shown(code):
    done = subprocess.run([sys.executable, "-c", SHOW.format(code)], capture_output=True, check=True, text=True)
    return read_inherited(json.loads(done.stdout))


def test_what_one_process_has_another_can_have():
    mine = of_this_process()
    assert os.umask(mine.umask) == mine.umask
    assert mine.limits["nofile"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert "ofile" not in mine.limits
    assert shown("pass") == shown("AS_IT_IS.set()") == mine
    wanted = Inherited(umask=0o27, limits={**mine.limits, "nofile": 64, "core": 0})
    assert shown(f"read_inherited({wanted.plain()}).set()") == wanted


def test_what_is_above_a_hard_limit_becomes_it():
    code = ("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (50, 70)); "
            "Inherited(limits={'nofile': %s, 'unheard-of': 3}).set()")  # fmt: skip
    for wanted, found in ((60, 60), (80, 70), (-1, 70)):
        assert shown(code % wanted).limits["nofile"] == found


def test_a_child_has_it_and_the_process_itself_not():
    before = of_this_process()
    with Inherited(umask=0o77, limits={"core": 0}).for_a_child():
        words = [sys.executable, "-c", SHOW.format("pass")]
        found = read_inherited(json.loads(subprocess.run(words, capture_output=True, check=True).stdout))
    assert (found.umask, found.limits["core"]) == (0o77, 0)
    assert of_this_process() == before


@pytest.mark.parametrize("plain", [
    {"umask": "022"}, {"umask": 0o1000}, {"umask": -2}, {"limits": []}, {"limits": {"core": "0"}}, {"umask": True},
    {"limits": {"core": -2}}, {"limits": {"core": 1 << 63}},
])  # fmt: skip
def test_what_is_no_umask_or_limit_is_refused(plain):
    assert read_inherited({}) == AS_IT_IS
    with pytest.raises(ValueError, match="found"):
        read_inherited(plain)
