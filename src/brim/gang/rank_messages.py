"""What the messages of ranks mean to the controller."""

from __future__ import annotations

from brim.gang.controller import GangController
from brim.gang.messages import (
    ID_VARIABLE,
    Error,
    Failed,
    Finished,
    GroupBroken,
    GroupFormed,
    Hello,
    Leaving,
    Message,
    Prepare,
    Ready,
    Saved,
    StepMeasurements,
    Stop,
    StoreAddress,
    TrainingProgress,
    Waiting,
)
from brim.gang.rank_process import RankProcess
from brim.gang.watchdog import describe_mismatch

_DETAIL_MAX = 500
"""Most characters of a rank's text that are shown."""


def accept_hello(gang: GangController, hello: Hello, peer_pid: int) -> str:
    """Accept a rank's connection, or return why not.

    Args:
        gang: The gang.
        hello: The first message of the connection.
        peer_pid: The process at its other end.
    """
    rank = gang.ranks.get(hello.id)
    if hello.gang not in ("", gang.id):
        return f"hello: found gang {hello.gang}, expected {gang.id}: that one ended"
    if rank is None or not rank.alive:
        return f"hello: found id {hello.id}, expected the {ID_VARIABLE} of a rank"
    if rank.peer_pid not in (None, peer_pid):
        return f"hello: rank {rank.id} is connected already"
    rank.peer_pid = peer_pid
    gang.membership.connected(rank.id)
    gang.follow(gang.membership.repeat_form(rank.id))
    gang.repeat_tunes(rank.id)
    if gang.announced and rank.signals:
        left_s = max(0.0, rank.signals[0][0] - gang.clock())
        gang.send(rank.id, Prepare(gang.membership.command, left_s))
    elif gang.stopping:
        gang.send(rank.id, Stop(gang.membership.command))
    return ""


def handle(gang: GangController, rank: RankProcess, message: Message) -> None:
    """Handle a message of a connected rank."""
    if isinstance(message, (TrainingProgress, GroupFormed, Saved, StepMeasurements)):
        told = {name: getattr(message, name) for name in message.__dataclass_fields__}
        if isinstance(message, (Saved, StepMeasurements)):
            told.pop("step")  # an older one than that of the last progress
        rank.report |= told
    if not isinstance(message, (Waiting, StepMeasurements, Saved, Error)):
        gang.hang_detector.active(rank.id)
        rank.waiting = None
    match message:
        case Ready(sizes=sizes):
            gang.follow(gang.membership.ready(rank.id, sizes))
        case StoreAddress():
            gang.follow(gang.membership.store_address(rank.id, message))
        case GroupFormed(generation=generation, tuned=tuned):
            rank.broken = None
            gang.group_formed(rank.id, generation, tuned)
        case GroupBroken(generation=generation, detail=detail):
            gang.log(f"rank {rank.id}: the group of generation {generation} broke: {detail}"[:_DETAIL_MAX])
            gang.hang_detector.ungrouped(rank.id, gang.clock())
            rank.broken = message
            gang.fail_if_left_early()
            gang.follow(gang.membership.group_broken(rank.id, generation))
        case Leaving():
            if gang.membership.is_staying(rank.id):  # some rank got a signal, and all have agreed to leave
                gang.log(f"a rank received a signal to leave: asking {gang.count_alive()} to save and leave")
                gang.preempt()
            rank.sent_leaving = rank.stop_requested = True
            gang.follow(gang.membership.leaving(rank.id))
        case Waiting(generation=generation, for_s=for_s):
            gang.hang_detector.waiting(rank.id, for_s, gang.clock())
            rank.waiting = message
            if error := describe_mismatch([gang.ranks[m] for m in gang.membership.members], gang.membership.generation):
                gang.fail(error)
            gang.follow(gang.membership.waiting(rank.id, generation))
        case Finished():
            rank.finished = message
        case Failed(traceback=text):
            rank.traceback, rank.failed_s = text, gang.clock()
            gang.fail(f"rank {rank.id} failed", rank)
        case Error(detail=detail):
            gang.log(f"rank {rank.id} could not use a message: {detail}"[:_DETAIL_MAX])
        case TrainingProgress():
            rank.finished = None  # it trains again after `run.finish`
        case Saved():
            gang.saved = message
        case StepMeasurements():
            pass
        case _:
            gang.send(rank.id, Error(f"{type(message).__name__} is not a rank's message"))
