"""Jobs without PyTorch: ``python plain_job.py KIND FOLDER SECONDS``; FOLDER is the soak's."""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from witness import hold

LINES_PER_S = 20


def counts(folder: Path, seconds: float) -> None:
    """Write numbered lines through all attempts, and note each after it was written."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
    job, attempt = os.environ["BRIM_JOB_ID"], os.environ["BRIM_ATTEMPT"]
    noted = os.open(folder / f"lines-{job}-{attempt}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    done = os.open(folder / f"done-{job}", os.O_RDWR | os.O_CREAT, 0o600)
    first = int(os.pread(done, 20, 0) or 0)
    for number in range(first, round(seconds * LINES_PER_S)):
        line = b"job %s line %d\n" % (job.encode(), number)
        os.write(1, line)
        os.write(noted, line)
        os.pwrite(done, b"%d" % (number + 1), 0)
        time.sleep(1 / LINES_PER_S)


def stays(folder: Path, seconds: float) -> None:
    """Ignore SIGTERM, and leave a process behind that has left the session and ignores it, too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not os.fork():
        os.setsid()
        if not os.fork():
            time.sleep(100_000)  # with the locks that it has inherited
        os._exit(0)
    time.sleep(seconds)


def fails(folder: Path, seconds: float) -> None:
    """Fail after a while."""
    time.sleep(seconds)
    sys.exit(3)


def ends(folder: Path, seconds: float) -> None:
    """End at once."""


if __name__ == "__main__":
    place = Path(sys.argv[2])
    hold(place / "locks", os.environ["BRIM_DEVICES"].split(","))
    {"counts": counts, "stays": stays, "fails": fails, "ends": ends}[sys.argv[1]](place, float(sys.argv[3]))
