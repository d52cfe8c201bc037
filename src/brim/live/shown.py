"""What users are shown of the devices of a node: the worst that agents say, who holds it, and what keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from brim.agent.protocol import OPEN, QUARANTINED, DeviceSeen
from brim.agent.users import user_name
from brim.live.records import AttemptRecord
from brim.live.texts import text
from brim.live.vacancy import Vacancy, vacancy_of

_SAID: Final[dict[Vacancy, str]] = {
    "alive": "still runs", "gone": "has ended: waiting for another user's agent that sees the device empty",
    "unknown": "may still run: its user's next `brim` command, or a restart of the machine, tells",
}


def devices_shown(
    number: int, names: Sequence[str], seen: Mapping[int, Mapping[int, DeviceSeen]], attempts: Iterable[AttemptRecord]
) -> list[dict[str, Any]]:
    """Return what is known of each device.

    Args:
        number: How many devices there are.
        names: Their names, as far as they are known.
        seen: What agents last said, by device and user.
        attempts: All attempts that have not ended.
    """
    holders: dict[int, list[int]] = {}
    for attempt in sorted(attempts, key=lambda one: one.job):
        for device in attempt.own_devices:
            holders.setdefault(device, []).append(attempt.job)
    shown = []
    for device in range(number):
        said = seen.get(device, {})
        worst = max(said.items(), key=lambda item: (item[1].state != OPEN, -item[0]), default=None)
        used = max((one for one in said.values() if not one.modelled), key=lambda one: one.memory_used_mib,
                   default=None)
        shown.append({
            "device": device, "name": names[device] if device < len(names) else f"device {device}",
            "state": worst[1].state if worst else "unknown", "detail": text(worst[1].detail) if worst else "",
            "said_by": user_name(worst[0]) if worst and worst[1].state != OPEN else "",
            "job": next(iter(holders.get(device, ())), None), "jobs": holders.get(device, []),
            "memory_used_mib": used.memory_used_mib if used else None,
            "utilisation_ratio": used.utilisation_ratio if used else None,
            "power_w": used.power_w if used else None,
        })
    return shown


def kept_devices(orphans: Iterable[AttemptRecord], booted_ms: int) -> dict[int, dict[str, str]]:
    """Return what replaces this of the devices that are kept by attempts whose agents are away."""
    kept: dict[int, dict[str, str]] = {}
    for attempt in orphans:
        vacancy = vacancy_of(attempt, booted_ms)
        detail = f"the agent of {user_name(attempt.uid)} is away, and job {attempt.job} {_SAID[vacancy]}"
        shown = {"detail": detail} if vacancy == "alive" else {"detail": detail, "state": QUARANTINED}
        kept |= dict.fromkeys(attempt.own_devices, shown)
    return kept
