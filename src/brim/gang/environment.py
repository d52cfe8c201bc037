"""The environment of a rank: the variables that torchrun sets, and brim's own."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from brim.gang.messages import CONTROL_VARIABLE, GANG_VARIABLE, ID_VARIABLE
from brim.gang.run_script import ERROR_FILE_VARIABLE

HOST: Final = "127.0.0.1"
_PORTS: Final = range(20_000, 32_768)
"""Ports below those that Linux gives to outgoing connections (ip_local_port_range), so that none takes the port before
rank 0 opens it."""
_ATTEMPTS_MAX: Final = 100


def gang_environment(env: Mapping[str, str], gang: str, control: str) -> dict[str, str]:
    """Return the variables shared by all ranks and their zygote.

    The number of threads is fixed, since results depend on it and must not change with the number of ranks.
    """
    return {"OMP_NUM_THREADS": "1", **env, GANG_VARIABLE: gang, CONTROL_VARIABLE: control}


def rank_environment(
    shared: Mapping[str, str], rank: int, slot: int, size: int, port: int, devices: Sequence[str], error_file: str
) -> dict[str, str]:
    """Return the environment of one rank. Its place in the group is its slot until it joins one."""
    env = dict(shared)
    if devices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    return env | {
        "RANK": str(slot), "LOCAL_RANK": str(slot), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_RANK": str(slot), "ROLE_WORLD_SIZE": str(size),
        "ROLE_NAME": "default", "MASTER_ADDR": HOST, "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": shared[GANG_VARIABLE], "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "False",
        ID_VARIABLE: str(rank), ERROR_FILE_VARIABLE: error_file,
    }  # fmt: skip


def free_port() -> int:
    """Return a port on which no process listens now.

    Raises:
        OSError: none was found.
    """
    generator = random.SystemRandom()
    for _ in range(_ATTEMPTS_MAX):
        port = generator.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port in {_ATTEMPTS_MAX} attempts in {_PORTS}")
