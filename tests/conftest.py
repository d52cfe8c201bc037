"""How much of which tests runs where: samples or all (--full), examples of Hypothesis, groups; and signals."""

import gc
import os
import signal
import sys
from collections import defaultdict
from multiprocessing import resource_tracker

import pytest
from hypothesis import HealthCheck, settings

from tests import sampling, zygotes

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("sample", max_examples=20, deadline=None, derandomize=True, suppress_health_check=_QUIET)
settings.register_profile("full", settings.get_profile("sample"), max_examples=60)
settings.register_profile("explore", max_examples=2_000, deadline=None, suppress_health_check=_QUIET)

for _name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(_name, None)  # processes under test run as a user's do
_OF_LIBRARIES = ("KMP_", "PYTORCH_NVML")
_BEFORE = {name for name in os.environ if name.startswith(_OF_LIBRARIES)}

gc.set_threshold(50_000)  # by default the young are looked at 70 times as often: a sixth of the time of imports

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background, and by all started from it


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="every case of large enumerations (make test-all), no sample")


def pytest_configure(config):
    """All tests but those of tests/gpu compute on the CPU: `pytest tests/gpu` is a run of its own."""
    sampling.full = config.getoption("--full")
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("full" if sampling.full else "sample"))
    if not all("tests/gpu" in str(folder) for folder in config.args):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    resource_tracker.ensure_running()  # one that a test started would be ended with all else that has the test's mark
    if config.getoption("numprocesses", None) and config.args == config.getini("testpaths"):
        zygotes.start_for_all_tests()  # all its workers will need it


def pytest_itemcollected(item):
    """Tests that share what a fixture of their module sets up run on one worker (``--dist loadgroup``), in a row."""
    if any(each[-1].scope == "module" for each in item._fixtureinfo.name2fixturedefs.values()):
        item.add_marker(pytest.mark.xdist_group(item.module.__name__))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a test with the mark ``cases(n)``, n cases that are spread over all of them are quick, the others slow.

    Tests with the mark ``long`` come first: else all others may be through while one that waits has just begun.
    """
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("cases") is not None:
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        (quick,) = cases[0].get_closest_marker("cases").args
        cases.sort(key=lambda case: case.nodeid)  # whatever their order is
        spread = {len(cases) * each // quick for each in range(quick)}
        for number, case in enumerate(cases):
            if number not in spread:
                case.add_marker("slow")
    result = yield
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    return result


def pytest_collection_finish():
    """What was imported stays: a full collection need not walk it."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A skip fails where its reason names what BRIM_REQUIRE says is there, such as ``slurm,chromium``."""
    report = yield
    required = filter(None, os.environ.get("BRIM_REQUIRE", "").lower().split(","))
    if report.skipped and any(name in str(report.longrepr).lower() for name in required):
        report.outcome = "failed"
    return report


@pytest.fixture(autouse=True)
def _nothing_stays():
    """A run that a test starts in this process leaves no handler to the next test: their order is random.

    Nor do variables stay that scikit-learn and Lightning set when they are imported: with them, no rank would be forked
    from a zygote that began without.
    """
    for name in [name for name in os.environ if name.startswith(_OF_LIBRARIES) and name not in _BEFORE]:
        del os.environ[name]
    sigterm, hook = signal.getsignal(signal.SIGTERM), sys.excepthook
    yield
    signal.signal(signal.SIGTERM, sigterm)
    sys.excepthook = hook


@pytest.fixture(scope="session")
def zygote():
    """Path of the socket of the zygote of all tests."""
    return zygotes.of_tests()
