"""Decides which ranks are in which group. It has no clock, process or socket; the supervisor carries out its actions.

Each group has a number, its generation. A rank is STARTING (no message yet), INITIALIZING (sent ``hello``), READY (in
no group: it has built everything, or its group is broken), FORMING (was sent the newest group), JOINED (has joined it)
or LEAVING (sent ``leaving``, or is to exit).

The group changes in two ways. In a planned change all members are JOINED: ranks that stay get ``resize_group``, new
ranks get ``form_group``. In an unplanned change a member died or a collective failed: the supervisor sends
``member_lost`` to the other members at once, since the collective they are in may never fail by itself. When every
living member is READY, the remaining ranks get ``form_group``. If a rank dies while a group forms, the next
``form_group`` follows at once. A rank that sends ``group_broken`` for an older generation while it is a member of the
newest gets that ``form_group`` again.

A gang that keeps its size forms no smaller group when a rank is lost: the others wait for the rank that replaces it.

If no rank is to stay, the gang moves in two planned changes: once the new ranks are ready, they form a group with old
ones, from which they receive the training state; then the old ones leave.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from brim.gang.messages import FormGroup, MemberLost, Message, ResizeGroup, StoreAddress

FAILED_GROUPS_MAX: Final = 5
"""The job fails after this many groups in a row broke before all members had joined. Our choice."""


class MemberState(Enum):
    """The state of a rank in the membership protocol."""

    STARTING = "starting"
    INITIALIZING = "initializing"
    READY = "ready"
    FORMING = "forming"
    JOINED = "joined"
    LEAVING = "leaving"


@dataclass(slots=True)
class Member:
    """One living rank. It has the training state once it has joined a group."""

    id: int
    state: MemberState = MemberState.STARTING
    has_training_state: bool = False

    @property
    def is_leaving(self) -> bool:
        """Whether it is about to exit."""
        return self.state is MemberState.LEAVING


@dataclass(slots=True)
class MembershipActions:
    """What the supervisor has to do.

    Attributes:
        send: Messages to ranks.
        start: Number of ranks to start.
        stop: Surplus ranks that get a signal.
        failure: Why the gang fails; empty if it does not.
    """

    send: list[tuple[int, Message]] = field(default_factory=list)
    start: int = 0
    stop: list[int] = field(default_factory=list)
    failure: str = ""

    def and_then(self, later: MembershipActions) -> MembershipActions:
        """Return these actions followed by later ones."""
        return MembershipActions(
            self.send + later.send, self.start + later.start, self.stop + later.stop,
            self.failure or later.failure,
        )  # fmt: skip


class GangMembership:
    """The membership of one gang.

    It is one class because every decision depends on the same few sets, and changes them.

    Args:
        size: Number of ranks at the start.
        replacements_max: How many dead ranks are replaced by new ones; after that, the others continue without them.
        keeps_size: Whether the others wait for the new rank, and cannot continue without one.

    Attributes:
        target: Number of ranks that is wanted.
        generation: Number of the newest group; 0 before the first.
        command: Number of the newest command to all ranks.
        members: Ids of the newest group, in rank order.
        sizes: Possible numbers of ranks; empty: any.
        ranks: The living ranks, by id.
        replacements_left: How many more dead ranks are replaced.
        closing: Whether all ranks are to exit.
        finishing: Whether a rank has finished, or is to: no rank is started any more.
    """

    def __init__(self, size: int, replacements_max: int = 0, *, keeps_size: bool = False) -> None:
        self.target = size
        self.replacements_left, self._keeps_size = replacements_max, keeps_size
        self.generation = 0
        self.command = 0
        self.members: tuple[int, ...] = ()
        self.sizes: frozenset[int] = frozenset()
        self.ranks: dict[int, Member] = {}
        self.closing = self.finishing = self._disbanded = False
        self._unwanted: frozenset[int] = frozenset()
        self._broken = False
        self._to_start = 0
        self._failed_groups = self._form_command = 0

    # -- events ----------------------------------------------------------------------------------------------------

    def begin(self) -> MembershipActions:
        """Start the first ranks."""
        return self._next_actions()

    def added(self, rank: int) -> None:
        """A rank that was ordered is starting under this id."""
        self._to_start -= 1
        self.ranks[rank] = Member(rank)

    def connected(self, rank: int) -> None:
        """The rank has connected."""
        if (member := self.ranks.get(rank)) and member.state is MemberState.STARTING:
            member.state = MemberState.INITIALIZING

    def ready(self, rank: int, sizes: Iterable[int] = ()) -> MembershipActions:
        """The rank is ready to join a group."""
        member = self.ranks.get(rank)
        if member is None or member.state not in (MemberState.STARTING, MemberState.INITIALIZING):
            return MembershipActions()
        member.state = MemberState.READY
        if possible := frozenset(size for size in sizes if size > 0):
            self.sizes = possible
        return self._next_actions()

    def store_address(self, rank: int, address: StoreAddress) -> MembershipActions:
        """The leader's store is open: send its address to the other members."""
        if address.generation != self.generation or not self.members or rank != self._leader():
            return MembershipActions()
        others = [other for other in self.members if other != rank and other in self.ranks]
        return MembershipActions(send=[(other, address) for other in others])

    def group_formed(self, rank: int, generation: int) -> MembershipActions:
        """The rank has joined the group of this generation."""
        member = self.ranks.get(rank)
        if member is None or generation != self.generation or member.state is not MemberState.FORMING:
            return MembershipActions()
        member.state, member.has_training_state = MemberState.JOINED, True
        if self.all_joined():
            self._failed_groups = 0
        return self._next_actions()

    def group_broken(self, rank: int, generation: int) -> MembershipActions:
        """A collective of this generation failed, and the rank has left the group."""
        member = self.ranks.get(rank)
        if member is None or generation > self.generation or member.is_leaving:
            return MembershipActions()
        if generation < self.generation or rank not in self.members:
            again = MembershipActions(send=[(rank, self._form_message())])  # it may have missed the newer one
            return again.and_then(self._announce_loss(generation, but=rank))
        if member.state is MemberState.FORMING and not self._broken:
            self._failed_groups += 1
        member.state = MemberState.READY
        announcement = MembershipActions() if self._broken else self._announce_loss(generation, but=rank)
        self._broken = True
        return announcement.and_then(self._next_actions())

    def waiting(self, rank: int, generation: int) -> MembershipActions:
        """The rank has been in a collective of this generation for a while; a member that it waits for may be dead."""
        member = self.ranks.get(rank)
        if member is None or generation != self.generation or all(other in self.ranks for other in self.members):
            return MembershipActions()
        return MembershipActions(send=[(rank, MemberLost(generation))])

    def leaving(self, rank: int) -> MembershipActions:
        """The rank is about to exit, as requested."""
        member = self.ranks.get(rank)
        if member is None:
            return MembershipActions()
        member.state = MemberState.LEAVING
        return self._form_remaining() if self._is_needed_to_form(rank) else self._next_actions()

    def is_staying(self, rank: int) -> bool:
        """Whether the rank is a member that has not been asked to leave."""
        member = self.ranks.get(rank)
        leaving = member is None or member.is_leaving
        return rank in self.members and not leaving and not self.closing and not self.finishing

    def exited(self, rank: int) -> MembershipActions:
        """The rank's process has ended; `can_continue_without` tells beforehand whether the gang goes on."""
        member = self.ranks.pop(rank, None)
        if member is None:
            return MembershipActions()
        if member.state in (MemberState.JOINED, MemberState.FORMING, MemberState.READY) and rank in self.members:
            if rank not in self._unwanted:
                self._replace_or_shrink()
            forming = member.state is MemberState.FORMING and not self.closing and not self._is_over()
            if forming or self._is_needed_to_form(rank):
                return self._form_remaining()
            return self._announce_loss(self.generation).and_then(self._next_actions())
        if member.has_training_state and not member.is_leaving:  # not in the new group, but does not know yet
            return self._announce_loss(self.generation - 1).and_then(self._next_actions())
        if not member.has_training_state and not member.is_leaving:  # a new rank that died before it joined
            self._replace_or_shrink()
        return self._next_actions()

    def not_started(self, rank: int) -> MembershipActions:
        """The rank's process cannot be started: the gang continues with the ranks it has, and does not try again."""
        if self.ranks.pop(rank, None) is not None:
            self._want_one_less()
        return self._next_actions()

    def can_continue_unstarted(self, rank: int) -> bool:
        """Whether the gang continues although this rank cannot be started: another rank has the state."""
        others = (member for member in self.ranks.values() if member.id != rank and not member.is_leaving)
        has_state = any(member.has_training_state for member in others)
        return not self.closing and has_state and not (self._keeps_size and self._has_lost_member())

    def disband(self) -> MembershipActions:
        """The gang fails: ranks that are in no group, now or later, must not wait for one."""
        self.closing = self._disbanded = True
        self._begin_group(())
        return self._next_actions()

    def finished(self, rank: int) -> MembershipActions:
        """The rank's script has ended normally. The others will end too, so no rank is started any more."""
        self.finishing = True
        self.replacements_left = 0
        self.ranks.pop(rank, None)
        self.target = max(1, min(self.target, len(self.ranks)))
        return self._form_remaining() if self._is_needed_to_form(rank) else self._next_actions()

    def can_continue_without(self, rank: int) -> bool:
        """Whether the gang can continue without this rank: enough others are left, or it may be replaced."""
        others = [member for member in self.ranks.values() if member.id != rank and not member.is_leaving]
        if self.finishing and self.generation > 0:
            return not self.closing and any(member.has_training_state for member in others)
        enough = self.generation > 0 and self.largest_possible(len(others)) > 0
        if self._keeps_size:  # the new rank receives the state from another one
            enough = enough and any(member.has_training_state for member in others)
            return not self.closing and enough and (self.replacements_left > 0 or not self._has_lost_member(rank))
        return not self.closing and (self.replacements_left > 0 or enough)

    # -- requests and queries --------------------------------------------------------------------------------------

    def resize(self, size: int, unwanted: frozenset[int] = frozenset()) -> tuple[str, MembershipActions]:
        """Change the number of ranks to ``size``, of which none is one of the unwanted.

        Return why that is refused (or an empty text), and the actions.
        """
        refusal = self._refusal(size, unwanted)
        if refusal:
            return refusal, MembershipActions()
        self.target, self._unwanted = size, unwanted
        actions = self._next_actions()
        spare = [
            m.id for m in self.ranks.values()
            if m.id not in self.members and not m.has_training_state and not m.is_leaving
        ]  # fmt: skip
        spare.sort(key=unwanted.__contains__)
        stay = sum(rank not in unwanted for rank in (*self.members, *spare)) + self._to_start
        surplus = max(0, stay - size) + sum(rank in unwanted for rank in spare)
        if surplus > 0:
            self._stop_surplus(spare[max(0, len(spare) - surplus) :], actions)
        return "", actions

    def _refusal(self, size: int, unwanted: frozenset[int]) -> str:
        if self.closing:
            return "the gang is stopping"
        if self.finishing:
            return "ranks have finished already"
        if size < 1:
            return f"found size {size}, expected at least 1"
        if self.sizes and size not in self.sizes:
            return f"found size {size}, expected one of {sorted(self.sizes)}: the batch splits into these only"
        if not self.generation and all(member.state is MemberState.STARTING for member in self.ranks.values()):
            return "no rank has connected yet: try again later (a command that does not use brim.train never connects)"
        if self.sizes == {1} and self._all_leave(unwanted):
            return (
                "found none of the present devices, expected at least one: the training state is there, and the job "
                "runs on one rank only, so that none can join to receive it"
            )
        return ""

    def _all_leave(self, unwanted: frozenset[int]) -> bool:
        """Whether no rank with the training state is to stay, so that new ones must receive it first."""
        holders = {rank for rank in self.members if rank in self.ranks and self.ranks[rank].has_training_state}
        return bool(holders) and holders <= unwanted

    def repeat_form(self, rank: int) -> MembershipActions:
        """Send a rank that has reconnected the `FormGroup` that it may have missed."""
        member = self.ranks.get(rank)
        missed = member is not None and member.state is MemberState.FORMING and rank in self.members
        return MembershipActions(send=[(rank, self._form_message())] if missed else [])

    def all_joined(self) -> bool:
        """Whether all members have joined the newest group."""
        return bool(self.members) and self._all_members_are(MemberState.JOINED)

    def is_superseded(self, command: int) -> bool:
        """Whether the newest group came after this command, so that ranks which had not applied it never will."""
        return command < self._form_command

    def next_command(self) -> int:
        """Return the number for a new command to all ranks."""
        self.command += 1
        return self.command

    # -- decisions -------------------------------------------------------------------------------------------------

    def _announce_loss(self, generation: int, but: int = -1) -> MembershipActions:
        """Send `MemberLost` to the ranks that may be in a collective of this generation, so that they leave it."""
        grouped = (MemberState.JOINED, MemberState.FORMING)
        there = [member.id for member in self.ranks.values() if member.state in grouped]
        return MembershipActions(send=[(rank, MemberLost(generation)) for rank in there if rank != but])

    def _all_members_are(self, state: MemberState) -> bool:
        return all(rank in self.ranks and self.ranks[rank].state is state for rank in self.members)

    def _is_needed_to_form(self, rank: int) -> bool:
        """Whether a group was forming that cannot be completed without this rank."""
        forming = any(self.ranks[other].state is MemberState.FORMING for other in self.members if other in self.ranks)
        return rank in self.members and forming and not self.closing and not self._is_over()

    def _is_over(self) -> bool:
        """Whether the job has ended and no rank with its state is left, so that new ranks would begin it again."""
        state_is_left = any(member.has_training_state for member in self.ranks.values())
        return self.finishing and self.generation > 0 and not state_is_left

    def _has_lost_member(self, rank: int = -1) -> bool:
        """Whether a member that was to stay is not there, or would not be without this rank."""
        return any(one == rank or one not in self.ranks for one in self.members if one not in self._unwanted)

    def _replace_or_shrink(self) -> None:
        if self.closing:
            return
        if self.replacements_left > 0:
            self.replacements_left -= 1
        elif self.generation:
            self._want_one_less()

    def _want_one_less(self) -> None:
        """A rank is missing for good. If too few are left of those that were to stay, the others stay, too."""
        if self._unwanted and not self.largest_possible(self._count_to_stay()):
            self._unwanted = frozenset()
            self.target = max(1, self.largest_possible(self._count_to_stay()))
        else:
            self.target = max(1, self.target - 1)

    def _count_to_stay(self) -> int:
        """Number of ranks that are there or starting, and not to leave."""
        living = sum(not member.is_leaving and member.id not in self._unwanted for member in self.ranks.values())
        return living + self._to_start

    def _next_actions(self) -> MembershipActions:
        """Return the actions that can be carried out now."""
        if self._disbanded:
            ready = [member.id for member in self.ranks.values() if member.state is MemberState.READY]
            return MembershipActions(send=[(rank, self._form_message()) for rank in ready])
        if self.closing:
            return MembershipActions()
        if self._is_over():
            return self._stop_new_ranks()
        if self._failed_groups >= FAILED_GROUPS_MAX:
            failed = self._failed_groups
            return MembershipActions(failure=f"{failed} process groups in a row broke before all ranks had joined")
        members = [self.ranks[rank] for rank in self.members if rank in self.ranks]
        members = [member for member in members if not member.is_leaving]
        if self._broken or not members:
            if all(member.state is MemberState.READY for member in members):
                return self._form_when_enough()
            return MembershipActions()
        is_forming = any(member.state is MemberState.FORMING for member in members)
        if is_forming and len(members) < len(self.members):  # a rank died, and the others were too few for a group
            return self._form_remaining()
        if not all(member.state is MemberState.JOINED for member in members) or len(members) < len(self.members):
            return self._start_missing()  # a death that the others have not noticed, or a change under way
        return self._change_size()

    def _start_missing(self) -> MembershipActions:
        """Start the ranks that are missing to the target."""
        if self.finishing:
            return MembershipActions()
        missing = max(0, self.target - self._count_to_stay())
        self._to_start += missing
        return MembershipActions(start=missing)

    def _form_when_enough(self) -> MembershipActions:
        ready = [member for member in self.ranks.values() if member.state is MemberState.READY]
        if not ready or (not any(member.has_training_state for member in ready) and len(ready) < self.target):
            return self._start_missing()
        return self._form_remaining()

    def largest_possible(self, most: int) -> int:
        """The largest size that the job can run on, out of ``most`` ranks; 0 if there is none."""
        possible = [size for size in self.sizes if size <= most] if self.sizes else [most]
        return max(possible, default=0)

    def _form_remaining(self) -> MembershipActions:
        """Form a new group of the remaining ranks at once; those with the state come first, of them those to stay."""
        usable = (MemberState.READY, MemberState.FORMING, MemberState.JOINED)
        old = [rank for rank in self.members if rank in self.ranks and self.ranks[rank].state in usable]
        new = [m.id for m in self.ranks.values() if m.state in usable and m.id not in old]
        candidates = sorted(
            [*old, *new], key=lambda rank: (not self.ranks[rank].has_training_state, rank in self._unwanted)
        )
        size = self.largest_possible(min(self.target, len(candidates)))
        actions = self._start_missing()
        waits = self._keeps_size and not self.finishing and size < self.largest_possible(self.target)
        if size == 0 or waits:
            return actions
        members, spare = candidates[:size], candidates[size:]
        self._begin_group(tuple(members))
        actions.send += [(rank, self._form_message()) for rank in members]
        starting = self._ranks_are_starting()
        for rank in spare:
            member = self.ranks[rank]
            if not member.has_training_state:
                member.state = MemberState.READY
            if not starting or member.state is not MemberState.READY:
                self._stop_surplus([rank], actions)
        if not starting:
            self.target = size
        actions.start += self._start_missing().start
        return actions

    def _change_size(self) -> MembershipActions:
        """All members have joined: grow or shrink towards the target."""
        newcomers = [m.id for m in self.ranks.values() if m.state is MemberState.READY and m.id not in self.members]
        candidates = tuple(rank for rank in (*self.members, *newcomers) if rank not in self._unwanted)
        goal = self.largest_possible(self.target)
        if goal == 0 or len(candidates) < goal:
            return self._start_missing()
        if self._all_leave(self._unwanted):
            size = self.largest_possible(len(self.members) + len(candidates))
            old = self.members[: max(1, size - len(candidates))]
            wanted = (*old, *candidates[: size - len(old)])
        else:
            wanted = candidates[:goal]
        if wanted == self.members:
            return self._stop_surplus([] if self._ranks_are_starting() else newcomers, MembershipActions())
        before = self.members
        self._begin_group(wanted)
        resize = ResizeGroup(self.command, self.generation, wanted, self._leader())
        send: list[tuple[int, Message]] = [(rank, resize) for rank in before]
        return MembershipActions(send=send + [(rank, self._form_message()) for rank in wanted if rank not in before])

    def _ranks_are_starting(self) -> bool:
        """Whether new ranks are starting."""
        early = (MemberState.STARTING, MemberState.INITIALIZING)
        return self._to_start > 0 or any(member.state in early for member in self.ranks.values())

    def _stop_new_ranks(self) -> MembershipActions:
        """Stop the new ranks of a job that is over, including those that were forming a group."""
        left = [member.id for member in self.ranks.values() if not member.is_leaving]
        if left:
            self._begin_group(())
        return self._stop_surplus(left, MembershipActions())

    def _stop_surplus(self, spare: Iterable[int], actions: MembershipActions) -> MembershipActions:
        """Stop surplus ranks. One that has joined a group leaves by itself on `FormGroup`; new ranks get a signal."""
        for rank in spare:
            actions.send.append((rank, self._form_message()))
            if not self.ranks[rank].has_training_state:
                actions.stop.append(rank)
            self.ranks[rank].state = MemberState.LEAVING
        return actions

    def _form_message(self) -> FormGroup:
        return FormGroup(self.generation, self.members, self._leader(), self._form_command)

    def _begin_group(self, members: tuple[int, ...]) -> None:
        self.generation += 1
        self._form_command = self.next_command()  # sent again with this number, so that later commands still count
        self.members = members
        self._broken = False
        for rank in members:
            self.ranks[rank].state = MemberState.FORMING

    def _leader(self) -> int:
        holders = (rank for rank in self.members if rank in self.ranks and self.ranks[rank].has_training_state)
        return next(holders, next(iter(self.members), -1))
