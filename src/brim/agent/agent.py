"""The loop of the agent: it reports to ``NodeAttempts`` what happens, and does what that decides.

One process per node and user, which outlives the controller. If it is killed itself, the attempts go on, and the next
agent adopts them: everything that it must know of them is in their folders (``attempt_files``).
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import selectors
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from brim.agent import attempt_files, boot_clock, devices, leftovers
from brim.agent.adoption import end_in, found_attempts, newest_launches, note_processes, noted_processes
from brim.agent.attempt import fork_attempt, is_running
from brim.agent.attempt_files import AnalysisFile, EndFile, LaunchFile, PidsFile
from brim.agent.attempts import NodeAttempts
from brim.agent.blame import Resident, blamed
from brim.agent.capture import read_capture
from brim.agent.cgroups import CgroupTree
from brim.agent.controller_link import ControllerLink
from brim.agent.device_kinds import kind_of_device
from brim.agent.devices import Devices
from brim.agent.effects import (
    AgentEffect,
    AttemptEnd,
    CheckDevices,
    Forgotten,
    Key,
    Launch,
    Request,
    SendReport,
    Sweep,
    WriteEnd,
    WriteFence,
)
from brim.agent.folders import attempt_folder, captures_folder, make_private
from brim.agent.leftovers import KnownProcess
from brim.agent.log_cap import cap_log
from brim.agent.protocol import (
    BLAME_JOB,
    BLAME_NODE,
    FAILED,
    NONE,
    ON_CPU,
    ORDERS,
    QUARANTINED,
    UNUSABLE,
    VERSION,
    AgentHello,
    AgentReport,
    DeviceSeen,
    StartAttempt,
    Synced,
)
from brim.agent.slurm_variables import slurm_variables
from brim.agent.sockets import control_path, folder_id, remove_socket_folder, socket_folder
from brim.agent.supervisor_link import SupervisorLink, gang_seen, in_words
from brim.agent.zygotes import Zygotes
from brim.errors import RefusedError
from brim.gang import processes
from brim.gang.cgroup import close_cgroup
from brim.gang.codec import ProtocolError
from brim.gang.environment import CPU
from brim.gang.messages import CONTROL_VARIABLE, GANG_VARIABLE, ID_VARIABLE, LOADER_WORKERS_VARIABLE
from brim.gang.run_script import ERROR_FILE_VARIABLE
from brim.gang.wakeup import SignalQueue

CONNECT_MS: Final = 20
"""Time between two tries to reach a supervisor that has just been forked. Ours."""
ADOPT_MS: Final = 2_000
"""How long a new agent waits for living attempts to say how they are, before it tells the controller of them. Ours."""
SOON_MS: Final = 50
"""Time between two questions to a supervisor while something is under way. Ours."""
STATUS_MS: Final = 1_000
"""Time between two questions to a supervisor otherwise: as often as ranks report. Ours."""
CHECK_MS: Final = 1_000
"""Time between two looks at devices, logs and zygotes. Ours."""
INDEX_VARIABLE: Final = "BRIM_ARRAY_INDEX"
_OF_ANOTHER_JOB: Final = (CONTROL_VARIABLE, ID_VARIABLE, GANG_VARIABLE, ERROR_FILE_VARIABLE, LOADER_WORKERS_VARIABLE)
"""Variables of a job in which this one was submitted."""


class Agent:
    """The agent of one user on one node.

    The class is long because files, processes, supervisors and the controller meet in its one loop.

    Args:
        folder: The agent's folder, which exists and is this user's only.
        controller: The controller's socket for agents.
        node: The devices of this node.
        cgroups: What it has of the cgroup tree.
        selector: The loop's; what the devices have registered there are functions to be called.
    """

    def __init__(
        self, folder: Path, controller: Path, node: Devices, cgroups: CgroupTree, selector: selectors.BaseSelector
    ) -> None:
        self._folder, self._devices, self._cgroups, self._selector = folder, node, cgroups, selector
        self._boot_id = boot_clock.boot_id()
        self._attempts = NodeAttempts(boot_clock.boot_time_ms, node.names)
        self._controller = ControllerLink(controller, self._selector)
        self._zygotes = Zygotes(socket_folder(folder / "zygotes"))
        self._links: dict[Key, SupervisorLink] = {}
        self._named: dict[Key, frozenset[KnownProcess]] = {}  # processes of attempts whose supervisor has ended
        self._devices_told: list[DeviceSeen] = []
        self._delayed: list[StartAttempt] = []  # until the zygote that they need listens
        self._checked_ms = 0
        self._problem = ""
        self._stopping = False
        self._adopting: set[Key] = set()  # living attempts of an agent before this one, until they say how they are
        self._adopting_until_ms = 0

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until SIGTERM or SIGINT; attempts go on."""
        processes.become_subreaper()
        signals = SignalQueue((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD))
        self._selector.register(signals, selectors.EVENT_READ, signals)
        try:
            self._zygotes.start_plain(boot_clock.boot_time_ms())
            self._restore()
            self._cgroups.remove_empty()
            self._warm()
            while not self._stopping:
                self._wait_and_handle(signals)
        finally:
            signals.close()
            self._zygotes.close()
            for link in self._links.values():
                link.close()
            self._controller.disconnect()

    def _wait_and_handle(self, signals: SignalQueue) -> None:
        for key, events in self._selector.select(self._timeout_s()):
            match key.data:
                case ControllerLink():
                    self._receive_orders(events)
                case SupervisorLink():
                    self._receive_from_supervisor(key.data, key.fd)
                case SignalQueue():
                    pass
                case callback:
                    callback()
        for number in signals.take():
            if number == signal.SIGCHLD:
                self._reaped(processes.reap())
            else:
                _log(f"{signal.Signals(number).name}: ending; attempts go on")
                self._stopping = True
        self._attempts.tick()
        delayed, self._delayed = self._delayed, []
        for order in delayed:
            if self._attempts.awaits_launch((order.job, order.attempt)):
                self._launch(order)
        self._perform()
        self._look_at_devices()
        now_ms = boot_clock.boot_time_ms()
        for link in list(self._links.values()):
            self._look_after(link, now_ms)
        if now_ms - self._checked_ms >= CHECK_MS:
            self._checked_ms = now_ms
            self._check(now_ms)
        if now_ms >= self._adopting_until_ms or not self._adopting & self._links.keys():
            self._adopting.clear()
            if self._controller.connect(now_ms):
                self._tell_everything()
        if self._controller.problem != self._problem:
            self._problem = self._controller.problem
            _log(f"no controller: {self._problem}" if self._problem else "connected to the controller")

    def _timeout_s(self) -> float:
        now_ms = boot_clock.boot_time_ms()
        devices_ms = self._devices.next_ms()
        times = [self._checked_ms + CHECK_MS, *(link.status_at_ms for link in self._links.values())]
        if (next_ms := self._attempts.next_ms()) is not None:
            times.append(next_ms)
        if self._delayed:
            times.append(now_ms + CONNECT_MS)
        if not self._controller.connected:
            times.append(self._adopting_until_ms if self._adopting else self._controller.retry_at_ms)
        wait_ms = max(0, min(times) - now_ms)
        if devices_ms is not None:
            wait_ms = min(wait_ms, max(0, devices_ms - devices.now_ms()))
        return wait_ms / 1000

    def _check(self, now_ms: int) -> None:
        """What is looked at every second."""
        self._zygotes.start_plain(now_ms)
        self._zygotes.end_idle(now_ms, busy=bool(self._links))
        for key in self._links:
            _cap_logs(attempt_folder(self._folder, *key))

    def _look_at_devices(self) -> None:
        """Let the devices look again, if it is time to, and tell what has changed."""
        held: dict[int, set[int]] = {}
        for device, keys in self._attempts.held_devices().items():
            links = [(self._links.get(key), key) for key in keys]
            named = [self._named.get(key, ()) if link is None else link.named for link, key in links]
            held[device] = {one.pid for those in named for one in those}
        self._devices.poll(held)
        self._attempts.used(self._devices.used_j())
        self._perform()
        seen = self._devices_now()
        for now in seen:
            if now not in self._devices_told:
                self._controller.send(now)
        self._devices_told = seen

    def _devices_now(self) -> list[DeviceSeen]:
        """Return the state of each device; one with processes that could not be killed is not given on."""
        stuck = self._attempts.stuck_devices()
        return [replace(seen, state=QUARANTINED, detail=stuck[seen.device]) if seen.device in stuck else seen
                for seen in self._devices.seen()]  # fmt: skip

    # -- the controller --------------------------------------------------------------------------------------------

    def _tell_everything(self) -> None:
        self._controller.send(
            AgentHello(version=VERSION, user=_user(), boot_id=self._boot_id, devices=self._devices.names)
        )
        self._devices_told = self._devices_now()
        reports: list[AgentReport] = [*self._attempts.seen(), *self._devices_told, Synced()]
        for report in reports:
            self._controller.send(report)

    def _receive_orders(self, events: int) -> None:
        for order in self._controller.receive(events):
            if isinstance(order, ProtocolError):
                _log(f"an order that cannot be used: {order.detail}")
                continue
            if isinstance(order, StartAttempt):
                self._receive_start(order)
            else:
                self._attempts.obey(order)
            self._perform()

    def _receive_start(self, order: StartAttempt) -> None:
        try:
            self._attempts.obey(self._with_index(order))
        except RefusedError as error:
            self._attempts.obey(order, str(error))

    def _with_index(self, order: StartAttempt) -> StartAttempt:
        """Check the capture of an order; the order has an index only if the capture has several.

        Raises:
            RefusedError: the capture cannot be used for it.
        """
        capture = read_capture(captures_folder(self._folder), order.capture, order.digest)
        if not capture.indices:  # of one job, whatever the controller says
            return replace(order, index=NONE)
        if order.index not in capture.indices:
            raise RefusedError(f"capture {order.capture}: found index {order.index}, which was not submitted")
        return order

    # -- effects ---------------------------------------------------------------------------------------------------

    def _perform(self) -> None:
        """Carry out what was decided; what follows from one effect comes after those that were decided with it."""
        while effects := self._attempts.take_effects():
            for effect in effects:
                self._perform_one(effect)

    def _perform_one(self, effect: AgentEffect) -> None:
        match effect:
            case SendReport(report):
                self._controller.send(report)
            case CheckDevices(key, wanted, shares):
                self._devices.check(wanted, lambda problem: self._attempts.checked(key, problem), shares=shares)
            case WriteFence(order):
                self._write_fence(order)
            case Launch(order):
                self._launch(order)
            case Request(key, message):
                if (link := self._links.get(key)) is not None:
                    link.request(message)
                    link.status_at_ms = 0
            case Sweep(key):
                self._sweep(key)
            case WriteEnd(key, end):
                self._write_end(key, end)
            case Forgotten(key):
                with contextlib.suppress(OSError):
                    (attempt_folder(self._folder, *key) / attempt_files.FORGOTTEN).touch(0o600)

    def _write_fence(self, order: StartAttempt) -> None:
        key = order.job, order.attempt
        folder = attempt_folder(self._folder, *key)
        try:
            make_private(folder)
            if problem := attempt_files.room_problem(folder):
                self._attempts.not_written(key, f"cannot write into {folder}: {problem}")
                return
            attempt_files.write_durably(folder, attempt_files.FENCE, json.loads(ORDERS.encode(order)))
            attempt_files.sync_folder(folder.parent)
        except OSError as error:
            self._attempts.not_written(key, f"cannot write into {folder}: {error.strerror}")
        else:
            self._attempts.fenced(key)

    def _launch(self, order: StartAttempt) -> None:
        key = order.job, order.attempt
        folder = attempt_folder(self._folder, *key)
        try:
            try:
                launch = self._launch_file(order, folder)
            except BlockingIOError:  # its zygote starts
                self._delayed.append(order)
                return
            pid = fork_attempt(folder, launch)
        except RefusedError as error:
            self._attempts.launch_failed(key, AttemptEnd(outcome=UNUSABLE, detail=str(error), blame=BLAME_JOB))
            return
        except OSError as error:
            detail = f"cannot be started: {error}"
            self._attempts.launch_failed(key, AttemptEnd(outcome=FAILED, detail=detail, blame=BLAME_NODE))
            return
        link = self._links[key] = SupervisorLink(key, pid, launch.control, self._selector)
        self._attempts.launched(key, boot_clock.boot_time_ms(), in_words(link.named))

    def _launch_file(self, order: StartAttempt, folder: Path) -> LaunchFile:
        capture = read_capture(captures_folder(self._folder), order.capture, order.digest)
        checkpoints = self._folder / "jobs" / str(order.job) / "checkpoint"
        make_private(checkpoints)
        env = {name: value for name, value in capture.env.items() if name not in _OF_ANOTHER_JOB}
        env |= {"BRIM_JOB_ID": str(order.job), "BRIM_ATTEMPT": str(order.attempt), "BRIM_CKPT_DIR": str(checkpoints)}
        if order.index != NONE:
            env[INDEX_VARIABLE] = str(order.index)
        if capture.slurm:
            env |= slurm_variables(order)
        if order.loader_workers != NONE:
            env[LOADER_WORKERS_VARIABLE] = str(order.loader_workers)
        env |= kind_of_device(order.devices, order.cpu_milli, env)
        now_ms = boot_clock.boot_time_ms()
        return LaunchFile(
            job=order.job, attempt=order.attempt, command=capture.command, env=env, cwd=capture.cwd, ranks=order.ranks,
            devices=tuple(CPU if device == ON_CPU else self._devices.names[device] for device in order.devices),
            grace_s=order.grace_s,
            gang=folder_id(folder), control=control_path(folder), umask=capture.inherits.umask,
            limits=dict(capture.inherits.limits),
            zygote=self._zygotes.for_command(capture.command, env, now_ms, is_gang=order.ranks > 0),
            cgroup=self._cgroups.make((order.job, order.attempt)), mem_mib_per_gpu=order.mem_mib_per_gpu,
            batch=order.batch, analyse=order.analyse,
        )  # fmt: skip

    def _sweep(self, key: Key) -> None:
        folder = attempt_folder(self._folder, *key)
        if (link := self._links.pop(key, None)) is not None:
            self._named[key] = link.named
            link.close()
        named = self._named.get(key) or noted_processes(folder, self._boot_id)
        left = leftovers.kill(folder_id(folder), named, self._strays, self._reaped)
        pids = [process.pid for process in left]
        launch = attempt_files.read_fields(folder, attempt_files.LAUNCH, LaunchFile)
        hidden, usage = close_cgroup("" if launch is None else launch.cgroup, leftovers.SWEEP_S)
        pids += [pid for pid in hidden if pid not in pids]
        if not pids and is_running(folder):
            pids = [read.pid] if (read := attempt_files.read_fields(folder, attempt_files.PIDS, PidsFile)) else [0]
        if not pids:
            self._named.pop(key, None)
            _cap_logs(folder)
            remove_socket_folder(folder)
        self._attempts.swept(key, pids, usage, end_in(folder, self._boot_id))

    def _strays(self, everything: Iterable[processes.Process]) -> set[int]:
        """Return the children of this process that it has not started: orphans of what has ended."""
        me = os.getpid()
        ours = self._zygotes.pids() | {one.pid for link in self._links.values() for one in link.named}
        ours |= self._devices.pids()
        children = (found.pid for found in everything if found.parent == me and found.state not in "ZX")
        return {pid for pid in children if pid not in ours and not _is_zygote(pid)}

    def _write_end(self, key: Key, end: AttemptEnd) -> None:
        plain = asdict(end)
        plain |= plain.pop("usage")  # flat in the file, as an older agent reads it
        del plain["is_written"]
        folder = attempt_folder(self._folder, *key)
        try:
            attempt_files.write_end(folder, EndFile(**plain, boot_id=self._boot_id))
        except OSError as error:
            self._attempts.not_written(key, f"cannot write into {folder}: {error.strerror}")
        else:
            self._attempts.end_written(key)

    # -- attempts --------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Find the attempts of the agents before this one, and adopt those that live."""
        parent = self._folder / "attempts"
        make_private(parent)
        for found in found_attempts(parent, self._boot_id):
            alive = found.pids is not None and self._adopt(found.key, found.folder, found.pids.pid)
            self._attempts.restore(found.order, end=found.end, alive=alive, forgotten=found.forgotten)
            if alive and found.pids is not None:
                self._attempts.launched(found.key, found.pids.started_ms, in_words(self._links[found.key].named))
        self._adopting_until_ms = boot_clock.boot_time_ms() + ADOPT_MS
        self._perform()

    def _warm(self) -> None:
        """Start the zygote of the newest attempt that would use one: it is likely to be needed next."""
        for launch in newest_launches(self._folder / "attempts"):
            now_ms = boot_clock.boot_time_ms()
            if self._zygotes.warm(launch.command, launch.env, now_ms, is_gang=launch.ranks > 0):
                return

    def _adopt(self, key: Key, folder: Path, pid: int) -> bool:
        """Watch an attempt that another agent has started; return whether it still lives."""
        try:
            link = SupervisorLink(key, pid, control_path(folder), self._selector)
        except OSError:
            return False
        link.named |= noted_processes(folder, self._boot_id)
        self._links[key] = link
        self._adopting.add(key)
        return True

    def _look_after(self, link: SupervisorLink, now_ms: int) -> None:
        """Connect to a supervisor, or ask it how it is, if it is time to."""
        if now_ms < link.status_at_ms:
            return
        link.status_at_ms = now_ms + CONNECT_MS
        if not link.connected:
            if not link.connect():
                return
            folder = attempt_folder(self._folder, *link.key)
            analysis = attempt_files.read_fields(folder, attempt_files.ANALYSIS, AnalysisFile)
            self._attempts.connected(link.key, analysis.steps if analysis else ())
            self._perform()
        if not link.awaits_status:
            link.ask_status()
        link.status_at_ms = now_ms + STATUS_MS

    def _receive_from_supervisor(self, link: SupervisorLink, fd: int) -> None:
        if self._links.get(link.key) is not link:
            return
        if link.is_process(fd):
            self._supervisor_ended(link)
            return
        if not link.connected:
            return
        for number, answer in link.receive():
            if number is not None:
                self._attempts.answered(link.key, number, "" if answer.ok else answer.detail)
                link.status_at_ms = 0
            elif answer.status is not None:
                self._status(link, answer.status)
            self._perform()
        if not link.connected and self._links.get(link.key) is link:
            self._attempts.disconnected(link.key)
            link.status_at_ms = 0

    def _status(self, link: SupervisorLink, status: dict[str, Any]) -> None:
        if link.note_processes(status):
            folder = attempt_folder(self._folder, *link.key)
            with contextlib.suppress(OSError):  # needed only if supervisor and agent are killed
                note_processes(folder, self._boot_id, link.named)
        self._adopting.discard(link.key)
        gang = gang_seen(link.key, status, self._devices.names)
        if not gang.has_processes or (gang.is_grouped and (gang.progress is None or not gang.is_settled)):
            link.status_at_ms = boot_clock.boot_time_ms() + SOON_MS
        self._attempts.status(link.key, replace(gang, processes=in_words(link.named)))

    def _supervisor_ended(self, link: SupervisorLink) -> None:
        self._reaped(processes.reap())
        end = end_in(attempt_folder(self._folder, *link.key), self._boot_id)
        self._named[link.key] = link.named
        del self._links[link.key]
        link.close()
        if end is not None and end.outcome == FAILED:
            residents = {one.key: one for one in self._residents()}
            others = [one for key, one in residents.items() if key != link.key]
            if link.key in residents:
                end = blamed(end, residents[link.key], others, self._devices.seen())
        self._attempts.supervisor_ended(link.key, end)
        self._perform()

    def _residents(self) -> Iterator[Resident]:
        """Yield the attempts that may have processes."""
        held = self._attempts.held_devices()
        for key in sorted({key for keys in held.values() for key in keys}):
            launch = attempt_files.read_fields(attempt_folder(self._folder, *key), attempt_files.LAUNCH, LaunchFile)
            if launch is not None:
                own = tuple(device for device, keys in held.items() if key in keys)
                yield Resident(key=key, devices=own, mem_mib_per_gpu=launch.mem_mib_per_gpu, cgroup=launch.cgroup)

    def _reaped(self, ended: Iterable[tuple[int, int]]) -> None:
        for pid, _ in ended:
            self._zygotes.ended(pid)


def _is_zygote(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"brim.gang.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _cap_logs(folder: Path) -> None:
    for path in (folder / attempt_files.LOG).glob("*.log"):
        with contextlib.suppress(OSError):  # a file system that frees no part of a file: the log stays whole
            cap_log(path)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _log(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"brim agent: {text}\n")
        sys.stderr.flush()
