"""Job lists whose larger jobs need 14 to 16 GPU-hours: just under the threshold of Tiresias as Pollux compares with it.

A few minutes of service decide whether such a job falls to the second queue, so that small departures from the
published simulator show. Short jobs come in the proportions of the published lists, arrivals over eight hours. No two
jobs are submitted in the same second, and the first one at a whole minute: the published simulator decides at whole
minutes of its list, a replay counts from the first job.

``python -m tests.realdata.near_threshold SEED > list.csv`` writes one.
"""

from __future__ import annotations

import random
import sys
from typing import Final

SHORT: Final = (
    ("ncf", 1, 32768), ("ncf", 1, 32768), ("cifar10", 6, 2048), ("cifar10", 8, 2048), ("cifar10", 12, 4096),
    ("cifar10", 16, 4096),
)
"""Application, GPUs and batch of jobs that need up to 3 GPU-hours."""
NEAR: Final = (
    ("bert", 6, 48), ("bert", 10, 48), ("bert", 16, 96), ("deepspeech2", 6, 80), ("deepspeech2", 12, 160),
    ("deepspeech2", 13, 160), ("deepspeech2", 19, 320), ("yolov3", 1, 128), ("yolov3", 2, 128), ("yolov3", 4, 32),
    ("yolov3", 4, 64),
)
"""Jobs that need 14.0 to 15.9 GPU-hours on the fewest nodes, restarts not counted."""
LARGE: Final = (("yolov3", 16, 256), ("imagenet", 32, 6400))
"""Jobs that fall to the second queue whatever happens."""
JOBS: Final = 160
HOURS: Final = 8


def near_threshold(seed: int) -> str:
    """Draw one list, in the format of the published ones; 10 to 35 % of its jobs are near the threshold."""
    draw = random.Random(seed)
    near = 0.1 + 0.25 * draw.random()
    times_s = sorted(draw.sample(range(HOURS * 3_600), JOBS))
    rows = []
    for time_s in times_s:
        kind = draw.random()
        rows.append((time_s - times_s[0] % 60, *draw.choice(NEAR if kind < near else LARGE if kind > 0.985 else SHORT)))
    lines = [f"{app}-{row},{submit_s},{app},{gpus},{batch}" for row, (submit_s, app, gpus, batch) in enumerate(rows)]
    return "\n".join(("name,time,application,num_replicas,batch_size", *lines, ""))


if __name__ == "__main__":
    sys.stdout.write(near_threshold(int(sys.argv[1])))
