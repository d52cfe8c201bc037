"""Commands in forked processes, after one whose run was cut off."""

import os
import signal

import pytest

from tests import forked


@pytest.mark.slow
def test_the_exit_of_a_process_whose_run_was_cut_off_is_not_that_of_the_next_one(zygote):
    forked.run("-c", "", zygote=zygote, check=True)

    def cut_off(_number, _frame):
        raise AssertionError("cut off")

    earlier = signal.signal(signal.SIGALRM, cut_off)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(AssertionError, match="cut off"):
            forked.run("-c", "import sys, time; time.sleep(1); sys.exit(3)", zygote=zygote)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
    before = set(os.listdir("/proc/self/fd"))
    done = forked.run("-c", "import time; time.sleep(2); print('done')", zygote=zygote)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_process_forked_for_the_command_has_its_modules():
    """The zygote goes on without a module that it cannot import."""
    done = forked.run("-c", f"import sys; print({forked.COMMAND!r} in sys.modules)")
    assert (done.stdout, done.stderr) == ("True\n", "")
