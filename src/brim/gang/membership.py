"""Who is in which epoch: decides, and does nothing. No clock, no process, no socket.

Each rank is STARTING (no word yet), BUILDING (said hello), FREE (in no group: ready, or its group is broken), FORMING
(told to form the newest epoch), IN (formed it), LEAVING (said so) or gone. An epoch is changed in two ways. Planned:
all are IN; survivors get ``resize``, newcomers ``form``. Unplanned: a member died or a collective failed. The others
are told at once that a member is ``lost``, since the collective they are in may never fail by itself; when every living
member is FREE, those that remain get ``form``. Death while an epoch forms is answered by the next ``form`` at once. A
rank that says ``broken`` for an older epoch while it is expected in the newest is sent that ``form`` again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from brim.gang.protocol import Address, Form, Lost, Message, Resize

FAILED_FORMS_MAX: Final = 5
"""Epochs in a row that broke before everybody was in: then it is not bad luck. Ours."""


class Where(Enum):
    """Where a rank stands."""

    STARTING = "starting"
    BUILDING = "building"
    FREE = "free"
    FORMING = "forming"
    IN = "in"
    LEAVING = "leaving"


@dataclass(slots=True)
class Member:
    """One living rank. ``holds``: it was in a group once, so it has the state of training."""

    id: int
    where: Where = Where.STARTING
    holds: bool = False


@dataclass(slots=True)
class Orders:
    """What is to be done: messages to ranks, how many to start, whom to end since nobody needs them any more."""

    send: list[tuple[int, Message]] = field(default_factory=list)
    start: int = 0
    retire: list[int] = field(default_factory=list)
    hopeless: str = ""

    def and_then(self, later: Orders) -> Orders:
        """These, followed by others."""
        return Orders(
            self.send + later.send, self.start + later.start, self.retire + later.retire,
            self.hopeless or later.hopeless,
        )  # fmt: skip


class Membership:
    """The membership of one gang.

    Args:
        size: How many ranks it starts with.
        replace: How many dead ranks may be replaced by new ones; the others go on without.
    """

    def __init__(self, size: int, replace: int = 0) -> None:
        self.target = size
        self.epoch = 0
        self.command = 0
        self.members: tuple[int, ...] = ()
        self.sizes: frozenset[int] = frozenset()
        self.ranks: dict[int, Member] = {}
        self.closing = self.finishing = self._dissolved = False
        self._replace = replace
        self._broken = False
        self._asked_to_start = 0
        self._failed_forms = self._form_command = 0

    # -- what happens ----------------------------------------------------------------------------------------------

    def begin(self) -> Orders:
        """The first ranks."""
        return self._settle()

    def added(self, rank: int) -> None:
        """A rank that was ordered is being started under this id."""
        self._asked_to_start -= 1
        self.ranks[rank] = Member(rank)

    def hello(self, rank: int) -> None:
        """It has connected."""
        if (member := self.ranks.get(rank)) and member.where is Where.STARTING:
            member.where = Where.BUILDING

    def ready(self, rank: int, sizes: Iterable[int] = ()) -> Orders:
        """It could be put into an epoch."""
        member = self.ranks.get(rank)
        if member is None or member.where not in (Where.STARTING, Where.BUILDING):
            return Orders()
        member.where = Where.FREE
        if possible := frozenset(size for size in sizes if size > 0):
            self.sizes = possible
        return self._settle()

    def address(self, rank: int, said: Address) -> Orders:
        """The leader's store is open: the other members are told."""
        if said.epoch != self.epoch or not self.members or rank != self._leader():
            return Orders()
        return Orders(send=[(other, said) for other in self.members if other != rank and other in self.ranks])

    def formed(self, rank: int, epoch: int) -> Orders:
        """It is in the group of this epoch."""
        member = self.ranks.get(rank)
        if member is None or epoch != self.epoch or member.where is not Where.FORMING:
            return Orders()
        member.where, member.holds = Where.IN, True
        if self.all_are_in():
            self._failed_forms = 0
        return self._settle()

    def broken(self, rank: int, epoch: int) -> Orders:
        """A collective of this epoch failed, and the rank has left the group."""
        member = self.ranks.get(rank)
        if member is None or epoch > self.epoch or member.where is Where.LEAVING:
            return Orders()
        if epoch < self.epoch or rank not in self.members:
            again = Orders(send=[(rank, self._form_message())])  # it may have missed that another was ordered
            return again.and_then(self._tell_of_loss(epoch, but=rank))
        if member.where is Where.FORMING and not self._broken:
            self._failed_forms += 1
        member.where = Where.FREE
        tell = Orders() if self._broken else self._tell_of_loss(epoch, but=rank)
        self._broken = True
        return tell.and_then(self._settle())

    def waiting(self, rank: int, epoch: int) -> Orders:
        """It has been inside a collective of this epoch for a while: it may wait for one that is gone for good."""
        member = self.ranks.get(rank)
        if member is None or epoch != self.epoch or all(other in self.ranks for other in self.members):
            return Orders()
        return Orders(send=[(rank, Lost(epoch))])

    def leaving(self, rank: int) -> Orders:
        """It is about to exit, as it was told to."""
        member = self.ranks.get(rank)
        if member is None:
            return Orders()
        member.where = Where.LEAVING
        return self._reform() if self._is_missed(rank) else self._settle()

    def is_wanted(self, rank: int) -> bool:
        """Whether nobody has told it to leave."""
        member = self.ranks.get(rank)
        leaving = member is None or member.where is Where.LEAVING
        return rank in self.members and not leaving and not self.closing and not self.finishing

    def gone(self, rank: int) -> Orders:
        """Its process has ended. Whether the gang can go on without it is not asked here."""
        member = self.ranks.pop(rank, None)
        if member is None:
            return Orders()
        if member.where in (Where.IN, Where.FORMING, Where.FREE) and rank in self.members:
            self._replace_or_shrink()
            if self._is_missed(rank) or (member.where is Where.FORMING and not self.closing and not self._is_over()):
                return self._reform()
            return self._tell_of_loss(self.epoch).and_then(self._settle())
        if member.holds and member.where is not Where.LEAVING:  # left out of an epoch that it had not taken up yet
            return self._tell_of_loss(self.epoch - 1).and_then(self._settle())
        if not member.holds and member.where is not Where.LEAVING:  # a newcomer that never came
            self._replace_or_shrink()
        return self._settle()

    def not_started(self, rank: int) -> Orders:
        """Its process cannot be started: the gang goes on with the ranks it has, and does not try again."""
        if self.ranks.pop(rank, None) is not None:
            self.target = max(1, self.target - 1)
        return self._settle()

    def can_do_without(self, rank: int) -> bool:
        """Whether a rank that cannot be started is no reason to end: there is another with the state."""
        others = (member for member in self.ranks.values() if member.id != rank and member.where is not Where.LEAVING)
        return not self.closing and any(member.holds for member in others)

    def dissolve(self) -> Orders:
        """The gang fails: who is in no group, now or later, is not to wait for one."""
        self.closing = self._dissolved = True
        self._form(())
        return self._settle()

    def finished(self, rank: int) -> Orders:
        """Its process has ended as a script does that is through: the others will, too, and nobody is to come."""
        self.finishing = True
        self._replace = 0
        self.ranks.pop(rank, None)
        self.target = max(1, min(self.target, len(self.ranks)))
        return self._reform() if self._is_missed(rank) else self._settle()

    def survives(self, rank: int) -> bool:
        """Whether the gang can go on without this rank: there is another in an epoch, or it may be replaced."""
        others = [member for member in self.ranks.values() if member.id != rank and member.where is not Where.LEAVING]
        if self.finishing and self.epoch > 0:
            return not self.closing and any(member.holds for member in others)
        return not self.closing and (self._replace > 0 or (self.epoch > 0 and bool(others)))

    # -- what is asked ---------------------------------------------------------------------------------------------

    def resize(self, size: int) -> tuple[str, Orders]:
        """Run on ``size`` ranks: why not, or an empty text and what to do."""
        why_not = self._why_not(size)
        if why_not:
            return why_not, Orders()
        self.target = size
        orders = self._settle()
        spare = [
            m.id for m in self.ranks.values()
            if m.id not in self.members and not m.holds and m.where is not Where.LEAVING
        ]  # fmt: skip
        excess = len(self.members) + len(spare) + self._asked_to_start - size
        if excess > 0:
            self._dismiss(spare[max(0, len(spare) - excess) :], orders)
        return "", orders

    def _why_not(self, size: int) -> str:
        if self.closing:
            return "the gang is stopping"
        if self.finishing:
            return "ranks have finished already"
        if size < 1:
            return f"found size {size}, expected at least 1"
        if self.sizes and size not in self.sizes:
            return f"found size {size}, expected one of {sorted(self.sizes)}: the job splits its batch that way"
        if not self.epoch and all(member.where is Where.STARTING for member in self.ranks.values()):
            return "no rank has connected yet: ask again when one has (a plain command never does: it keeps its size)"
        return ""

    def form_again(self, rank: int) -> Orders:
        """What a rank that had lost its connection may have missed."""
        member = self.ranks.get(rank)
        missed = member is not None and member.where is Where.FORMING and rank in self.members
        return Orders(send=[(rank, self._form_message())] if missed else [])

    def all_are_in(self) -> bool:
        """Whether the newest epoch is complete."""
        return bool(self.members) and self._all(Where.IN)

    def is_void(self, command: int) -> bool:
        """Whether the newest epoch is later than this command: who had not taken it up then, never will."""
        return command < self._form_command

    def next_command(self) -> int:
        """A number for a command to all."""
        self.command += 1
        return self.command

    # -- decisions -------------------------------------------------------------------------------------------------

    def _tell_of_loss(self, epoch: int, but: int = -1) -> Orders:
        """Whoever may be in a collective of this epoch leaves it."""
        there = [member.id for member in self.ranks.values() if member.where in (Where.IN, Where.FORMING)]
        return Orders(send=[(rank, Lost(epoch)) for rank in there if rank != but])

    def _all(self, where: Where) -> bool:
        return all(rank in self.ranks and self.ranks[rank].where is where for rank in self.members)

    def _is_missed(self, rank: int) -> bool:
        """Whether an epoch was forming that cannot be completed without this rank."""
        forming = any(self.ranks[other].where is Where.FORMING for other in self.members if other in self.ranks)
        return rank in self.members and forming and not self.closing and not self._is_over()

    def _is_over(self) -> bool:
        """Whether the job has ended and all who held its state are gone: newcomers would begin it anew."""
        return self.finishing and self.epoch > 0 and not any(member.holds for member in self.ranks.values())

    def _replace_or_shrink(self) -> None:
        if self.closing:
            return
        if self._replace > 0:
            self._replace -= 1
        elif self.epoch:
            self.target = max(1, self.target - 1)

    def _settle(self) -> Orders:
        """Whatever can be done now."""
        if self._dissolved:
            return Orders(send=[(m.id, self._form_message()) for m in self.ranks.values() if m.where is Where.FREE])
        if self.closing:
            return Orders()
        if self._is_over():
            return self._end()
        if self._failed_forms >= FAILED_FORMS_MAX:
            return Orders(hopeless=f"{self._failed_forms} epochs in a row broke before everybody was in")
        members = [self.ranks[rank] for rank in self.members if rank in self.ranks]
        members = [member for member in members if member.where is not Where.LEAVING]
        if self._broken or not members:
            if all(member.where is Where.FREE for member in members):
                return self._reform_when_enough()
            return Orders()
        if not all(member.where is Where.IN for member in members) or len(members) < len(self.members):
            return self._fill()  # a member is gone, and the others do not know yet; or a change is on its way
        return self._change()

    def _fill(self) -> Orders:
        """Start what is missing to the target."""
        if self.finishing:
            return Orders()
        living = sum(member.where is not Where.LEAVING for member in self.ranks.values())
        missing = max(0, self.target - living - self._asked_to_start)
        self._asked_to_start += missing
        return Orders(start=missing)

    def _reform_when_enough(self) -> Orders:
        free = [member for member in self.ranks.values() if member.where is Where.FREE]
        if not free or (not any(member.holds for member in free) and len(free) < self.target):
            return self._fill()
        return self._reform()

    def _fitting(self, most: int) -> int:
        """The largest size that the job can run on, out of ``most`` ranks."""
        possible = [size for size in self.sizes if size <= most] if self.sizes else [most]
        return max(possible, default=0)

    def _reform(self) -> Orders:
        """A new epoch of whoever is left, at once; those with the state come first, in their order."""
        usable = (Where.FREE, Where.FORMING, Where.IN)
        old = [rank for rank in self.members if rank in self.ranks and self.ranks[rank].where in usable]
        new = [m.id for m in self.ranks.values() if m.where in usable and m.id not in old]
        both = sorted([*old, *new], key=lambda rank: not self.ranks[rank].holds)
        size = self._fitting(min(self.target, len(both)))
        orders = self._fill()
        if size == 0:
            return orders
        spare = both[size:]
        self._form(tuple(both[:size]))
        told = both[:size]
        orders.send += [(rank, self._form_message()) for rank in told]
        coming = self._coming()
        for rank in spare:
            member = self.ranks[rank]
            if not member.holds:
                member.where = Where.FREE
            if not coming or member.where is not Where.FREE:
                self._dismiss([rank], orders)
        if not coming:
            self.target = size
        orders.start += self._fill().start
        return orders

    def _change(self) -> Orders:
        """All are in: grow or shrink towards the target."""
        newcomers = [m.id for m in self.ranks.values() if m.where is Where.FREE and m.id not in self.members]
        both = (*self.members, *newcomers)
        goal = self._fitting(self.target)
        if goal == 0 or len(both) < goal:
            return self._fill()
        wanted = both[:goal]
        if wanted == self.members:
            return Orders() if self._coming() else self._dismiss(newcomers, Orders())
        before = self.members
        self._form(wanted)
        resize = Resize(self.command, self.epoch, wanted, self._leader())
        send: list[tuple[int, Message]] = [(rank, resize) for rank in before]
        return Orders(send=send + [(rank, self._form_message()) for rank in wanted if rank not in before])

    def _coming(self) -> bool:
        """Whether newcomers are on their way."""
        early = (Where.STARTING, Where.BUILDING)
        return self._asked_to_start > 0 or any(member.where in early for member in self.ranks.values())

    def _end(self) -> Orders:
        """Newcomers of a job that is over are ended, also those that were forming an epoch."""
        left = [member.id for member in self.ranks.values() if member.where is not Where.LEAVING]
        if left:
            self._form(())
        return self._dismiss(left, Orders())

    def _dismiss(self, spare: Iterable[int], orders: Orders) -> Orders:
        """End those that nothing is there for: who knows epochs leaves by itself; newcomers may not be as far yet."""
        for rank in spare:
            orders.send.append((rank, self._form_message()))
            if not self.ranks[rank].holds:
                orders.retire.append(rank)
            self.ranks[rank].where = Where.LEAVING
        return orders

    def _form_message(self) -> Form:
        return Form(self.epoch, self.members, self._leader(), self._form_command)

    def _form(self, members: tuple[int, ...]) -> None:
        self.epoch += 1
        self._form_command = self.next_command()  # however often it is said: all have to take up later commands
        self.members = members
        self._broken = False
        for rank in members:
            self.ranks[rank].where = Where.FORMING

    def _leader(self) -> int:
        holders = (rank for rank in self.members if rank in self.ranks and self.ranks[rank].holds)
        return next(holders, next(iter(self.members), -1))
