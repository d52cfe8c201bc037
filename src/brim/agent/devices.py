"""The devices of a node: its GPUs, or CPU slots where there is none."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from brim.agent.leftovers import KnownProcess, known
from brim.agent.protocol import FOREIGN, OPEN, QUARANTINED, DeviceSeen
from brim.agent.users import user_name
from brim.errors import RefusedError
from brim.gang import processes
from brim.gang.environment import CPU

ANSWER_MS: Final = 2_000
"""How long NVML may take. Ours: it takes milliseconds; a driver in trouble takes for ever."""
STALL_MS: Final = 500
"""A look that comes so much later than it was due comes after a stall of this process, as of the machine. Ours."""
FIRST_ANSWER_S: Final = 30.0
"""The same for the first answer, for which the driver may have to be loaded. Ours."""
LOOK_MS: Final = 1_000
SOON_MS: Final = 100
"""Time between two looks, and while an attempt waits for its devices. Ours."""
GATE_MS: Final = 5_000
"""How long an attempt waits for a device to be as if empty: a driver gives memory back some time after a process."""
SLACK_MIB: Final = 64
"""Memory in use above the base that does not count. Ours: contexts of CUDA take hundreds of MiB."""
BASE_MIB_MAX: Final = 1_024
"""Most memory that a driver itself uses on an empty GPU. Ours: about 600 MiB were seen on an H100."""


class Devices(Protocol):
    """What the agent asks of the devices. Nothing here blocks."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names by number, as in `AgentHello`."""
        ...

    def check(self, devices: Sequence[int], answer: Callable[[str], None], *, shares: bool = False) -> None:
        """Check whether an attempt may be started on these; ``answer`` is called, maybe later, with what is wrong.

        Where it ``shares`` them, processes of other users may be there.
        """
        ...

    def seen(self) -> list[DeviceSeen]:
        """Return the state of each."""
        ...

    def used_j(self) -> dict[int, float]:
        """Return the energy of each device since this was last asked, J; none of a device that does not measure it."""
        ...

    def pids(self) -> set[int]:
        """Return the processes that it has started."""
        ...

    def next_ms(self) -> int | None:
        """Return when ``poll`` is to be called, by the clock of `now_ms`; None: never."""
        ...

    def poll(self, held: Mapping[int, Collection[int]]) -> None:
        """Look again, if it is time to; ``held`` are known processes of the attempt on each device that has one."""
        ...


def now_ms() -> int:
    """Return the time of a clock that never goes backwards, in ms."""
    return time.monotonic_ns() // 1_000_000


class CpuSlots:
    """Devices of a machine without GPU: each stands for a part of its cores, and is always healthy.

    Args:
        number: How many.
    """

    def __init__(self, number: int) -> None:
        self._names = tuple(f"{CPU}{slot}" for slot in range(number))

    @property
    def names(self) -> tuple[str, ...]:
        """See `Devices`."""
        return self._names

    def check(self, devices: Sequence[int], answer: Callable[[str], None], *, shares: bool = False) -> None:
        """See `Devices`."""
        answer("")

    def seen(self) -> list[DeviceSeen]:
        """See `Devices`."""
        return [DeviceSeen(device=number, state=OPEN) for number in range(len(self._names))]

    def used_j(self) -> dict[int, float]:
        """See `Devices`."""
        return {}

    def pids(self) -> set[int]:
        """See `Devices`."""
        return set()

    def next_ms(self) -> int | None:
        """See `Devices`."""
        return None

    def poll(self, held: Mapping[int, Collection[int]]) -> None:
        """See `Devices`."""


@dataclass(slots=True)
class _Gate:
    """An attempt that waits until its devices are healthy and empty."""

    devices: tuple[int, ...]
    answer: Callable[[str], None]
    until_ms: int
    states: tuple[str, ...]


class Gpus:
    """The GPUs of this machine, read through a child process with a time-out.

    Args:
        selector: The child's output is registered here, with a function to be called as data.

    Raises:
        RefusedError: NVML is missing or does not work, or there is no GPU.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._child: subprocess.Popen[bytes] | None = None
        self._killed: frozenset[KnownProcess] = frozenset()  # one that hangs in the driver stays for as long
        self._rest = b""
        self._asked_ms: int | None = None
        self._has_stalled = False
        self._looked_ms = 0
        self._used_j: dict[int, float] = {}
        self._gates: list[_Gate] = []
        self._problem = ""
        self._held: Mapping[int, Collection[int]] = {}
        self._gpus = self._first_look()
        self._names = tuple(str(gpu["uuid"]) for gpu in self._gpus)
        self._base_mib = [min(gpu["memory_mib"], BASE_MIB_MAX) if not gpu["pids"] else None for gpu in self._gpus]
        self._seen = self._judge()

    @property
    def names(self) -> tuple[str, ...]:
        """See `Devices`."""
        return self._names

    def check(self, devices: Sequence[int], answer: Callable[[str], None], *, shares: bool = False) -> None:
        """See `Devices`."""
        states = (OPEN, FOREIGN) if shares else (OPEN,)
        self._gates.append(_Gate(tuple(devices), answer, now_ms() + GATE_MS, states))
        if self._asked_ms is None:
            self._ask()

    def seen(self) -> list[DeviceSeen]:
        """See `Devices`."""
        return self._seen

    def used_j(self) -> dict[int, float]:
        """See `Devices`."""
        used, self._used_j = self._used_j, {}
        return used

    def pids(self) -> set[int]:
        """See `Devices`."""
        self._killed &= known(one.pid for one in self._killed)
        return {one.pid for one in self._killed} | (set() if self._child is None else {self._child.pid})

    def next_ms(self) -> int | None:
        """See `Devices`."""
        if self._asked_ms is not None:
            return self._asked_ms + ANSWER_MS
        return self._looked_ms + (SOON_MS if self._gates else LOOK_MS)

    def poll(self, held: Mapping[int, Collection[int]]) -> None:
        """See `Devices`."""
        self._held = held
        at_ms, at_present_ms = self.next_ms(), now_ms()
        if at_ms is None or at_present_ms < at_ms:
            return
        if self._asked_ms is not None and at_present_ms - at_ms > STALL_MS and not self._has_stalled:
            # NVML may have stalled as well, or has answered: it has its time once more
            self._asked_ms, self._has_stalled = at_present_ms, True
        elif self._asked_ms is not None:
            self._fail(f"NVML has not answered for {ANSWER_MS / 1000:g} s")
        else:
            self._ask()

    # -- the child -------------------------------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "brim.agent.nvml"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        child.returncode = 0  # collected by the agent, with all its children
        self._child, self._rest = child, b""
        return child

    def _first_look(self) -> list[dict[str, Any]]:
        child = self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            line = child.stdout.readline() if selector.select(FIRST_ANSWER_S) else b""
        silent = {"error": f"NVML has not answered for {FIRST_ANSWER_S:g} s"}
        plain: dict[str, Any] = json.loads(line) if line else silent
        if not plain.get("gpus"):
            self._end()
            why = plain.get("error", "NVML lists none")
            raise RefusedError(f"no GPU can be used: {why}; --devices N makes N CPU slots of this machine")
        os.set_blocking(child.stdout.fileno(), False)
        self._selector.register(child.stdout, selectors.EVENT_READ, self._readable)
        self._looked_ms = now_ms()
        gpus: list[dict[str, Any]] = plain["gpus"]
        return gpus

    def _ask(self) -> None:
        self._asked_ms, self._has_stalled = now_ms(), False
        if self._child is None:
            try:
                child = self._start()
            except OSError as error:
                self._fail(f"the process that reads NVML cannot be started: {error.strerror}")
                return
            assert child.stdout is not None
            os.set_blocking(child.stdout.fileno(), False)
            self._selector.register(child.stdout, selectors.EVENT_READ, self._readable)
        assert self._child is not None
        assert self._child.stdin is not None
        with suppress(OSError):  # it has ended, which is read next
            self._child.stdin.write(b"\n")
            self._child.stdin.flush()

    def _readable(self) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        data = os.read(self._child.stdout.fileno(), 1 << 20)
        if not data:
            self._fail("the process that reads NVML has ended")
            return
        self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self._answered(json.loads(line))

    def _answered(self, plain: dict[str, Any]) -> None:
        passed_s, self._looked_ms = (now_ms() - self._looked_ms) / 1000, now_ms()
        self._asked_ms = None
        gpus = {str(gpu["uuid"]): gpu for gpu in plain.get("gpus", [])}
        self._problem = str(plain.get("error", ""))
        missing = {"error": "NVML does not list it any more", "memory_mib": 0, "pids": []}
        if not self._problem:
            was, self._gpus = self._gpus, [gpus.get(name, missing) for name in self._names]
            for device, (before, gpu) in enumerate(zip(was, self._gpus, strict=True)):
                if (used_j := _used_j(before, gpu, passed_s)) is not None:
                    self._used_j[device] = self._used_j.get(device, 0.0) + used_j
        self._decide()

    def _fail(self, problem: str) -> None:
        self._end()
        self._asked_ms, self._looked_ms, self._problem = None, now_ms(), problem
        self._decide()

    def _end(self) -> None:
        """Kill the child; one that hangs in the driver may stay, and another is started."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(KeyError):
            self._selector.unregister(child.stdout)
        with suppress(OSError):
            child.stdin.close()
        child.stdout.close()
        self._killed |= known([child.pid])
        if (found := processes.find_process(child.pid)) is not None:
            processes.send_signal(found, 9)

    # -- decisions -------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        self._seen = self._judge()
        gates, self._gates = self._gates, []
        for gate in gates:
            bad = [self._seen[device] for device in gate.devices if self._seen[device].state not in gate.states]
            if not bad:
                gate.answer("")
            elif self._problem or now_ms() >= gate.until_ms:
                gate.answer(f"GPU {bad[0].device}: {bad[0].detail}")
            else:
                self._gates.append(gate)

    def _judge(self) -> list[DeviceSeen]:
        return [self._judge_one(device, gpu) for device, gpu in enumerate(self._gpus)]

    def _judge_one(self, device: int, gpu: dict[str, Any]) -> DeviceSeen:
        state, detail = self._state(device, gpu)
        return DeviceSeen(
            device=device, state=state, detail=detail, memory_used_mib=gpu["memory_mib"],
            utilisation_ratio=gpu.get("utilisation_ratio", 0.0), power_w=gpu.get("power_w", 0.0), modelled=False,
        )  # fmt: skip

    def _state(self, device: int, gpu: dict[str, Any]) -> tuple[str, str]:
        if problem := self._problem or gpu["error"]:
            return QUARANTINED, problem
        held = self._held.get(device)
        ours = _family(held) if held else set()
        pids = [pid for pid in gpu["pids"] if pid not in ours]
        if held:  # a process that is not visible here, as from within a container, may be the attempt's own
            pids = [pid for pid in pids if processes.find_process(pid) is not None]
        if pids:
            return FOREIGN, f"in use by {', '.join(map(_describe, pids))}"
        if held is not None or gpu["pids"]:
            return OPEN, ""
        base_mib, used_mib = self._base_mib[device], gpu["memory_mib"]
        self._base_mib[device] = base_mib = min(used_mib, BASE_MIB_MAX if base_mib is None else base_mib)
        if used_mib > base_mib + SLACK_MIB:
            return QUARANTINED, f"{used_mib} MiB are in use although no process is there; {base_mib} MiB if it is empty"
        return OPEN, ""


def _used_j(before: Mapping[str, Any], now: Mapping[str, Any], passed_s: float) -> float | None:
    """Energy between two looks at a GPU, J: of its own counter, or else its power over the time; None if unknown."""
    counted = before.get("energy_j"), now.get("energy_j")
    if counted[0] is not None and counted[1] is not None and counted[1] >= counted[0]:
        return float(counted[1] - counted[0])
    power_w = now.get("power_w") or None
    return None if power_w is None else float(power_w * passed_s)


def _family(pids: Iterable[int]) -> set[int]:
    """Return these processes, those in their sessions, and all below them."""
    everything = processes.all_processes()
    found = set(pids)
    found |= {process.pid for process in everything if process.session in found}
    for pid in list(found):
        found |= {process.pid for process in processes.descendants(pid, everything)}
    return found


def _describe(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({name}) of {user_name(uid)}"
