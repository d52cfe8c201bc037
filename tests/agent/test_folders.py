"""Where a user's files are."""

from __future__ import annotations

import pytest

from brim.agent.folders import STATE_VARIABLE, state_folder
from brim.errors import ConfigError


def test_a_state_folder_that_is_a_file_is_refused_by_its_variable(tmp_path):
    file = tmp_path / "state"
    file.write_text("")
    with pytest.raises(ConfigError, match=f"^{STATE_VARIABLE}: found {file}, which is a file, expected a folder$"):
        state_folder({STATE_VARIABLE: str(file)})
    assert state_folder({STATE_VARIABLE: str(tmp_path / "new")}) == tmp_path / "new"
