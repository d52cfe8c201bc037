"""A script that knows nothing of tests, run at a pace: ``watched_loop.py ANSWERS PAUSE script.py its arguments``.

Every committed step goes to ``ANSWERS/step``; when all steps are done, what the run has come to goes to a file there.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from brim.train import run as session
from brim.train.state import hashes
from tests.elastic.pace import wait_until_allowed

answers, pause_s = Path(sys.argv[1]), float(sys.argv[2])
steps = os.open(answers / "step", os.O_CREAT | os.O_WRONLY)


class Watched(session.Run):
    """A run that tells its steps."""

    def step(self):
        committed = super().step()
        if committed:
            os.pwrite(steps, b"%8d" % self.steps_done, 0)
            time.sleep(pause_s)
            wait_until_allowed(answers, self.steps_done)
        return committed

    def finish(self):
        super().finish()
        parts = self._job.parts
        said = {
            "digest": self.digest(), "steps": self.steps_done, "samples": self.samples,
            "rates": [group["lr"] for optimizer in parts.optimizers for group in optimizer.param_groups],
            "carried": {name: hashes(part.state_dict()) for name, part in parts.parts.items() if name != "run"},
        }  # fmt: skip
        name = f"{os.environ.get('BRIM_ID', 'alone')}-{os.getpid()}.json"
        (answers / name).write_text(json.dumps(said))


session.Run = Watched
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
