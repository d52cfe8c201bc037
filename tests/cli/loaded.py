"""What the ``brim`` command imports when it replays a trace, for processes forked with it: see ``tests/forked.py``."""

import brim.cli.main
import brim.cli.replays
import brim.reports.page
import brim.sim.truth_option
import brim.traces  # noqa: F401
