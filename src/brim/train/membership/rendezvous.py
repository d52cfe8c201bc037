"""Forms process groups, sends the state to ranks that lack it, and forms a broken group again.

A rank is behind if it has committed fewer steps than another; a new one has committed none. The ranks with the most
steps are senders: they all hold the same bits, so the receivers are spread over them. A rank uses a received state only
when it is complete, so a sender may die at any moment.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from brim.errors import BrimError, InvariantError
from brim.gang.messages import FormGroup, GroupBroken, GroupFormed, Prepare, Ready, ResizeGroup, Stop, StoreAddress
from brim.train.membership.process_group import BrokenGroupError, ProcessGroup, Transfer, join_store, open_store
from brim.train.membership.store_values import delete_value, get_value, put_value
from brim.train.membership.supervisor_client import SupervisorClient

NO_STATE: Final = -1
"""Committed steps of a rank that has no state yet."""

STATE_TAG: Final = 1000
"""Messages that carry state; the sums use small tags."""

SMALL_BYTES: Final = 256 << 10
"""Tensors up to this size are sent together. Ours: a message costs about as much as copying this many bytes."""

TOGETHER_BYTES: Final = 16 << 20
"""Bytes of small tensors in one message. Ours."""

FORM_TIMEOUT_S: Final = 60.0
"""Longest wait for the others while a group forms. Ours: new ranks are ready before, so milliseconds are usual."""

LOOK_S: Final = 2.0
"""How often a rank that waits for its group checks whether the supervisor is still connected."""


class NotAMemberError(BrimError):
    """The new group is without this rank, which leaves."""


class JobEndedError(BrimError):
    """The job was asked to end while this rank is in no group."""

    def __init__(self, command: Prepare | Stop) -> None:
        super().__init__(f"command {command.command} ends the job")
        self.command = command


class NoSupervisorError(BrimError):
    """The group is broken and no supervisor is left to form another."""


class SharedState(Protocol):
    """The state that is equal on every rank after every committed step."""

    step: int

    @property
    def closed(self) -> bool:
        """Whether the script has run its code at the end of the epoch since the last step."""

    def seen(self, closed: bool) -> None:
        """Receive whether `closed` is true on any rank with the most steps."""

    @property
    def tuned(self) -> int:
        """Number of the newest `tune` that has been applied."""

    def begin(self) -> None:
        """No rank has state: restore it from a checkpoint, or start at step 0."""

    def mark(self) -> list[int]:
        """Return a few numbers that are equal on all ranks with the same state."""

    def give(self) -> tuple[dict[str, Tensor], Any]:
        """Return the state as named tensors and JSON, without copying."""

    def take(self, tensors: dict[str, Tensor], tree: Any) -> None:
        """Use this state from now on."""


class Rendezvous:
    """The group that this rank is in, as the supervisor wants it.

    Attributes:
        group: None while there is none, and in a group of one.
        command: Commands up to this number have been acted on, or overridden.
    """

    def __init__(self, client: SupervisorClient, device: torch.device, timeout_s: float) -> None:
        self.client, self._device, self._timeout_s = client, device, timeout_s
        self.group: ProcessGroup | None = None
        self.generation, self.rank, self.size, self.command = 0, 0, 1, 0
        self.formed = False
        client.on_generation_over(self._abort)

    def _abort(self, generation: int) -> None:
        """In the listening thread: abort the group if it is of this generation or an older one."""
        group = self.group  # the main thread changes it
        if group is not None and group.generation <= generation:
            group.abort()

    def join(self, state: SharedState, sizes: tuple[int, ...]) -> None:
        """Report that everything is built, and join the first group that includes this rank."""
        self.client.ready(Ready(self.client.ident, sizes))
        self.enter(self._next_form(0), state)

    def _next_form(self, above: int) -> FormGroup:
        gone_s = 0.0
        while True:
            form = self.client.wait_for_form(above, self.command, LOOK_S)
            if isinstance(form, FormGroup):
                return form
            if form is not None:
                self.command = form.command
                raise JobEndedError(form)
            gone_s = 0.0 if self.client.connected else gone_s + LOOK_S
            if gone_s > self._timeout_s:
                raise NoSupervisorError(
                    f"generation {above} has ended, and so has the supervisor, which would form the next"
                )

    def enter(self, form: FormGroup | ResizeGroup, state: SharedState) -> None:
        """Join this group, or a newer one that replaces it.

        Raises:
            NotAMemberError: the group is without this rank.
        """
        while True:
            newer = self.client.newest_form(form.generation)
            form = newer if newer is not None else form
            self.close()
            if self.client.ident not in form.members:
                self.command = max(self.command, form.command)
                raise NotAMemberError(f"generation {form.generation} is without rank {self.client.ident}")
            try:
                self._form(form, state)
                return
            except BrokenGroupError as error:
                self.broken(str(error), state.step)
                form = self._next_form(form.generation)

    def _form(self, form: FormGroup | ResizeGroup, state: SharedState) -> None:
        began_s = time.monotonic()
        self.generation = form.generation
        self.rank, self.size = form.members.index(self.client.ident), len(form.members)
        self.client.waiting(form.generation, max(state.step, 0), "the new group")
        try:
            if self.size > 1:
                share_state(self._meet(form), state)
            elif state.step == NO_STATE:
                state.begin()
        finally:
            self.client.not_waiting()
        self.command = max(self.command, form.command)
        self.client.forget(self.command)
        self.formed = True
        self.client.send(GroupFormed(form.generation, state.step, time.monotonic() - began_s, state.tuned))

    def _meet(self, form: FormGroup | ResizeGroup) -> ProcessGroup:
        group = self.group = ProcessGroup(
            self.rank, self.size, generation=form.generation, device=self._device, timeout_s=self._timeout_s
        )  # fmt: skip
        if self.client.is_over(form.generation):  # said before the group could be aborted
            group.abort()
        group.hosts_store = form.leader == self.client.ident
        group.connect(lambda: self._store(form))
        return group

    def _store(self, form: FormGroup | ResizeGroup) -> Any:
        if form.leader == self.client.ident:
            store, host, port = open_store(FORM_TIMEOUT_S)
            self.client.send(StoreAddress(form.generation, host, port))
            return store
        address = self.client.wait_for_address(form.generation, FORM_TIMEOUT_S)
        if address is None:
            raise BrokenGroupError(f"generation {form.generation}: the leader did not send the address of its store")
        wanted = lambda: not self.client.is_over(form.generation)  # noqa: E731
        return join_store(address.host, address.port, FORM_TIMEOUT_S, wanted)

    def broken(self, detail: str, step: int) -> None:
        """A collective failed: end the group at once, so that the other ranks do not wait in it, and report it."""
        self.close()
        self.formed = False
        self.client.send(GroupBroken(self.generation, max(step, 0), detail))

    def again(self, state: SharedState) -> None:
        """After `broken`: join the next group."""
        self.enter(self._next_form(self.generation), state)

    def close(self) -> None:
        """Leave the group."""
        group, self.group = self.group, None
        if group is not None:
            group.close()


def share_state(group: ProcessGroup, state: SharedState) -> None:
    """Make the state equal on all ranks: that of the ranks with the most committed steps.

    If no rank has any, rank 0 begins, from a checkpoint or with the state that it was built with. Among ranks with
    equally many steps, those that have run their code at the end of the epoch send it; the others run that code
    themselves. A group may share states of several steps, one after the other.
    """
    rows = group.share([state.step, int(state.closed)])
    if max(rows)[0] == NO_STATE:
        if group.rank == 0:
            state.begin()
        rows = group.share([state.step, int(state.closed)])
    most = max(rows)
    senders = [rank for rank, row in enumerate(rows) if row == most]
    receivers = [rank for rank, row in enumerate(rows) if row[0] < most[0]]
    state.seen(bool(most[1]))
    pairs = {receiver: senders[index % len(senders)] for index, receiver in enumerate(receivers)}
    mine = [receiver for receiver, sender in pairs.items() if sender == group.rank]
    key = f"state/{most[0]}/{pairs.get(group.rank, group.rank)}"
    if group.rank in pairs:
        _receive(group, pairs[group.rank], state, key)
    else:
        _send(group, mine, state, key)
    marks = group.share(state.mark())
    if mine:
        group.do(lambda: delete_value(group.store, key))  # if it fails, the next wait fails
    if any(mark != marks[0] for mark in marks):
        raise InvariantError(f"ranks differ after sharing state: {marks}")


def _send(group: ProcessGroup, receivers: list[int], state: SharedState, key: str) -> None:
    if not receivers:
        return
    tensors, tree = state.give()
    specs = [[name, str(t.dtype).removeprefix("torch."), list(t.shape), t.is_cuda] for name, t in tensors.items()]
    head = json.dumps({"specs": specs, "tree": tree}).encode()
    try:
        group.do(lambda: put_value(group.store, key, head)).wait()
    except RuntimeError as error:
        raise BrokenGroupError(f"state was not sent: {error}") from None
    works = []
    for part in _parts(list(tensors.values())):
        payload = torch.cat([_bytes(t, group) for t in part]) if len(part) > 1 else _bytes(part[0], group)
        works += [group.send(payload, receiver, STATE_TAG) for receiver in receivers]
    _wait(group, works)


def _receive(group: ProcessGroup, sender: int, state: SharedState, key: str) -> None:
    try:
        head = json.loads(group.do(lambda: get_value(group.store, key)).wait())
    except RuntimeError as error:
        raise BrokenGroupError(f"no state: {error}") from None
    device = group.device if group.nccl else torch.device("cpu")
    tensors = {
        name: torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        for name, dtype, shape, _ in head["specs"]
    }
    works: list[Transfer] = []
    together: list[tuple[Tensor, list[Tensor]]] = []
    for part in _parts(list(tensors.values())):
        if len(part) == 1:
            payload = part[0].reshape(-1).view(torch.uint8)
        else:
            payload = torch.empty(sum(t.nbytes for t in part), dtype=torch.uint8, device=device)
            together.append((payload, part))
        works.append(group.recv(payload, sender, STATE_TAG))
    _wait(group, works)
    for payload, part in together:
        for piece, tensor in zip(torch.split(payload, [t.nbytes for t in part]), part, strict=True):
            tensor.view(-1).view(torch.uint8).copy_(piece)
    if group.nccl:
        on_host = [name for name, _, _, is_cuda in head["specs"] if not is_cuda]
        tensors |= {name: tensors[name].cpu() for name in on_host}
        torch.cuda.current_stream(device).synchronize()
        group.check_complete()
    state.take(tensors, head["tree"])


def _wait(group: ProcessGroup, works: list[Transfer]) -> None:
    """Wait for all transfers; their tensors are kept as long as the thread of the group needs them."""

    def wait() -> None:
        for work in works:
            work.wait()

    group.do(wait, sum(work.bytes for work in works)).wait()


def _bytes(tensor: Tensor, group: ProcessGroup) -> Tensor:
    plain = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return plain.to(group.device) if group.nccl else plain.cpu()


def _parts(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Divide tensors over messages: large ones alone, small ones together. Empty tensors are not sent."""
    parts: list[list[Tensor]] = []
    small: list[Tensor] = []
    for tensor in tensors:
        if tensor.nbytes > SMALL_BYTES:
            parts.append([tensor])
        elif tensor.nbytes:
            small.append(tensor)
            if sum(t.nbytes for t in small) > TOGETHER_BYTES:
                parts.append(small)
                small = []
    return [*parts, small] if small else parts
