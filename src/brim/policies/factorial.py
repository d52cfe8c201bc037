"""The variants of a policy with some of its five decisions replaced by the plain ones: a full factorial design."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any, Final

from brim.policies.feed.even import Even
from brim.policies.fill.none import NoFill
from brim.policies.order.arrival import Arrival
from brim.policies.place.parts import Consolidate
from brim.policies.size.as_asked import AsAsked
from brim.policies.sockets import SOCKETS, Policy

PLAIN: Final[Mapping[str, Any]] = {
    "order": Arrival(), "size": AsAsked(), "place": Consolidate("skip"), "feed": Even(), "fill": NoFill(),
}
"""The plain part of each socket: first come, first served around what does not fit; sizes as asked; GPUs close
together; cores divided equally; no padding."""


def switches(policy: Policy) -> tuple[str, ...]:
    """Return the sockets in which a policy has another part than the plain one, in the order of ``SOCKETS``."""
    return tuple(socket for socket in SOCKETS if getattr(policy, socket) != PLAIN[socket])


def variants(policy: Policy) -> dict[tuple[str, ...], Policy]:
    """Return the policy with every combination of its own and plain parts, by the sockets that have its own.

    All have its period and its gap between rounds, so that they differ in their decisions only. The first has no part
    of its own, the last all of them.

    Example:
        >>> from brim.policies.presets import find_policy
        >>> list(variants(find_policy("goodput")))
        [(), ('size',), ('place',), ('size', 'place')]
    """
    own = switches(policy)
    chosen = [names for count in range(len(own) + 1) for names in combinations(own, count)]
    return {
        names: replace(
            policy, name=f"{policy.name}: {'+'.join(names) or 'plain'}",
            **{socket: PLAIN[socket] for socket in own if socket not in names},
        )
        for names in chosen
    }
