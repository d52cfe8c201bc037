"""The users of a virtual cluster: what they ask for, drawn from its seed."""

from __future__ import annotations

from dataclasses import replace

from brim.agent.protocol import DeviceSeen
from brim.live.requests import JobRequest
from tests.live.virtual import DEVICES, VirtualCluster, Work, request


def elastic(least: int, most: int, **fields) -> JobRequest:
    """A request of a job that can be resized."""
    limits = {"gpus": least, "gpus_min": least, "gpus_max": most, "ranks": "per-gpu", "batch": 64, "batch_min": 16}
    return request(**limits | {"batch_max": 256, "local_batch_min": 1, "local_batch_max": 64} | fields)


def random_life(world: VirtualCluster, until_ms: int, *, jobs_max: int = 12) -> None:
    """Users submit and change their minds."""
    rng = world.rng

    def once() -> None:
        if world.calm:
            return
        uid = rng.randint(1, 3)
        if len(world.accepted) < jobs_max and rng.random() < 0.8:
            world.submit(uid, *_draw(world))
        elif world.accepted and rng.random() < 0.5:
            verb = rng.choice(("cancel", "hold", "release", "release", "release", "requeue", "requeue", "requeue"))
            world.command(uid, verb, rng.choice(world.accepted))
        if rng.random() < 0.1:
            device = rng.randrange(DEVICES)
            world.device_states[device] = rng.choice(("open", "foreign", "quarantined"))
            agent = rng.choice(list(world.agents.values()))
            world.to_controller(agent, DeviceSeen(device=device, state=world.device_states[device]))
        world.later(rng.randint(1, 2_000), once)

    once()
    world.run(until_ms)


def _draw(world: VirtualCluster) -> list[tuple[JobRequest, Work]]:
    rng = world.rng
    fields: dict = {}
    if rng.random() < 0.2 and world.accepted:
        before = rng.choice(world.accepted)
        fields[("after", "after", "after_any", "after_not_ok")[before % 4]] = (before,)
    if rng.random() < 0.1:
        fields["hold"] = True
    if rng.random() < 0.15:
        fields["begin_s"] = int(1_000_000 + world.now_ms / 1_000) + rng.randint(1, 30)
    if rng.random() < 0.2:
        fields["time_limit_s"] = rng.randint(1, 10)
    if rng.random() < 0.1:
        fields["requeue"] = False
    fails = rng.choices(([], [1], [1, 1], [1, 1, 1, 1], [75], [85, 1]), (12, 2, 1, 1, 1, 1))[0]
    drawn = []
    array = rng.random() < 0.15
    count = rng.randint(2, 4) if array else 1
    for index in range(count):
        if rng.random() < 0.5:
            least = rng.randint(1, 2)
            one = elastic(least, rng.randint(least, 5), **fields)
        else:
            one = request(gpus=rng.randint(1, 5 if rng.random() < 0.1 else 4), **fields)
        one = replace(one, array_index=index, array_limit=count - 1 if count < 4 else -1) if array else one
        drawn.append((one, Work(rng.randint(100, 12_000), list(fails), rng.random() < 0.1)))
    return drawn
