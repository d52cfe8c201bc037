"""The training job of the storms, with the witness of the soak: ``python trainer.py FOLDER OUT [OPTIONS]``."""

import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from witness import hold

folder = Path(sys.argv.pop(1))
devices = os.environ["BRIM_DEVICES"].split(",")
hold(folder / "locks", [devices[int(os.environ["LOCAL_RANK"])]])
runpy.run_path(str(Path(__file__).parents[2] / "elastic" / "job.py"), run_name="__main__")
