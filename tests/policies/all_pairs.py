"""Every shipped size part with every shipped place part: ``NUMBA_BOUNDSCHECK=1 python -m tests.policies.all_pairs 6``.

Run by ``test_all_pairs.py`` in a process of its own, so that the compiled code there checks its indices.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

import hypothesis
import numpy as np

from brim.compiled import njit
from brim.policies.feed.even import Even
from brim.policies.fill.none import NoFill
from brim.policies.order.arrival import Arrival
from brim.policies.order.attained import LeastAttained
from brim.policies.place.parts import MISFIT
from brim.policies.presets import PARTS, PRESETS
from brim.policies.sockets import Policy, Sizes
from brim.testing import job, snapshot_of
from brim.testing.rules import beliefs_of, check_decision, decide
from brim.testing.strategies import snapshots

EXAMPLES = int(sys.argv[-1]) if __name__ == "__main__" else 0
"""How many situations are drawn for each pair."""


@dataclass(frozen=True)
class Least:
    """As few GPUs as a job can run on."""

    resizes_running: ClassVar[bool] = True

    def __call__(self, snapshot, beliefs, order):
        return Sizes(gpus=snapshot.jobs.gpus_min)


@dataclass(frozen=True)
class Turns:
    """Least, most or none, by the number of the job and the time: sizes that change in every direction."""

    resizes_running: ClassVar[bool] = True

    def __call__(self, snapshot, beliefs, order):
        jobs = snapshot.jobs
        turn = (jobs.submit_ms // 1000 + jobs.gpus) % 4
        return Sizes(gpus=np.select([turn == 0, turn == 1, turn == 2], [0, jobs.gpus_min, jobs.gpus_max], jobs.gpus))


@njit
def out_of_bounds(values, at):
    """Reads past the end."""
    return values[at]


def pairs(*, every_order):
    """A policy for every pair, with every order or with the orders in turn; those that need the truth are oracles."""
    truth = type(PRESETS["optimus"].size)
    sizes = [*((kind(), kind is truth) for kind in PARTS["size"]), (Least(), False), (Turns(), False)]
    with_misfit = [kind for kind in PARTS["place"] if "misfit" in kind.__dataclass_fields__]
    places = [
        *(kind(misfit=misfit) for kind in with_misfit for misfit in MISFIT),
        *(kind() for kind in PARTS["place"] if kind not in with_misfit),
    ]
    for order_row, order in enumerate((Arrival(), LeastAttained())):
        for size_row, (size, oracle) in enumerate(sizes):
            for place in places if every_order else places[(order_row + size_row) % 2 :: 2]:
                yield Policy(name=f"{type(order).__name__}, {size}, {place}", order=order, size=size, place=place,
                             feed=Even(), fill=NoFill(), oracle=oracle)


def started_below_what_it_asks():
    """A gang that starts with fewer GPUs than asked, and one behind it that gets the reservation."""
    wide = {"gpus": 4, "gpus_min": 1, "gpus_max": 4, "batch": 8, "batch_min": 8, "batch_max": 64, "local_batch_max": 64}
    return snapshot_of("1x4xT4", job(**wide), job(**wide), job(at=1, gpus=4), job(at=1), now=5)


def try_out(policy, seed):
    """Decide in a few random situations, jobs resized in every direction among them."""
    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None, phases=[hypothesis.Phase.generate],
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(snapshots(elastic_too=True))
    def run(snapshot):
        decide(snapshot, beliefs_of(snapshot, policy), policy)

    run()


def main() -> None:
    """Show that indices are checked, then try all pairs."""
    try:
        out_of_bounds(np.zeros(2), 2)
    except IndexError:
        sys.stdout.write("bounds are checked\n")
    tried = 0
    for policy in pairs(every_order=EXAMPLES > 1):
        check_decision(started_below_what_it_asks(), policy)
        try_out(policy, seed=tried)
        tried += 1
    sys.stdout.write(f"{tried} pairs\n")


if __name__ == "__main__":
    main()
