"""Units of systemd: what they say, and that systemd understands it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from brim.cli.systemd_units import AGENT, CONTROLLER, unit_texts, units_folder, write_units
from brim.errors import ConfigError
from tests.cli.commands import brim


def test_a_unit_starts_what_brim_up_would_and_ends_only_that():
    texts = unit_texts(["--devices", "2"], ["--controller", "/run/x/agents.sock"], {"BRIM_STATE": "/s", "HOME": "/h"})
    for name, module, words in (
        (CONTROLLER, "brim.api.serve", '"--devices" "2"'), (AGENT, "brim.agent", '"--controller" "/run/x/agents.sock"'),
    ):
        lines = texts[name].splitlines()
        assert f'ExecStart="{sys.executable}" "-m" "{module}" {words}' in lines
        assert {"KillMode=process", "Restart=on-failure", 'Environment="BRIM_STATE=/s"'} <= set(lines)
        assert "HOME" not in texts[name]
        assert ("Delegate=yes" in lines) == (name == AGENT)
    assert f'ExecStopPost=-"{sys.executable}" "-m" "brim.agent.cgroups"' in texts[AGENT].splitlines()


def test_who_has_joined_has_a_unit_of_the_agent_alone():
    texts = unit_texts(None, ["--controller", "/run/x/agents.sock"], {})
    assert list(texts) == [AGENT]
    assert CONTROLLER not in texts[AGENT]


def test_words_are_quoted_as_systemd_reads_them():
    text = unit_texts(["a b", 'c"d', "50%", "$e", "f\\g"], [], {"BRIM_STATE": "/a $b%"})[CONTROLLER]
    assert r'"a b" "c\"d" "50%%" "$$e" "f\\g"' in text
    assert 'Environment="BRIM_STATE=/a $b%%"' in text
    with pytest.raises(ConfigError, match="control characters"):
        unit_texts(["a\nExecStart=b"], [], {})


@pytest.mark.slow
def test_brim_up_writes_units_that_systemd_understands(tmp_path):
    env = {**os.environ, "HOME": str(tmp_path), "BRIM_STATE": str(tmp_path / "a state")}
    env.pop("XDG_CONFIG_HOME", None)
    done = brim("up", "--devices", "2", "--systemd", env=env)
    paths = done.stdout.split()
    assert paths == [str(units_folder({"HOME": str(tmp_path)}) / name) for name in (CONTROLLER, AGENT)]
    assert "loginctl enable-linger" in done.stderr
    assert not (tmp_path / "a state").exists(), "nothing was started"
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--recursive-errors=no", *paths], capture_output=True, text=True,
        check=False, env={**env, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert (checked.returncode, checked.stderr) == (0, "")


def test_units_replace_those_of_before(tmp_path):
    write_units(tmp_path / "units", {"a.service": "old"})
    (path,) = write_units(tmp_path / "units", {"a.service": "new"})
    assert path.read_text(encoding="utf-8") == "new"
