"""Generations: whoever dies, leaves, comes or breaks whenever, those who are left end up together in one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.gang.membership import GangMembership, MembershipActions, MemberState
from brim.gang.messages import FormGroup, MemberLost, ResizeGroup, StoreAddress
from tests.sampling import sample


class Gang:
    """Model ranks that obey the protocol at their own pace, around a real Membership.

    Where they are ``stuck`` no collective fails by itself: a rank learns of a loss by word of the supervisor alone.
    """

    def __init__(self, size, sizes=(), replace=0, *, stuck=False, keeps=False):
        self.stuck = stuck
        self.membership = GangMembership(size, replace, keeps_size=keeps)
        self.sizes = sizes
        self.mail = {}  # messages on their way, by rank
        self.generation_of = {}  # generation each living rank is training in, or None
        self.wants = {}  # the newest command a rank has received and not yet acted on
        self.next_id = 0
        self.members_of = {}  # by generation
        self.heard = {}  # the highest generation each rank has heard of: told twice, formed once
        self.retired = []
        self.carry_out(self.membership.begin())

    def carry_out(self, actions):
        assert not actions.failure
        for rank, message in actions.send:
            self.mail.setdefault(rank, []).append(message)
        for rank in actions.stop:
            self.retired.append(rank)
            self.die(rank)
        for _ in range(actions.start):
            rank, self.next_id = self.next_id, self.next_id + 1
            self.membership.added(rank)
            self.generation_of[rank] = None
            self.mail.setdefault(rank, [])

    def die(self, rank):
        del self.generation_of[rank]
        self.mail.pop(rank, None)
        self.wants.pop(rank, None)
        self.carry_out(self.membership.exited(rank))

    def group(self, rank):
        """Those who are training in the same group now, and whether all are there."""
        members = self.members_of.get(self.generation_of[rank], ())
        return members, all(self.generation_of.get(other) == self.generation_of[rank] for other in members)

    def act(self, rank):
        """One thing the rank might do next; whether it did anything."""
        state = self.membership.ranks[rank].state
        if state in (MemberState.STARTING, MemberState.INITIALIZING):
            self.membership.connected(rank)
            self.carry_out(self.membership.ready(rank, self.sizes))
            return True
        if self.mail[rank]:
            message = self.mail[rank].pop(0)
            if isinstance(message, MemberLost):
                if self.generation_of[rank] is not None and self.generation_of[rank] <= message.generation:
                    self.break_group(rank)
            elif isinstance(message, FormGroup) or (
                isinstance(message, ResizeGroup) and self.generation_of[rank] is not None
            ):
                if message.generation > self.heard.get(rank, 0):
                    self.heard[rank] = message.generation
                    self.wants[rank] = message
                self.members_of[message.generation] = message.members
            return True
        want = self.wants.get(rank)
        training = self.generation_of[rank] is not None
        if training:
            _, whole = self.group(rank)
            if not whole and not self.stuck:
                self.break_group(rank)
                return True
            if isinstance(want, FormGroup):
                self.generation_of[rank] = None  # at once; the others find their group broken
                return True
            if not whole or not self.agreed(rank):
                return False
            for other in self.group(rank)[0]:
                self.generation_of[other] = None  # all leave the old group at the same step
            return True
        if want is None:
            return False
        if rank not in want.members:
            self.carry_out(self.membership.leaving(rank))
            self.die(rank)
            return True
        return self.join(want)

    def break_group(self, rank):
        """Out of a broken group; what was to be done at an agreed step is void, a form comes."""
        generation, self.generation_of[rank] = self.generation_of[rank], None
        if isinstance(self.wants.get(rank), ResizeGroup):
            del self.wants[rank]
            self.heard[rank] = generation
        self.carry_out(self.membership.group_broken(rank, generation))

    def agreed(self, rank):
        return all(isinstance(self.wants.get(other), ResizeGroup) for other in self.group(rank)[0])

    def join(self, want):
        """A group forms when all its members want it and none is in another."""
        for other in want.members:
            wanted = getattr(self.wants.get(other), "generation", 0)
            if self.generation_of.get(other, 0) is not None or wanted != want.generation:
                return False
        for other in want.members:
            self.generation_of[other] = want.generation
        for other in want.members:
            del self.wants[other]
            self.carry_out(self.membership.group_formed(other, want.generation))
        return True

    def run(self):
        for _ in range(2_000):
            acted = [self.act(rank) for rank in list(self.generation_of) if rank in self.generation_of]
            if not any(acted):
                return
        raise AssertionError("never comes to rest")

    def check(self):
        members = self.membership.members
        assert set(self.generation_of) == set(members), (self.generation_of, members)
        assert all(generation == self.membership.generation for generation in self.generation_of.values())
        if self.sizes:
            assert len(members) in self.sizes


@settings(max_examples=sample(300, 100))
@given(st.sampled_from([(), (1, 2, 4), (2,)]), st.integers(0, 3), st.data())
def test_after_any_storm_all_living_ranks_are_in_one_generation(sizes, replace, data):
    """A resize may also name ranks that must not stay: even all of them."""
    unwanted, killed = frozenset(), False
    stuck, keeps = data.draw(st.booleans()), data.draw(st.booleans())
    gang = Gang(data.draw(st.sampled_from(sizes or [1, 2, 4])), sizes, replace, stuck=stuck, keeps=keeps)
    gang.run()
    gang.check()
    generations = [gang.membership.generation]
    for _ in range(data.draw(st.integers(0, 25))):
        what = data.draw(st.sampled_from(["act", "act", "act", "act", "kill", "resize", "break"]))
        living = sorted(gang.generation_of)
        if what == "resize":
            size = data.draw(st.sampled_from([1, 2, 3, 4]))
            named = frozenset(data.draw(st.lists(st.sampled_from(living), max_size=3)))
            refusal, actions = gang.membership.resize(size, named)
            if not named:
                assert bool(refusal) == (bool(gang.membership.sizes) and size not in gang.membership.sizes)
            unwanted, killed = (unwanted, killed) if refusal else (named, False)
            gang.carry_out(actions)
        elif what == "kill":
            victim = data.draw(st.sampled_from(living))
            if gang.membership.can_continue_without(victim):
                gang.die(victim)
                killed = True
        elif what == "break":
            training = [rank for rank in living if gang.generation_of[rank] is not None]
            if training:
                rank = data.draw(st.sampled_from(training))
                gang.break_group(rank)
        else:
            gang.act(data.draw(st.sampled_from(living)))
        assert gang.membership.generation >= generations[-1]
        generations.append(gang.membership.generation)
        if not gang.generation_of:
            return
    gang.run()
    gang.check()
    assert not keeps or len(gang.membership.members) == gang.membership.largest_possible(gang.membership.target)
    members = set(gang.membership.members)
    too_few = members <= unwanted or sizes == (2,)  # without those that were to leave
    assert not members & unwanted or (killed and too_few)


def formed(size, **options):
    gang = Gang(size, **options)
    gang.run()
    return gang


def test_a_group_that_breaks_after_a_resize_is_formed_of_those_that_are_to_stay():
    gang = formed(2)
    gang.membership.group_broken(1, 1)
    assert gang.membership.resize(1, frozenset({0})) == ("", MembershipActions())
    gang.carry_out(gang.membership.group_broken(0, 1))
    gang.run()
    assert gang.membership.members == (1,)


def test_a_rank_that_is_leaving_is_no_place_for_the_training_state():
    gang = formed(2)
    refusal, actions = gang.membership.resize(1, frozenset({0}))
    assert not refusal
    gang.carry_out(actions)
    refusal, actions = gang.membership.resize(1, frozenset({1}))
    assert not refusal
    gang.carry_out(actions)
    gang.run()
    assert gang.membership.members == (2,)


@pytest.mark.parametrize(("size", "sizes"), [
    (1, ()), (1, (1, 2, 4)), (2, (1, 2, 4)), (4, (1, 2, 4)), (2, (2,)), (4, (4,)),
])  # fmt: skip
def test_a_gang_of_which_no_rank_stays_hands_its_state_to_those_that_come(size, sizes):
    gang = formed(size, sizes=sizes)
    old = frozenset(gang.membership.members)
    refusal, actions = gang.membership.resize(size, old)
    assert not refusal
    gang.carry_out(actions)
    again, actions = gang.membership.resize(size, old)
    assert (again, actions.start, actions.stop) == ("", 0, [])  # the same once more changes nothing
    gang.run()
    gang.check()
    assert not old & set(gang.membership.members)
    assert len(gang.membership.members) == size
    bridge = gang.members_of[gang.membership.generation - 1]
    assert old & set(bridge), "the state came from one that had it"
    assert set(gang.membership.members) & set(bridge)


def test_a_gang_whose_new_ranks_die_before_they_join_stays_where_it_is():
    for size, sizes in ((1, (1, 2, 4)), (2, (2,))):
        gang = formed(2, sizes=sizes)
        _, actions = gang.membership.resize(size, frozenset({0, 1}))
        gang.carry_out(actions)
        gang.die(2)
        gang.run()
        gang.check()
        assert gang.membership.members == (0, 1)
        assert sorted(gang.generation_of) == [0, 1]


def test_an_old_rank_that_dies_in_a_move_makes_the_gang_no_smaller():
    for sizes in ((1, 2, 4), (2,)):
        gang = formed(2, sizes=sizes)
        _, actions = gang.membership.resize(2, frozenset({0, 1}))
        gang.carry_out(actions)
        assert gang.membership.can_continue_without(0)
        gang.die(0)
        gang.run()
        gang.check()
        assert gang.membership.members == (2, 3)


def test_a_gang_that_is_too_small_for_a_group_without_the_rank_it_was_to_leave_keeps_that():
    gang = formed(2, sizes=(2,))
    _, actions = gang.membership.resize(2, frozenset({0}))
    gang.carry_out(actions)
    gang.die(1)
    gang.run()
    gang.check()
    assert gang.membership.members == (0, 2)


def test_a_group_that_lost_a_rank_while_it_formed_is_formed_with_the_next_one():
    gang = formed(2, sizes=(2,), replace=1)
    gang.break_group(0)
    gang.break_group(1)
    gang.die(0)
    gang.run()
    gang.check()
    assert gang.membership.members == (1, 2)


def test_a_job_that_runs_on_one_rank_only_cannot_hand_its_state_on():
    gang = formed(1, sizes=(1,))
    assert "none can join to receive it" in gang.membership.resize(1, frozenset({0}))[0]


def test_the_first_generation_waits_for_all():
    gang = Gang(3)
    assert not gang.membership.ready(0).send
    assert not gang.membership.ready(1).send
    actions = gang.membership.ready(2)
    assert actions.send == [(rank, FormGroup(1, (0, 1, 2), 0, 1)) for rank in range(3)]


@pytest.mark.parametrize(("size", "asked"), [(1, 3), (4, 2), (4, 1), (2, 2)])
def test_a_resize_before_the_first_generation_holds_for_it(size, asked):
    gang = Gang(size)
    gang.membership.connected(0)
    refusal, actions = gang.membership.resize(asked)
    assert not refusal
    gang.carry_out(actions)
    gang.run()
    gang.check()
    assert len(gang.membership.members) == asked


def test_a_resize_before_any_rank_has_connected_is_refused_with_the_reason():
    refusal, actions = Gang(2).membership.resize(4)
    assert refusal.startswith("no rank has connected yet: try again later")
    assert (actions.send, actions.start, actions.stop) == ([], 0, [])


def test_growth_names_survivors_first_and_one_of_them_leads():
    gang = formed(2)
    refusal, actions = gang.membership.resize(4)
    assert (refusal, actions.start, actions.send) == ("", 2, [])
    gang.carry_out(actions)
    gang.membership.ready(2)
    sent = dict(gang.membership.ready(3).send)
    assert sent[0] == ResizeGroup(2, 2, (0, 1, 2, 3), 0)
    assert sent[2] == FormGroup(2, (0, 1, 2, 3), 0, 2)


def test_the_address_goes_to_the_other_members_and_from_the_leader_only():
    gang = formed(3)
    said = StoreAddress(1, "127.0.0.1", 1234)
    assert [rank for rank, _ in gang.membership.store_address(0, said).send] == [1, 2]
    assert not gang.membership.store_address(1, said).send
    assert not gang.membership.store_address(0, StoreAddress(9, "x", 1)).send


def test_all_others_are_told_of_a_death_whoever_has_noticed_it():
    gang = formed(4)
    actions = gang.membership.group_broken(0, 1)  # its collective has failed; those of ranks 2 and 3 never will
    assert dict(actions.send) == {1: MemberLost(1), 2: MemberLost(1), 3: MemberLost(1)}
    actions = gang.membership.exited(1)
    assert dict(actions.send) == {2: MemberLost(1), 3: MemberLost(1)}


def test_a_death_after_the_word_of_a_smaller_generation_ends_the_one_before():
    gang = formed(4)
    _, actions = gang.membership.resize(2)
    assert {type(message) for _, message in actions.send} == {ResizeGroup}
    actions = gang.membership.exited(3)  # before the agreed step, which the others may never reach
    assert dict(actions.send) == {0: MemberLost(1), 1: MemberLost(1), 2: MemberLost(1)}


def test_a_rank_that_was_to_leave_stays_where_the_one_that_was_to_stay_has_died():
    gang = formed(2)
    gang.carry_out(gang.membership.resize(1)[1])
    gang.die(0)
    gang.run()
    assert gang.generation_of == {1: 3}


def test_a_rank_that_waits_for_one_that_has_finished_is_told():
    gang = formed(2)
    assert not gang.membership.waiting(0, 1).send
    gang.membership.finished(1)
    assert gang.membership.waiting(0, 1).send == [(0, MemberLost(1))]


def test_survivors_form_when_all_have_said_broken():
    gang = formed(4)
    gang.die(1)
    assert dict(gang.membership.group_broken(0, 1).send) == {2: MemberLost(1), 3: MemberLost(1)}
    assert not gang.membership.group_broken(3, 1).send
    actions = gang.membership.group_broken(2, 1)
    assert {rank for rank, _ in actions.send} == {0, 2, 3}
    assert actions.send[0][1].members == (0, 2, 3)


def test_a_job_that_needs_a_power_of_two_goes_on_with_two_of_three():
    gang = formed(4, sizes=(1, 2, 4))
    gang.die(0)
    gang.run()
    assert gang.membership.members == (1, 2)
    assert sorted(gang.generation_of) == [1, 2]


def test_a_dead_rank_is_replaced_when_that_was_asked_for():
    gang = formed(4, sizes=(1, 2, 4), replace=1)
    gang.die(0)
    gang.run()
    assert gang.membership.members == (1, 2, 3, 4)


def test_a_gang_that_keeps_its_size_waits_for_the_rank_that_replaces_a_dead_one():
    gang = formed(2, sizes=(1, 2, 4), replace=1, keeps=True)
    gang.die(1)
    gang.act(0)  # its group is broken
    assert (gang.membership.generation, gang.membership.members) == (1, (0, 1))
    gang.run()
    assert gang.membership.members == (0, 2)
    assert not gang.membership.can_continue_without(2), "none is replaced any more"


def test_a_gang_that_keeps_its_size_goes_on_only_with_a_rank_that_has_the_state():
    gang = formed(2, replace=3, keeps=True)
    gang.die(1)
    assert not gang.membership.can_continue_without(0)
    assert not formed(1, replace=3, keeps=True).membership.can_continue_without(0)


def test_a_gang_that_keeps_its_size_does_so_when_it_cannot_grow_and_ends_when_a_dead_rank_cannot_be_replaced():
    gang = formed(2, keeps=True)
    gang.carry_out(gang.membership.resize(3)[1])
    assert gang.membership.can_continue_without(2)
    assert gang.membership.can_continue_unstarted(2)
    gang = formed(2, replace=1, keeps=True)
    gang.die(1)
    assert not gang.membership.can_continue_without(2)
    assert not gang.membership.can_continue_unstarted(2)


def test_growth_that_is_taken_back_ends_the_newcomers():
    gang = formed(2)
    gang.carry_out(gang.membership.resize(4)[1])
    gang.carry_out(gang.membership.resize(2)[1])
    assert gang.retired == [2, 3]
    gang.run()
    gang.check()


def test_after_a_rank_finished_nobody_is_started():
    gang = formed(4, replace=3)
    del gang.generation_of[0]
    gang.carry_out(gang.membership.finished(0))
    gang.run()
    assert gang.next_id == 4
    assert gang.membership.resize(8)[0]


@pytest.mark.parametrize("acts", [0, 1, 2, 3, 4, 5, 6])
def test_newcomers_of_a_job_that_has_finished_do_not_begin_it_anew(acts):
    gang = formed(2)
    gang.carry_out(gang.membership.resize(4)[1])
    for _ in range(acts):
        next((rank for rank in (2, 3) if gang.act(rank)), None)
    for rank in (0, 1):
        del gang.generation_of[rank]
        gang.carry_out(gang.membership.finished(rank))
    gang.run()
    assert sorted(gang.retired) == [2, 3]


def test_a_job_that_is_to_end_does_not_survive_those_who_hold_its_state():
    gang = formed(1)
    gang.carry_out(gang.membership.resize(2)[1])
    assert gang.membership.can_continue_without(0)
    gang.membership.finishing = True
    assert not gang.membership.can_continue_without(0)
    assert gang.membership.can_continue_without(1)


def test_generations_that_never_get_together_end_the_gang():
    membership = GangMembership(2)
    actions = membership.begin()
    for rank in range(actions.start):
        membership.added(rank)
    for rank in range(2):
        membership.ready(rank)
    failure = []
    for _ in range(10):
        failure += [membership.group_broken(rank, membership.generation).failure for rank in range(2)]
    assert any(failure)
