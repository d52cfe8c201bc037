"""The environment of a rank: the variables that torchrun sets, and brim's own."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from brim.gang.messages import CONTROL_VARIABLE, GANG_VARIABLE, ID_VARIABLE
from brim.gang.run_script import ERROR_FILE_VARIABLE

HOST: Final = "127.0.0.1"
DEVICES_VARIABLE: Final = "BRIM_DEVICES"
"""Environment: names of the devices of the gang, separated by commas."""
DEVICE_VARIABLE: Final = "BRIM_DEVICE"
"""Environment: the kind of these devices, ``gpu`` or ``cpu``. Slots that stand for GPUs are ``gpu``."""
CPU: Final = "cpu"
"""With this begin the names of devices that are no GPU."""
_PORTS: Final = range(20_000, 32_768)
"""Ports below those that Linux gives to outgoing connections (ip_local_port_range), so that none takes the port before
rank 0 opens it."""
_ATTEMPTS_MAX: Final = 100


def gang_environment(env: Mapping[str, str], gang: str, control: str, *, is_gang: bool) -> dict[str, str]:
    """Return the variables shared by all ranks and their zygote.

    The number of threads of a gang is fixed: results depend on it and must not change with the number of ranks.
    """
    threads = {"OMP_NUM_THREADS": "1"} if is_gang else {}
    return {**threads, **env, GANG_VARIABLE: gang, CONTROL_VARIABLE: control}


def own_environment(shared: Mapping[str, str], rank: int, devices: Sequence[str], error_file: str) -> dict[str, str]:
    """Return the environment of a rank with brim's variables only."""
    env = dict(shared)
    if devices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(name for name in devices if not name.startswith(CPU))
        env[DEVICES_VARIABLE] = ",".join(devices)
    return env | {ID_VARIABLE: str(rank), ERROR_FILE_VARIABLE: error_file}


def rank_environment(
    shared: Mapping[str, str], rank: int, slot: int, size: int, port: int, devices: Sequence[str], error_file: str
) -> dict[str, str]:
    """Return the environment of one rank. Its place in the group is its slot until it joins one."""
    return own_environment(shared, rank, devices, error_file) | _of_torchrun(shared[GANG_VARIABLE], slot, size, port)


def _of_torchrun(gang: str, slot: int, size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(slot), "LOCAL_RANK": str(slot), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_RANK": str(slot), "ROLE_WORLD_SIZE": str(size),
        "ROLE_NAME": "default", "MASTER_ADDR": HOST, "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": gang, "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "False",
    }  # fmt: skip


def without_rank(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what says which rank of a gang it is, for a job that a rank submits."""
    is_rank = GANG_VARIABLE in env and env.get("TORCHELASTIC_RUN_ID") == env[GANG_VARIABLE]
    names = _of_torchrun("", 0, 1, 0) if is_rank else ()
    return {name: value for name, value in env.items() if name not in names}


def reserve_port() -> socket.socket:
    """Return a socket that keeps a port for this process until it is closed.

    It does not listen. Only a server that binds with SO_REUSEADDR, as torch's store does, may listen there meanwhile;
    no other supervisor finds the port free, although rank 0 takes seconds to import torch before it listens.

    Raises:
        OSError: none was found.
    """
    generator = random.SystemRandom()
    for _ in range(_ATTEMPTS_MAX):
        reserved = socket.socket()
        try:
            reserved.bind((HOST, generator.choice(_PORTS)))
        except OSError:
            reserved.close()
            continue
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after, or it would bind beside another's
        return reserved
    raise OSError(f"no free port in {_ATTEMPTS_MAX} attempts in {_PORTS}")


def port_of(reserved: socket.socket) -> int:
    """Return the port that a socket keeps."""
    return int(reserved.getsockname()[1])
