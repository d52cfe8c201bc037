"""Young libraries break what uses them: brim takes only versions that were tried."""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_libraries_before_their_first_version_have_an_upper_bound():
    """Those that brim needs to run; the ones of its tests are found broken by its tests. Numba and Typer: see there."""
    needed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["live"]]
    young = [one for one in needed if re.search(r">=0\.", one)]
    assert len(young) > 2
    unbounded = {re.match(r"[\w-]+", one)[0] for one in young if "<" not in one}
    assert unbounded <= {"numba", "typer"}  # with years of versions below 1.0 that kept what brim uses
