"""Five jobs worked out by hand under every preset.

The case, unless a test draws its own: two GPUs on one node, no costs, times in hours.

==== ====== ==== === ===== ====
job  submit GPUs run limit user
==== ====== ==== === ===== ====
A    0      1    4   4     ann
B    1      2    2   2     bob
C    1      1    3   3     ann
D    2      1    1   6     eve
E    3      1    2   2     bob
==== ====== ==== === ===== ====
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.policies.order.tiresias import ServiceQueues
from brim.policies.presets import PRESETS
from brim.testing import job, small_trace

from .exact import run, stretches

H = 3600
FIVE = small_trace(
    job(name="A", at=0, gpus=1, run=4 * H, limit=4 * H, user="ann"),
    job(name="B", at=1 * H, gpus=2, run=2 * H, limit=2 * H, user="bob"),
    job(name="C", at=1 * H, gpus=1, run=3 * H, limit=3 * H, user="ann"),
    job(name="D", at=2 * H, gpus=1, run=1 * H, limit=6 * H, user="eve"),
    job(name="E", at=3 * H, gpus=1, run=2 * H, limit=2 * H, user="bob"),
)


def seconds(text: str) -> int:
    """``h`` or ``h:mm``."""
    hours, _, minutes = text.partition(":")
    return int(hours) * H + int(minutes or 0) * 60


def check(policy: str, said: str, trace=FIVE, cluster: str = "1x2xT4", unit=seconds) -> None:
    """Compare a table of ``job: from-to from-to`` lines with the replay, by the compiled loop and the general one."""
    want = {}
    for line in said.strip().splitlines():
        name, _, spans = line.strip().partition(":")
        want[name] = [tuple(unit(part) for part in span.split("-")) for span in spans.split()]
    for compiled in (True, False):
        outcome = run(trace, cluster, policy, compiled=compiled)
        got = {name: stretches(outcome, row) for row, name in enumerate(trace.job_id)}
        assert got == want
        assert outcome.preemptions.tolist() == [len(want[name]) - 1 for name in trace.job_id]


def test_fifo():
    """B needs both GPUs and stops everybody behind it until A ends.

    ::

        hour  0   1   2   3   4   5   6   7   8   9
        gpu 0 A   A   A   A   B   B   C   C   C
        gpu 1                 B   B   D   E   E
    """
    check("fifo", """
        A: 0-4
        B: 4-6
        C: 6-9
        D: 6-7
        E: 7-9
    """)


def test_backfill():
    """B is reserved for 4, when A ends; C ends at 4 and may go before it. D asks for six hours and may not.

    ::

        hour  0   1   2   3   4   5   6   7   8
        gpu 0 A   A   A   A   B   B   D
        gpu 1     C   C   C   B   B   E   E
    """
    check("backfill", """
        A: 0-4
        B: 4-6
        C: 1-4
        D: 6-7
        E: 6-8
    """)


def test_sjf():
    """Nobody is interrupted. At 1 B (2) comes first and does not fit, C (3) does. At 4: B (2), E (2), D (says 6).

    ::

        hour  0   1   2   3   4   5   6   7   8
        gpu 0 A   A   A   A   B   B   E   E
        gpu 1     C   C   C   B   B   D
    """
    check("sjf", """
        A: 0-4
        B: 4-6
        C: 1-4
        D: 6-7
        E: 6-8
    """)


def test_sjf_oracle():
    """As sjf, but it knows that D needs one hour: at 4 D goes first, B no longer fits, E does.

    ::

        hour  0   1   2   3   4   5   6   7   8
        gpu 0 A   A   A   A   D       B   B
        gpu 1     C   C   C   E   E   B   B
    """
    check("sjf-oracle", """
        A: 0-4
        B: 6-8
        C: 1-4
        D: 4-5
        E: 4-6
    """)


def test_srtf():
    """At 1 B (2 left) comes before A (3 left) and C (3). At 3: E (2), A (3), C (3), D (says 6). At 5 A has 1 left.

    ::

        hour  0   1   2   3   4   5   6   7   8
        gpu 0 A   B   B   E   E   C   C   C
        gpu 1     B   B   A   A   A   D
    """
    check("srtf", """
        A: 0-1 3-6
        B: 1-3
        C: 5-8
        D: 6-7
        E: 3-5
    """)


def test_srtf_oracle():
    """At 2 D (1) ties with B (1 left), which runs and stays. At 3: D (1), E (2); at 4 A (3); at 5 C (3).

    ::

        hour  0   1   2   3   4   5   6   7   8
        gpu 0 A   B   B   D   A   A   A
        gpu 1     B   B   E   E   C   C   C
    """
    check("srtf-oracle", """
        A: 0-1 4-7
        B: 1-3
        C: 5-8
        D: 3-4
        E: 3-5
    """)


def test_las():
    """Levels are whole GPU-hours received; inside a level who runs goes first, then by submission.

    ::

        1:00  A is at level 1, B and C at 0: B takes both GPUs
        1:30  B has 2 x 0.5 = 1: C (0) takes one, A (level 1, before B) the other
        2:00  D (0): A (1) leaves
        3:00  D ends, E (0) takes its place; C has 1.5
        3:30  C has 2: A (1.5, level 1) takes its place
        4:00  E and B are at 1, A at 2: B needs both and E runs, so nothing
        5:00  E ends; B (1) takes both, A (3) leaves with 1 h left
        6:00  B has 3: C (2) takes one; of A and B (both 3, neither runs on) A is first
        7:00  C and A end; B has half an hour left

        hour  0       1       2       3       4       5       6       7
        gpu 0 A   A   B   C   C   C   C   A   A   A   B   B   C   C   B
        gpu 1         B   A   D   D   E   E   E   E   B   B   A   A   B
    """
    check("las", """
        A: 0-1 1:30-2 3:30-5 6-7
        B: 1-1:30 5-6 7-7:30
        C: 1:30-3:30 6-7
        D: 2-3
        E: 3-5
    """)


def test_tiresias():
    """Queue 0 below 3,250 GPU-s, then queue 1; inside a queue strictly by submission; a round every minute.

    ::

        1:00  A has 3,600 (queue 1); B (queue 0) takes both
        1:28  B has 2 x 1,680 (queue 1): C (0), then A (1, submitted before B)
        2:00  D (0) takes A's GPU
        2:23  C has 3,300 (queue 1): order D, A, B, C; A takes C's GPU
        2:55  D has 3,300: order A, B, C, D; B needs both, C takes D's GPU
        3:00  E (0): order E, A, B, C, D; C, the last that runs, leaves
        3:55  E has 3,300: order A, B, C, D, E; C takes E's GPU
        4:51  A ends (1:00 + 0:32 + 2:28); B takes both, C leaves
        6:23  B ends (0:28 + 1:32); C has 1:04 left, D 0:05
        6:28  D ends; E has 1:05 left
    """
    check("tiresias", """
        A: 0-1 1:28-2 2:23-4:51
        B: 1-1:28 4:51-6:23
        C: 1:28-2:23 2:55-3 3:55-4:51 6:23-7:27
        D: 2-2:55 6:23-6:28
        E: 3-3:55 6:28-7:33
    """)


def test_gittins():
    """Before 50 jobs have ended: least attained service in half octaves; one GPU, seconds, rounds on events only.

    ::

        A at 0 runs 40, B at 10 runs 10, C at 12 runs 30, D at 30 runs 5, E at 30 runs 20

        10  A has 10 s, B none: B
        12  B has 2 s, C none: C
        30  C has 18 s, D and E none: D, which stands first
        35  D ends: E has none
        55  E ends: B has 2 s, A 10 s, C 18 s: B
        63  B ends: A
        93  A ends: C

        0         10  12             30   35         55      63            93      105
        AAAAAAAAAA BB CCCCCCCCCCCCCC DDDD EEEEEEEEEE BBBBBBB AAAAAAAAAAAAA CCCCCCC
    """
    trace = small_trace(
        job(name="A", at=0, run=40), job(name="B", at=10, run=10), job(name="C", at=12, run=30),
        job(name="D", at=30, run=5), job(name="E", at=30, run=20),
    )
    check("gittins", """
        A: 0-10 63-93
        B: 10-12 55-63
        C: 12-30 93-105
        D: 30-35
        E: 35-55
    """, trace, "1x1xT4", int)


def test_fair():
    """Three users on one GPU; keys in minutes: GPU time received, and 60 for this job and each before it of its user.

    ::

        A (ann) at 0 runs 2:00, B (ann) at 0 runs 1:00, C (bob) at 0:10 runs 1:00, D (bob) at 0:40 runs 0:30,
        E (eve) at 1:00 runs 0:20

        0:00  A 60, B 120: A
        0:10  C 60, but A began less than 30 minutes ago
        0:30  A 30 + 60, C 60: C
        1:00  E 60, A 90, C 90: E
        1:20  E ends: A 90 (older use, decayed more), C 90: A
        1:50  A 120, C 90, D 150: C
        2:20  C ends: A 120 (decayed more), D 120: A
        2:50  A 150, D 120: D
        3:20  D ends: A 150, B 210: A
        3:50  A ends: B

        0:00 0:30 1:00 1:20 1:50 2:20 2:50 3:20 3:50      4:50
        A    C    E    A    C    A    D    A    B
    """
    trace = small_trace(
        job(name="A", at=0, run=2 * H, user="ann"), job(name="B", at=0, run=H, user="ann"),
        job(name="C", at=600, run=H, user="bob"), job(name="D", at=2400, run=H / 2, user="bob"),
        job(name="E", at=H, run=1200, user="eve"),
    )
    check("fair", """
        A: 0-0:30 1:20-1:50 2:20-2:50 3:20-3:50
        B: 3:50-4:50
        C: 0:30-1 1:50-2:20
        D: 2:50-3:20
        E: 1-1:20
    """, trace, "1x1xT4")


AS_FIFO = """
    A: 0-4
    B: 4-6
    C: 6-9
    D: 6-7
    E: 7-9
"""


def test_elastic():
    """Rigid jobs are admitted in order of arrival, the first misfit ends it, and who runs stays: as under fifo."""
    check("elastic", AS_FIFO)


def test_elastic_fixed():
    check("elastic-fixed", AS_FIFO)


def test_elastic_max():
    check("elastic-max", AS_FIFO)


def test_elastic_random():
    check("elastic-random", AS_FIFO)


def test_optimus():
    """Everybody's fewest GPUs in order of arrival, misfits skipped: C goes before B, at 4 B comes first.

    ::

        hour  0   1   2   3   4   5   6   7   8
        gpu 0 A   A   A   A   B   B   D
        gpu 1     C   C   C   B   B   E   E
    """
    check("optimus", """
        A: 0-4
        B: 4-6
        C: 1-4
        D: 6-7
        E: 6-8
    """)


def test_tiresias_pollux():
    """Nobody reaches 16 GPU-hours: one queue by submission. B needs both GPUs and may not drive out A, who is first."""
    check("tiresias-pollux", """
        A: 0-4
        B: 4-6
        C: 1-4
        D: 6-7
        E: 6-8
    """)


def test_pollux():
    """The more jobs run the better, at equal speed-ups; of equal choices the fewer GPUs, then the earlier jobs.

    At 4 D and E together beat B; at 5 E alone takes fewer GPUs than B; B goes at 6.

    ::

        hour  0   1   2   3   4   5   6   7
        gpu 0 A   A   A   A   D       B   B
        gpu 1     C   C   C   E   E   B   B
    """
    check("pollux", """
        A: 0-4
        B: 6-8
        C: 1-4
        D: 4-5
        E: 4-6
    """)


def test_goodput():
    """One GPU. The young B replaces A once A is worth less than B and the 30 s that B's start is believed to cost.

    With log(100) for having a GPU at all: (1 + work / 30 min) ** -0.25 * log(100) < log(100) + log(1 - 30 / 120), that
    is work > 530 s. Rounds come every minute, so B starts at 0:09; A goes on when it has ended.
    """
    trace = small_trace(job(name="A", at=0, run=2 * H), job(name="B", at=300, run=300))
    check("goodput", """
        A: 0-0:09 0:14-2:05
        B: 0:09-0:14
    """, trace, "1x1xT4")


def test_brim():
    """One GPU. A new job is believed to need 30 min; A is too, until it has run for that, and then as much again.

    So the young B replaces A at the round after 0:30, and A goes on when it has ended.
    """
    trace = small_trace(job(name="A", at=0, run=2 * H), job(name="B", at=300, run=300))
    check("brim", """
        A: 0-0:31 0:36-2:05
        B: 0:31-0:36
    """, trace, "1x1xT4")


def test_brim_energy():
    """As ``test_goodput``, whose weights it has for jobs of one size."""
    trace = small_trace(job(name="A", at=0, run=2 * H), job(name="B", at=300, run=300))
    check("brim-energy", """
        A: 0-0:09 0:14-2:05
        B: 0:09-0:14
    """, trace, "1x1xT4")


def test_brim_cost():
    """See ``test_brim_energy``."""
    trace = small_trace(job(name="A", at=0, run=2 * H), job(name="B", at=300, run=300))
    check("brim-cost", """
        A: 0-0:09 0:14-2:05
        B: 0:09-0:14
    """, trace, "1x1xT4")


AS_FIFO = """
    A: 0-4
    B: 4-6
    C: 6-9
    D: 6-7
    E: 7-9
"""


@pytest.mark.slow
def test_brim_balanced():
    """Sizes as asked, no shared GPUs because nothing is known of the jobs: what is left is fifo."""
    check("brim-balanced", AS_FIFO)


@pytest.mark.slow
def test_adloader():
    """It orders and places as fifo does, and the cores of this cluster, which it divides, are not known."""
    check("adloader", AS_FIFO)


def test_adloader_even():
    """See ``test_adloader``."""
    check("adloader-even", AS_FIFO)


def test_eaco():
    """Of no job the utilisation and the GPU memory are known, so none shares GPUs: what is left is fifo."""
    check("eaco", AS_FIFO)


def test_gandiva_pack():
    """See ``test_eaco``."""
    check("gandiva-pack", AS_FIFO)


def test_fifo_packed():
    """See ``test_eaco``."""
    check("fifo-packed", AS_FIFO)


TWO = small_trace(job(name="A", at=0, run=2 * H), job(name="B", at=300, run=600))
"""On one GPU: 15 core-s a second, 10 for the GPU and 5 for the worker."""


def test_aiturbo():
    """Nobody reports losses, so service decides; a running job counts half, and 600 is the least.

    0:05 A has 300 x 15 = 4,500, half of which is more than 600: B runs. It would have 2 x 4,500 as it ends.
    """
    check("aiturbo", """
        A: 0-0:05 0:15-2:10
        B: 0:05-0:15
    """, TWO, "1x1xT4")


def test_aiturbo_borda():
    """Rounds are every four minutes only. 0:08 A has 7,200: it falls to the second queue, and B, in the first, runs.

    B falls at 0:16; half of its service is less than A's, so it goes on. 0:18 it ends, and the next round is at 0:20.
    """
    check("aiturbo-borda", """
        A: 0-0:08 0:20-2:12
        B: 0:08-0:18
    """, TWO, "1x1xT4")


def test_mlfq():
    """Rounds are four minutes after the last. 0:09 A has 8,100 and falls to the second queue: B runs.

    0:17 B has 7,200, too; in a queue A comes first. 0:41 B has waited three times its eight minutes, begins anew in the
    first queue, and is not interrupted at once, although A comes first in the second.
    """
    check("mlfq", """
        A: 0-0:09 0:17-0:41 0:43-2:10
        B: 0:09-0:17 0:41-0:43
    """, TWO, "1x1xT4")


def test_optimus_servers():
    """Jobs without servers have the sizes asked for, in order of submission; who does not fit is skipped, as B is.

    ::

        hour  0   1   2   3   4   5   6   7
        gpu 0 A   A   A   A   B   B   D
        gpu 1     C   C   C   B   B   E   E
    """
    check("optimus-servers", """
        A: 0-4
        B: 4-6
        C: 1-4
        D: 6-7
        E: 6-8
    """)


def test_tiresias_servers():
    """See ``test_tiresias``: jobs without servers are placed alike."""
    check("tiresias-servers", """
        A: 0-1 1:28-2 2:23-4:51
        B: 1-1:28 4:51-6:23
        C: 1:28-2:23 2:55-3 3:55-4:51 6:23-7:27
        D: 2-2:55 6:23-6:28
        E: 3-3:55 6:28-7:33
    """)


def test_every_preset_has_its_case():
    """A new preset needs a case of its own here."""
    cases = {name.removeprefix("test_").replace("_", "-") for name in globals() if name.startswith("test_")}
    assert set(PRESETS) <= cases


@pytest.mark.parametrize("policy", sorted(PRESETS))
def test_two_equal_jobs_on_one_gpu_run_one_after_the_other(policy):
    """J0 0-10, J1 10-20 or at the next round: whatever the policy, nothing is gained by interrupting an equal."""
    outcome = run(small_trace(job(run=10), job(run=10, user="other")), "1x1xT4", policy)
    its = PRESETS[policy]
    then = max(10, (its.period_ms if its.fixed_rounds else its.gap_ms) // 1_000)
    assert (stretches(outcome, 0), stretches(outcome, 1)) == ([(0, 10)], [(then, then + 10)])


@pytest.mark.parametrize("policy", sorted(PRESETS))
def test_two_equal_jobs_on_two_gpus_run_side_by_side(policy):
    outcome = run(small_trace(job(run=10), job(run=10)), "1x2xT4", policy)
    assert (stretches(outcome, 0), stretches(outcome, 1)) == ([(0, 10)], [(0, 10)])


def test_two_long_equal_jobs_share_one_gpu_under_las_in_steps_of_the_quantum():
    """Two of 2 h: 1 h each, then whoever runs stays ahead of the other only until the next whole hour.

    ::

        0-1 A, 1-2 B (level 0), at 2 both have 1: B runs and stays until 3, when it has ended; A 3-4
    """
    outcome = run(small_trace(job(run=2 * H), job(run=2 * H)), "1x1xT4", "las")
    assert (stretches(outcome, 0), stretches(outcome, 1)) == ([(0, H), (3 * H, 4 * H)], [(H, 3 * H)])


def test_a_promotion_lasts_until_the_first_queue_is_used_up_again():
    """Threshold 10 GPU-s, promotion after twice the time run, a round every second, one GPU.

    ::

        10  j0 has 10 s: j1 (queue 0)      20  j1 has 10 s: j0, submitted first
        40  j1 has waited 20 s, twice its 10: back in queue 0      50  j1 has had 10 s more: j0
        90  j1 has waited 40 s, twice its 20
    """
    policy = replace(PRESETS["tiresias"], order=ServiceQueues(thresholds_gpu_ms=(10_000,), promote_ratio=2.0),
                     period_ms=1_000)
    outcome = run(small_trace(job(run=200), job(at=5, run=200)), "1x1xT4", policy)
    assert stretches(outcome, 1)[:3] == [(10, 20), (40, 50), (90, 100)]
