"""What the requests of clients mean to the controller, and the responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brim.gang.controller import GangController
from brim.gang.messages import (
    KillRequest,
    PreemptRequest,
    Request,
    ResizeRequest,
    Response,
    StatusRequest,
    StopRequest,
    TuneSettings,
    check_request,
)

RANKS_SHOWN: Final = 64
"""Newest ranks that a status shows although they have ended: a gang that is often resized has had thousands, and a
message has a largest size. Our choice."""


def accept(gang: GangController, request: Request) -> str:
    """Carry out a request, or return why it is refused."""
    try:
        check_request(request)
    except ValueError as error:
        return str(error)
    fence = getattr(request, "fence", ())
    if fence:
        if fence[:-1] != gang.config.fence:
            return f"found a request for {fence[:-1]}, expected one for {gang.config.fence}"
        if fence[-1] < gang.sequence:
            return f"found request {fence[-1]}, expected one that is not older than {gang.sequence}"
        if fence[-1] == gang.sequence and not isinstance(request, PreemptRequest):
            return ""
    refusal = _carry_out(gang, request)
    if fence and not refusal:
        gang.sequence = fence[-1]
    return refusal


def _carry_out(gang: GangController, request: Request) -> str:
    match request:
        case StatusRequest():
            pass
        case ResizeRequest(size=size, devices=devices, fence=fence):
            return gang.resize(gang.membership.largest_possible(size) or size if fence else size, devices)
        case PreemptRequest(grace_s=grace_s):
            gang.preempt(grace_s)
        case StopRequest():
            gang.stop()
        case KillRequest(id=number):
            rank = gang.ranks.get(number)
            if rank is None or not rank.alive or not rank.pid:
                alive = [rank.id for rank in gang.ranks.values() if rank.alive]
                return f"found id {number}, expected one of {alive}"
            gang.kill(number)
        case TuneSettings():
            gang.tune(request)
    return ""


def respond(gang: GangController, request: Request, refusal: str, pids: Mapping[str, int]) -> Response:
    """Return the response, once the actions of `accept` have been carried out.

    Args:
        gang: The gang.
        request: The request.
        refusal: Result of `accept`.
        pids: Processes that the status is to show beside those of the ranks.
    """
    if isinstance(request, StatusRequest):
        return Response(ok=True, status={**status(gang), **pids})
    if isinstance(request, ResizeRequest):
        refusal = refusal or gang.start_failure
    return Response(not refusal, refusal)


def status(gang: GangController) -> dict[str, Any]:
    """Return the present state of the gang and its ranks."""
    states = {number: member.state.value for number, member in gang.membership.ranks.items()}
    ending = "failing" if gang.failing else "preempting" if gang.announced else "stopping"
    running = not (gang.failing or gang.announced or gang.stopping)
    present = {rank.id for rank in gang.ranks.values() if rank.alive or rank.cleanup_since_s is not None}
    present |= set(sorted(gang.ranks)[-RANKS_SHOWN:])
    return {
        "gang": gang.id, "state": "running" if running else ending, "generation": gang.membership.generation,
        "command": gang.membership.command, "target": gang.membership.target, "sequence": gang.sequence,
        "devices": list(gang.devices), "loss": gang.loss, "settled": gang.is_settled(),
        "saved": None if gang.saved is None else gang.saved.step,
        "members": list(gang.membership.members), "sizes": sorted(gang.membership.sizes),
        "ranks": [
            {"id": rank.id, "slot": rank.slot, "device": rank.device, "pid": rank.pid or None,
             "start_method": rank.start_method, "cleaning": rank.cleanup_since_s is not None,
             "state": states.get(rank.id, ""), "connected": rank.connected, "exit_code": rank.exit_code,
             "alive": rank.alive, **rank.report}
            for rank in gang.ranks.values() if rank.id in present
        ],
    }  # fmt: skip
