"""What the ``brim`` command imports and loads for a replay, for processes forked with it: see ``tests/forked.py``.

Kernels that were never compiled stay so: the first command compiles them, under the lock.
"""

import atexit
import gc
import sys

import typer._adapters  # noqa: F401 - pydantic, for the first option of a command

import brim.cli.change
import brim.cli.completion
import brim.cli.doctor
import brim.cli.eta
import brim.cli.fidelity
import brim.cli.main
import brim.cli.policy
import brim.cli.profile
import brim.cli.ps
import brim.cli.replays
import brim.cli.report
import brim.cli.sim
import brim.cli.submit
import brim.cli.token
import brim.cli.trace
import brim.cli.up
import brim.reports.page
import brim.sim.truth_option
import brim.traces  # noqa: F401
from brim.cli.compiling import kernels
from brim.kernel_cache import is_ready

for _step in kernels():
    if is_ready(_step.key):
        _step.run()
atexit.register(gc.callbacks.clear)  # Hypothesis' own fails, with a note on stderr, when a forked process ends
del sys.modules["brim.cli.main"]  # a command runs it as ``__main__``
