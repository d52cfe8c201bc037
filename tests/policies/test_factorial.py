"""The variants of a policy with its own and plain decisions."""

from brim.policies.factorial import PLAIN, switches, variants
from brim.policies.presets import find_policy
from brim.policies.sockets import SOCKETS


def test_there_is_a_variant_for_every_combination_of_own_decisions():
    whole = find_policy("goodput")

    found = variants(whole)

    assert list(found) == [(), ("size",), ("place",), ("size", "place")]
    for on, policy in found.items():
        for socket in SOCKETS:
            expected = getattr(whole, socket) if socket in on else PLAIN[socket]
            assert getattr(policy, socket) == expected
        assert (policy.period_ms, policy.gap_ms) == (whole.period_ms, whole.gap_ms)
    assert len({policy.name for policy in found.values()}) == 4


def test_a_plain_policy_has_nothing_to_switch():
    assert switches(find_policy("tiresias")) == ("order",)
    assert list(variants(find_policy("tiresias"))) == [(), ("order",)]
