"""The process of the controller: the service and, on a Unix socket of the runtime folder, its API.

    python -m brim.api.serve --devices 4 --policy fifo --allow 1001,1002

It answers as soon as the store is read, and decides as soon as the engine is loaded. It runs until SIGTERM; agents and
jobs go on, and the next controller adopts them. Exit code 2: bad arguments; 4: another controller runs, or the state
cannot be used.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvicorn
from fastapi import FastAPI

from brim import __version__
from brim.agent.folders import runtime_folder, state_folder
from brim.api.app import create_app
from brim.api.auth import Admission, PeerProtocol
from brim.api.own_agent import keep_own_agent
from brim.api.tokens import recogniser
from brim.api.wire import ENDED_BY
from brim.core.gpu_names import CPU
from brim.errors import BrimError, RefusedError
from brim.foresight.first_forecasts import FirstForecasts
from brim.live.gpu_types import ANY
from brim.live.policy_file import policy_digest
from brim.live.requests import JOBS_MAX, NONE
from brim.live.service import ClusterService
from brim.live.store.state_folder import DATABASE

if TYPE_CHECKING:
    from brim.live.controller import Controller

SOCKET: Final = "api.sock"
BACKLOG: Final = 256
CONNECTIONS_MAX: Final = 2_000
"""Open connections; ours, and at most half of the descriptors. Above it, an answer is 503."""


def make_runtime_folder(folder: Path, *, shared: bool) -> None:
    """Make the folder of the sockets, which others can pass through only if it is shared.

    Raises:
        RefusedError: it is a link, another user's, or others can write to it.
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found, named = os.fstat(fd), os.lstat(folder)
        if (found.st_dev, found.st_ino) != (named.st_dev, named.st_ino):
            raise RefusedError(f"{folder} is a link, expected a folder: remove it, or set BRIM_RUNTIME")
        if found.st_uid != os.getuid():
            raise RefusedError(f"{folder} belongs to user {found.st_uid}: set BRIM_RUNTIME to a folder of your own")
        os.fchmod(fd, 0o711 if shared else 0o700)
    finally:
        os.close(fd)


def bind_unix(path: Path, *, shared: bool) -> socket.socket:
    """Return a socket that listens there, in place of what a controller that was killed has left.

    Args:
        path: Path of the socket, in a folder of this user.
        shared: Whether other users may connect; who they are is checked for every connection.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    mask = os.umask(0o177)  # nobody can connect before the mode is set
    try:
        listener.bind(str(new))
    finally:
        os.umask(mask)
    if shared:
        new.chmod(0o666)
    listener.listen(BACKLOG)
    new.replace(path)
    return listener


def bind_tcp(port: int) -> socket.socket:
    """Return a socket that listens on this machine's own address only; port 0: any that is free."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(BACKLOG)
    return listener


def server_of(app: FastAPI) -> uvicorn.Server:
    """Return a server of the application that knows who connects."""
    connections = min(CONNECTIONS_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    return uvicorn.Server(
        uvicorn.Config(
            app, http=PeerProtocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, limit_concurrency=connections, timeout_keep_alive=5, timeout_graceful_shutdown=2,
        )
    )


def raise_descriptor_limit() -> None:
    """Let this process open as many files as its user may: the soft limit is 1,024 in most shells."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def serve(
    service: ClusterService, runtime: Path, allowed: frozenset[int], listeners: Sequence[socket.socket] = (),
    beside: Sequence[Callable[[], Coroutine[None, None, None]]] = (),
) -> None:
    """Run a service and its API until SIGTERM or SIGINT.

    Args:
        service: The service.
        runtime: Folder of the Unix socket.
        allowed: Users who may use it, besides the one who runs this.
        listeners: Sockets on which it listens as well, for callers with tokens.
        beside: What runs beside it once it decides, until it ends.

    Raises:
        BrimError: the service could not go on.
    """
    await service.start()
    try:
        admission = Admission(owner=os.getuid(), allowed=allowed)
        server = server_of(create_app(service, admission, recogniser(service, admission)))
        listener = bind_unix(runtime / SOCKET, shared=bool(allowed))
        serving = asyncio.ensure_future(server.serve([listener, *listeners]))
        failing = asyncio.ensure_future(_run(service, beside))
        await asyncio.wait([serving, failing], return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
        (runtime / SOCKET).unlink(missing_ok=True)  # the next controller cannot be there before the store is closed
        if failing.done():
            failing.result()
        failing.cancel()
        await asyncio.wait([failing])
    finally:
        await service.stop()


async def _run(service: ClusterService, beside: Sequence[Callable[[], Coroutine[None, None, None]]]) -> None:
    await service.recovered()
    gc.collect()
    gc.freeze()  # a full collection walks modules and jobs for 0.1 s, in which no other thread runs: these stay anyway
    tasks = [asyncio.create_task(one()) for one in beside]
    for task in tasks:
        task.add_done_callback(_log_error)
    try:
        await service.wait()
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log("brim controller: goes on without what has failed here:\n" + "".join(traceback.format_exception(error)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the controller; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m brim.api.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--devices", type=int, metavar="N", help="number of CPU slots")
    kind.add_argument("--gpus", type=int, metavar="N", help="number of GPUs")
    parser.add_argument("--gpu-type", default=ANY, metavar="TYPE", help="what GPUs they are, such as A100-SXM4-80GB")
    parser.add_argument("--policy", default="fifo", metavar="NAME", help="a preset, or a Python file with a policy")
    parser.add_argument("--allow", default="", metavar="UIDS", help="users who may use it, as numbers")
    parser.add_argument("--tcp", type=int, metavar="PORT", help="also listen on 127.0.0.1, for callers with a token")
    parser.add_argument("--user-gpus", type=int, default=NONE, metavar="N", help="most GPUs of a user's jobs together")
    parser.add_argument("--user-jobs", type=int, default=JOBS_MAX, metavar="N", help="most jobs of a user in a queue")
    parser.add_argument("--predictability", default="", metavar="FILE", help="a file of brim predictability fit")
    options = parser.parse_args(arguments)
    allowed = frozenset(int(uid) for uid in options.allow.split(",") if uid)
    _log(f"brim controller begins: process {os.getpid()}, version {__version__}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises again what has ended it, before the service has stopped
    raise_descriptor_limit()
    try:
        runtime = runtime_folder()
        make_runtime_folder(runtime, shared=bool(allowed))
        devices = f"{options.devices}x{CPU}" if options.gpus is None else f"{options.gpus}x{options.gpu_type}"
        make_controller = partial(
            _controller, devices, options.policy, options.user_gpus, options.predictability)
        service = ClusterService(
            state_folder() / "controller", runtime / "agents.sock", make_controller, allowed=allowed,
            user_jobs=options.user_jobs, policy_digest=policy_digest(options.policy),
        )
        database = state_folder() / "controller" / DATABASE
        agent = ["--controller", str(runtime / "agents.sock")]
        agent += [] if options.devices is None else ["--devices", str(options.devices)]
        asyncio.run(serve(
            service, runtime, allowed, [] if options.tcp is None else [bind_tcp(options.tcp)],
            [
                lambda: FirstForecasts(
                    service, database, options.policy, options.user_gpus, options.predictability).run(),
                lambda: keep_own_agent(service, agent),
            ],
        ))
    except BrimError as error:
        sys.stderr.write(f"{ENDED_BY}{error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"{ENDED_BY}{error.filename or 'cannot start'}: {error.strerror or error}\n")
        return 1
    _log(f"brim controller has ended: process {os.getpid()}")
    return 0


def _log(text: str) -> None:
    """Write a line to the log, unless its disk is full: a controller can serve then."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")


def _controller(devices: str, policy: str, user_gpus: int, predictability: str) -> Controller:
    from brim.live.machine import machine_controller  # noqa: PLC0415 - the engine: a second, after the first answers

    return machine_controller(devices, policy, user_gpus, predictability)


if __name__ == "__main__":
    sys.exit(main())
