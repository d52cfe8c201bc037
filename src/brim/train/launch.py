"""Start, resize, preempt and kill the ranks of a training job by hand; no service is needed.

    python -m brim.train.launch --nproc 4 --control /tmp/job.sock script.py --epochs 3
    python -m brim.train.launch --nproc 4 -m package.module --epochs 3
    python -m brim.train.launch --nproc 2 --command ./any-program its arguments

    python -m brim.train.launch --send /tmp/job.sock resize 2
    python -m brim.train.launch --send /tmp/job.sock status | preempt [GRACE_S] | stop | kill ID
    python -m brim.train.launch --send /tmp/job.sock tune global_batch=512 loader_workers=4 prefetch=2

ID is the "id" of a rank in the status; docs/how-to-train-elastically.md explains the other fields.

Exit code: 0 finished; 75 preempted, start it again to resume; 2 for invalid arguments; otherwise that of the rank that
failed first (1 instead of 75, 85 or 99, which mean preempted), or 128 plus the number of the signal that ended it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence

from brim.gang import launch_config
from brim.gang.client import send_request
from brim.gang.launch_config import LaunchConfig
from brim.gang.messages import (
    RANKS_MAX,
    KillRequest,
    PreemptRequest,
    Request,
    ResizeRequest,
    StatusRequest,
    StopRequest,
    TuneSettings,
    check_request,
)
from brim.gang.supervisor import Supervisor

_REQUESTS = "status, resize N, preempt [GRACE_S], stop, kill ID, or tune NAME=VALUE ..."
_TUNABLE = ("global_batch", "loader_workers", "prefetch")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    options = parser.parse_args(words)
    try:
        if options.send:
            return _send(options.send, options.rest)
        return _launch(options)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"brim: {error}\n")
        return 2 if isinstance(error, ValueError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m brim.train.launch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--nproc", type=int, default=1, metavar="N", help="number of ranks at the start (default 1)")
    add("--control", metavar="PATH", help="socket to listen on (default: one in a new folder; its path is printed)")
    add("--send", metavar="PATH", help="send a request to the supervisor that listens on PATH")
    add("--devices", default="", metavar="A,B", help="GPUs of the job, in the order of LOCAL_RANK (default: all)")
    add("--grace", type=float, default=launch_config.GRACE_S, metavar="S",
        help="seconds from an announced stop to SIGKILL (default %(default)g)")  # fmt: skip
    add("--term", type=float, default=launch_config.TERM_S, metavar="S",
        help="last part of --grace, from SIGTERM to SIGKILL (default %(default)g)")  # fmt: skip
    add("--failure-grace", type=float, default=launch_config.FAILURE_GRACE_S, metavar="S",
        help="seconds from one rank's exception to SIGKILL of the others (default %(default)g)")  # fmt: skip
    add("--hang", type=float, default=launch_config.HANG_TIMEOUT_S, metavar="S",
        help="kill a rank that keeps all others waiting this many seconds (default %(default)g)")  # fmt: skip
    add("--replace", type=int, default=0, metavar="N", help="number of dead ranks to replace (default 0)")
    add("--logs", metavar="FOLDER", help="write the output of each rank to a file in FOLDER")
    add("--zygote", metavar="PATH", help="use the fork server (zygote) that listens on PATH (default: start one)")
    add("--preload", default=",".join(launch_config.PRELOAD), metavar="A,B",
        help="modules that the launcher's own fork server imports in advance")  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument("-m", dest="module", action="store_true", help="run a module, like python -m")
    what.add_argument("--command", action="store_true", help="run a program that is not a Python script")
    add("rest", nargs=argparse.REMAINDER, metavar="...", help="script.py and its arguments; with --send, the request")
    return parser


def _launch(options: argparse.Namespace) -> int:
    rest = options.rest[1:] if options.rest[:1] == ["--"] else options.rest
    if not rest:
        raise ValueError("no script given: expected script.py and its arguments")
    if not 1 <= options.nproc <= RANKS_MAX:
        raise ValueError(f"--nproc: found {options.nproc}, expected 1 to {RANKS_MAX}")
    for name in ("grace", "term", "failure_grace", "hang", "replace"):
        if not getattr(options, name) >= 0:
            raise ValueError(f"--{name.replace('_', '-')}: found {getattr(options, name):g}, expected at least 0")
    if options.logs:
        _make_folder(options.logs)
    python = [] if options.command else [sys.executable, *(["-m"] if options.module else [])]
    control = os.path.abspath(options.control) if options.control else _new_path()
    sys.stderr.write(f"brim: control {control}\n")
    config = LaunchConfig(
        command=(*python, *rest), nproc=options.nproc, control=control, cwd=os.getcwd(),
        devices=tuple(name for name in options.devices.split(",") if name), grace_s=options.grace,
        term_s=min(options.term, options.grace), failure_grace_s=options.failure_grace, hang_timeout_s=options.hang,
        replacements_max=options.replace, log_folder=options.logs, zygote=options.zygote,
        preload=tuple(name for name in options.preload.split(",") if name),
    )  # fmt: skip
    try:
        return Supervisor(config).run(ignore_later_signals=True).exit_code
    finally:
        if not options.control:
            os.rmdir(os.path.dirname(control))


def _make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--logs {path}: {error.strerror}; expected a writable folder") from None


def _new_path() -> str:
    return os.path.join(tempfile.mkdtemp(prefix="brim-"), "control")


def _send(path: str, words: Sequence[str]) -> int:
    if {"-h", "--help"}.intersection(words):
        sys.stdout.write(f"requests: {_REQUESTS}\n")
        return 0
    request = _parse_request(words)
    check_request(request)
    response = send_request(path, request)
    if response.status is not None:
        sys.stdout.write(json.dumps(response.status, indent=2) + "\n")
    if response.detail:
        sys.stderr.write(f"brim: {response.detail}\n")
    return 0 if response.ok else 4


def _parse_request(words: Sequence[str]) -> Request:
    """Parse a request.

    Raises:
        ValueError: it is not a valid request.
    """
    match list(words):
        case ["status"]:
            return StatusRequest()
        case ["resize", size]:
            return ResizeRequest(_number("resize", size))
        case ["preempt"]:
            return PreemptRequest()
        case ["preempt", grace_s]:
            return PreemptRequest(_seconds(grace_s))
        case ["stop"]:
            return StopRequest()
        case ["kill", number]:
            return KillRequest(_number("kill", number))
        case ["tune", *pairs] if pairs:
            tuned = dict(_tuned(pair) for pair in pairs)
            return TuneSettings(0, tuned.get("global_batch"), tuned.get("loader_workers"), tuned.get("prefetch"))
    raise ValueError(f"found {' '.join(words)!r}, expected {_REQUESTS}")


def _number(what: str, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"{what}: found {word!r}, expected a whole number") from None


def _seconds(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"preempt: found {word!r}, expected a number of seconds") from None


def _tuned(pair: str) -> tuple[str, int]:
    name, _, value = pair.partition("=")
    if name not in _TUNABLE or not value.isdecimal():
        raise ValueError(f"tune: found {pair!r}, expected NAME=NUMBER, where NAME is one of {', '.join(_TUNABLE)}")
    return name, int(value)


if __name__ == "__main__":
    sys.exit(main())
