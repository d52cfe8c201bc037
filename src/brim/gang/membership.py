"""Decides which ranks are in which generation. It has no clock, process or socket; the supervisor obeys its orders.

A rank is STARTING (no message yet), BUILDING (sent ``hello``), FREE (in no group: it is ready, or its group is broken),
FORMING (was sent the newest generation), IN (has formed it) or LEAVING (sent ``leaving``, or is to end).

The generation changes in two ways. In a planned change all members are IN: ranks that stay get ``resize``, new ranks
get ``form``. In an unplanned change a member died or a collective failed: the supervisor sends ``lost`` to the other
members at once, since the collective they are in may never fail by itself. When every living member is FREE, the
remaining ranks get ``form``. If a rank dies while a generation forms, the next ``form`` follows at once. A rank that
sends ``broken`` for an older generation while it is a member of the newest gets that ``form`` again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from brim.gang.messages import FormGroup, MemberLost, Message, ResizeGroup, StoreAddress

FAILED_FORMS_MAX: Final = 5
"""The job fails after this many generations in a row broke before all members had joined. Our choice."""


class Where(Enum):
    """The state of a rank in the membership protocol."""

    STARTING = "starting"
    BUILDING = "building"
    FREE = "free"
    FORMING = "forming"
    IN = "in"
    LEAVING = "leaving"


@dataclass(slots=True)
class Member:
    """One living rank. ``holds`` is true once it has joined a group, and so has the state of training."""

    id: int
    where: Where = Where.STARTING
    holds: bool = False


@dataclass(slots=True)
class Orders:
    """What the supervisor has to do: messages to send, a number of ranks to start, and surplus ranks to stop."""

    send: list[tuple[int, Message]] = field(default_factory=list)
    start: int = 0
    retire: list[int] = field(default_factory=list)
    hopeless: str = ""

    def and_then(self, later: Orders) -> Orders:
        """Return these orders followed by later ones."""
        return Orders(
            self.send + later.send, self.start + later.start, self.retire + later.retire,
            self.hopeless or later.hopeless,
        )  # fmt: skip


class Membership:
    """The membership of one gang.

    Args:
        size: Number of ranks at the start.
        replace: How many dead ranks are replaced by new ones; after that, the others continue without them.
    """

    def __init__(self, size: int, replace: int = 0) -> None:
        self.target = size
        self.generation = 0
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
        """Start the first ranks."""
        return self._settle()

    def added(self, rank: int) -> None:
        """A rank that was ordered is starting under this id."""
        self._asked_to_start -= 1
        self.ranks[rank] = Member(rank)

    def hello(self, rank: int) -> None:
        """The rank has connected."""
        if (member := self.ranks.get(rank)) and member.where is Where.STARTING:
            member.where = Where.BUILDING

    def ready(self, rank: int, sizes: Iterable[int] = ()) -> Orders:
        """The rank is ready to join a generation."""
        member = self.ranks.get(rank)
        if member is None or member.where not in (Where.STARTING, Where.BUILDING):
            return Orders()
        member.where = Where.FREE
        if possible := frozenset(size for size in sizes if size > 0):
            self.sizes = possible
        return self._settle()

    def address(self, rank: int, said: StoreAddress) -> Orders:
        """The leader's store is open: send its address to the other members."""
        if said.generation != self.generation or not self.members or rank != self._leader():
            return Orders()
        return Orders(send=[(other, said) for other in self.members if other != rank and other in self.ranks])

    def formed(self, rank: int, generation: int) -> Orders:
        """The rank has joined the group of this generation."""
        member = self.ranks.get(rank)
        if member is None or generation != self.generation or member.where is not Where.FORMING:
            return Orders()
        member.where, member.holds = Where.IN, True
        if self.all_are_in():
            self._failed_forms = 0
        return self._settle()

    def broken(self, rank: int, generation: int) -> Orders:
        """A collective of this generation failed, and the rank has left the group."""
        member = self.ranks.get(rank)
        if member is None or generation > self.generation or member.where is Where.LEAVING:
            return Orders()
        if generation < self.generation or rank not in self.members:
            again = Orders(send=[(rank, self._form_message())])  # it may have missed the newer `form`
            return again.and_then(self._tell_of_loss(generation, but=rank))
        if member.where is Where.FORMING and not self._broken:
            self._failed_forms += 1
        member.where = Where.FREE
        tell = Orders() if self._broken else self._tell_of_loss(generation, but=rank)
        self._broken = True
        return tell.and_then(self._settle())

    def waiting(self, rank: int, generation: int) -> Orders:
        """The rank has been in a collective of this generation for a while; a member that it waits for may be dead."""
        member = self.ranks.get(rank)
        if member is None or generation != self.generation or all(other in self.ranks for other in self.members):
            return Orders()
        return Orders(send=[(rank, MemberLost(generation))])

    def leaving(self, rank: int) -> Orders:
        """The rank is about to exit, as requested."""
        member = self.ranks.get(rank)
        if member is None:
            return Orders()
        member.where = Where.LEAVING
        return self._reform() if self._is_missed(rank) else self._settle()

    def is_wanted(self, rank: int) -> bool:
        """Whether the rank is a member that has not been asked to leave."""
        member = self.ranks.get(rank)
        leaving = member is None or member.where is Where.LEAVING
        return rank in self.members and not leaving and not self.closing and not self.finishing

    def gone(self, rank: int) -> Orders:
        """The rank's process has ended. `survives` tells beforehand whether the gang can continue without it."""
        member = self.ranks.pop(rank, None)
        if member is None:
            return Orders()
        if member.where in (Where.IN, Where.FORMING, Where.FREE) and rank in self.members:
            self._replace_or_shrink()
            if self._is_missed(rank) or (member.where is Where.FORMING and not self.closing and not self._is_over()):
                return self._reform()
            return self._tell_of_loss(self.generation).and_then(self._settle())
        if member.holds and member.where is not Where.LEAVING:  # not in the new generation, but does not know yet
            return self._tell_of_loss(self.generation - 1).and_then(self._settle())
        if not member.holds and member.where is not Where.LEAVING:  # a new rank that died before it joined
            self._replace_or_shrink()
        return self._settle()

    def not_started(self, rank: int) -> Orders:
        """The rank's process cannot be started: the gang continues with the ranks it has, and does not try again."""
        if self.ranks.pop(rank, None) is not None:
            self.target = max(1, self.target - 1)
        return self._settle()

    def can_do_without(self, rank: int) -> bool:
        """Whether the gang continues although this rank cannot be started: another rank has the state."""
        others = (member for member in self.ranks.values() if member.id != rank and member.where is not Where.LEAVING)
        return not self.closing and any(member.holds for member in others)

    def dissolve(self) -> Orders:
        """The gang fails: ranks that are in no group, now or later, must not wait for one."""
        self.closing = self._dissolved = True
        self._form(())
        return self._settle()

    def finished(self, rank: int) -> Orders:
        """The rank's script has ended normally. The others will end too, so no rank is started any more."""
        self.finishing = True
        self._replace = 0
        self.ranks.pop(rank, None)
        self.target = max(1, min(self.target, len(self.ranks)))
        return self._reform() if self._is_missed(rank) else self._settle()

    def survives(self, rank: int) -> bool:
        """Whether the gang can continue without this rank: enough others are left, or it may be replaced."""
        others = [member for member in self.ranks.values() if member.id != rank and member.where is not Where.LEAVING]
        if self.finishing and self.generation > 0:
            return not self.closing and any(member.holds for member in others)
        return not self.closing and (self._replace > 0 or (self.generation > 0 and self._fitting(len(others)) > 0))

    # -- what is asked ---------------------------------------------------------------------------------------------

    def resize(self, size: int) -> tuple[str, Orders]:
        """Change the number of ranks to ``size``; return why that is refused (or an empty text), and the orders."""
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
            return f"found size {size}, expected one of {sorted(self.sizes)}: the batch splits into these only"
        if not self.generation and all(member.where is Where.STARTING for member in self.ranks.values()):
            return "no rank has connected yet: try again later (a command that does not use brim.train never connects)"
        return ""

    def form_again(self, rank: int) -> Orders:
        """Send a rank that has reconnected the `form` that it may have missed."""
        member = self.ranks.get(rank)
        missed = member is not None and member.where is Where.FORMING and rank in self.members
        return Orders(send=[(rank, self._form_message())] if missed else [])

    def all_are_in(self) -> bool:
        """Whether all members have joined the newest generation."""
        return bool(self.members) and self._all(Where.IN)

    def is_void(self, command: int) -> bool:
        """Whether the newest generation came after this command, so that ranks which had not applied it never will."""
        return command < self._form_command

    def next_command(self) -> int:
        """Return the number for a new command to all ranks."""
        self.command += 1
        return self.command

    # -- decisions -------------------------------------------------------------------------------------------------

    def _tell_of_loss(self, generation: int, but: int = -1) -> Orders:
        """Send `Lost` to the ranks that may be in a collective of this generation, so that they leave it."""
        there = [member.id for member in self.ranks.values() if member.where in (Where.IN, Where.FORMING)]
        return Orders(send=[(rank, MemberLost(generation)) for rank in there if rank != but])

    def _all(self, where: Where) -> bool:
        return all(rank in self.ranks and self.ranks[rank].where is where for rank in self.members)

    def _is_missed(self, rank: int) -> bool:
        """Whether a generation was forming that cannot be completed without this rank."""
        forming = any(self.ranks[other].where is Where.FORMING for other in self.members if other in self.ranks)
        return rank in self.members and forming and not self.closing and not self._is_over()

    def _is_over(self) -> bool:
        """Whether the job has ended and no rank with its state is left, so that new ranks would begin it again."""
        return self.finishing and self.generation > 0 and not any(member.holds for member in self.ranks.values())

    def _replace_or_shrink(self) -> None:
        if self.closing:
            return
        if self._replace > 0:
            self._replace -= 1
        elif self.generation:
            self.target = max(1, self.target - 1)

    def _settle(self) -> Orders:
        """Return the orders that can be carried out now."""
        if self._dissolved:
            return Orders(send=[(m.id, self._form_message()) for m in self.ranks.values() if m.where is Where.FREE])
        if self.closing:
            return Orders()
        if self._is_over():
            return self._end()
        if self._failed_forms >= FAILED_FORMS_MAX:
            return Orders(hopeless=f"{self._failed_forms} process groups in a row broke before all ranks had joined")
        members = [self.ranks[rank] for rank in self.members if rank in self.ranks]
        members = [member for member in members if member.where is not Where.LEAVING]
        if self._broken or not members:
            if all(member.where is Where.FREE for member in members):
                return self._reform_when_enough()
            return Orders()
        if not all(member.where is Where.IN for member in members) or len(members) < len(self.members):
            return self._fill()  # a member has died and the others have not noticed yet, or a change is under way
        return self._change()

    def _fill(self) -> Orders:
        """Start the ranks that are missing to the target."""
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
        """Form a new generation of the remaining ranks at once; those with the state come first, in their order."""
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
        """All members have joined: grow or shrink towards the target."""
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
        resize = ResizeGroup(self.command, self.generation, wanted, self._leader())
        send: list[tuple[int, Message]] = [(rank, resize) for rank in before]
        return Orders(send=send + [(rank, self._form_message()) for rank in wanted if rank not in before])

    def _coming(self) -> bool:
        """Whether new ranks are starting."""
        early = (Where.STARTING, Where.BUILDING)
        return self._asked_to_start > 0 or any(member.where in early for member in self.ranks.values())

    def _end(self) -> Orders:
        """Stop the new ranks of a job that is over, including those that were forming a generation."""
        left = [member.id for member in self.ranks.values() if member.where is not Where.LEAVING]
        if left:
            self._form(())
        return self._dismiss(left, Orders())

    def _dismiss(self, spare: Iterable[int], orders: Orders) -> Orders:
        """Stop surplus ranks. One that has joined a group leaves by itself on `form`; new ranks get a signal."""
        for rank in spare:
            orders.send.append((rank, self._form_message()))
            if not self.ranks[rank].holds:
                orders.retire.append(rank)
            self.ranks[rank].where = Where.LEAVING
        return orders

    def _form_message(self) -> FormGroup:
        return FormGroup(self.generation, self.members, self._leader(), self._form_command)

    def _form(self, members: tuple[int, ...]) -> None:
        self.generation += 1
        self._form_command = self.next_command()  # sent again with this number, so that later commands still count
        self.members = members
        self._broken = False
        for rank in members:
            self.ranks[rank].where = Where.FORMING

    def _leader(self) -> int:
        holders = (rank for rank in self.members if rank in self.ranks and self.ranks[rank].holds)
        return next(holders, next(iter(self.members), -1))
