"""Hypothesis profiles: the same examples on every run, unless exploring (HYPOTHESIS_PROFILE=explore); signals."""

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("ci", max_examples=60, deadline=None, derandomize=True, suppress_health_check=_QUIET)
settings.register_profile("explore", max_examples=2_000, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

for _name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(_name, None)  # processes under test run as a user's do

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background, and by all started from it


def pytest_configure(config):
    """All tests but those of tests/gpu compute on the CPU: `pytest tests/gpu` is a run of its own."""
    if not all("tests/gpu" in str(folder) for folder in config.args):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A skip fails where its reason names what BRIM_REQUIRE says is there, such as ``slurm,chromium``."""
    report = yield
    required = filter(None, os.environ.get("BRIM_REQUIRE", "").lower().split(","))
    if report.skipped and any(name in str(report.longrepr).lower() for name in required):
        report.outcome = "failed"
    return report


@pytest.fixture(autouse=True)
def _handlers():
    """A run that a test starts in this process leaves no handler to the next test: their order is random."""
    sigterm, hook = signal.getsignal(signal.SIGTERM), sys.excepthook
    yield
    signal.signal(signal.SIGTERM, sigterm)
    sys.excepthook = hook
