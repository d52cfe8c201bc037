"""How far a job may go before what a storm does at a step is done: the storm writes it, the ranks read it."""

import contextlib
import os
import time

SLACK_STEPS = 2
"""Steps that a job may be ahead of an event: it is met at any place in a step, as if nobody waited for it."""
PATIENCE_S = 60
"""Longest wait: the process that ran the storm may have died."""


def allow(answers, step=None):
    """Let the job go a little further than this step; None: to its end."""
    new, path = answers / "allowed.new", answers / "allowed"
    new.write_text(str(10**9 if step is None else step + SLACK_STEPS))
    os.replace(new, path)


def wait_until_allowed(answers, steps_done):
    deadline_s = time.monotonic() + PATIENCE_S
    with contextlib.suppress(FileNotFoundError):  # nothing happens to this job
        while int((answers / "allowed").read_text()) <= steps_done and time.monotonic() < deadline_s:
            time.sleep(0.01)
