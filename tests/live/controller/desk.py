"""A controller of one machine that is told its inputs one by one, with what it orders and stores."""

from __future__ import annotations

from dataclasses import replace

from brim.agent.protocol import VERSION, AgentHello, AttemptProgress, AttemptSeen
from brim.core.cluster import parse_cluster
from brim.live.controller import Controller
from brim.live.inputs import AgentJoined, AgentSynced, AttemptReported, Progress, Submit
from brim.live.invariants import check_controller
from brim.live.records import AttemptRecord, JobRecord
from brim.live.slowdowns import settled_ms
from brim.policies.presets import find_policy
from brim.policies.sockets import Policy
from tests.live.in_parts import InParts
from tests.live.virtual import request

FIFO = find_policy("fifo")
SETTLED_MS = round(settled_ms(1.0))
"""Time in which steps of up to a second settle."""


class Desk:
    """A controller of one machine, what it ordered, and what it stored.

    Attributes:
        clock: Goes on while the policy decides; by default it stands still.
    """

    clock = staticmethod(lambda: 0)

    def __init__(
        self, policy: Policy = FIFO, devices: int = 2, users: tuple[int, ...] = (1,), cores: int | None = None,
        cluster: str = "1x{}xT4", user_gpus: int = -1,
    ) -> None:
        more = "" if cores is None else f":cpus={cores}"
        machine = parse_cluster(cluster.format(devices) + more)
        self.controller = Controller(machine, policy, gap_ms=0, user_gpus=user_gpus)
        self.now_ms, self.next_id = 0, 1
        self.stored: dict[int, JobRecord] = {}
        self.attempts: dict[tuple[int, int], AttemptRecord] = {}
        self.lines: list[str] = []
        for uid in users:
            self.join(uid)

    def give(self, *inputs, later_ms: int = 10) -> list:
        """Let the controller handle inputs, and return its orders."""
        self.now_ms += later_ms
        result = self.controller.step(inputs, self.now_ms, self.clock)
        self.stored |= {job.id: job for job in result.changes.jobs}
        self.attempts |= {(one.job, one.number): one for one in result.changes.attempts}
        self.lines += result.changes.lines
        check_controller(self.controller)
        return [dispatch.order for dispatch in result.orders]

    def join(self, uid: int = 1, *, seen: AttemptSeen | None = None) -> list:
        """The agent of a user connects, and knows at most one attempt."""
        hello = AgentHello(version=VERSION, user=f"u{uid}", boot_id="b", devices=("T4", "T4"))
        told = [] if seen is None else [AttemptReported(at_ms=self.now_ms, uid=uid, seen=seen)]
        return self.give(
            AgentJoined(at_ms=self.now_ms, uid=uid, hello=hello), *told, AgentSynced(at_ms=self.now_ms, uid=uid)
        )

    def submit(self, *, uid: int = 1, array: int = -1, **fields) -> list:
        job = JobRecord(
            id=self.next_id, uid=uid, user=f"u{uid}", key=str(self.next_id), request=request(**fields), array=array,
            submitted_s=1_000_000 + self.now_ms / 1000, submit_ms=self.now_ms, state="pending",
        )
        self.next_id += 1
        return self.give(Submit(inbox=job.id, at_ms=self.now_ms, job=job))

    def saw(self, job: int, state: str, *, attempt: int = 1, uid: int = 1, sequence: int = 99, **more) -> list:
        return self.give(AttemptReported(at_ms=self.now_ms, uid=uid, seen=AttemptSeen(
            job=job, attempt=attempt, sequence=sequence, state=state, **more
        )))

    def command(self, kind, job: int) -> list:
        return self.give(kind(inbox=1000 + self.now_ms, at_ms=self.now_ms, job=job, user="u1"))

    def state(self, job: int) -> str:
        return self.stored[job].state


def kinds(orders: list) -> list[type]:
    return [type(order) for order in orders]


EQUAL = replace(find_policy("elastic"), name="equal", size=InParts(4), gap_ms=0, period_ms=0)


def trains(desk: Desk, job: int, step_s: float, later_ms: int = SETTLED_MS, batch: int = 8) -> list:
    """A job on one device says how long its steps take."""
    orders = desk.give(Progress(at_ms=desk.now_ms + later_ms - 1, uid=1, progress=AttemptProgress(
        job=job, attempt=desk.stored[job].attempt, ranks=1, samples=desk.now_ms * 1.0, step_s=step_s,
        global_batch=batch, local_batch=batch,
    )), later_ms=later_ms)
    return [*orders, *desk.give(later_ms=100)]
