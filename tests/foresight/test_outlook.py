"""What is believed of a job's losses, in words."""

from __future__ import annotations

import numpy as np

from brim.beliefs.convergence import CannotSay
from brim.beliefs.predictability import Evidence
from brim.beliefs.progress import PARTED, PARTED_WORDS, Verdict
from brim.foresight.outlook import UNIT, outlook_in_words


def test_evidence_is_told_by_the_side_for_which_it_speaks():
    evidence = (Evidence("width", 0.00223, "for"), Evidence("noise", 0.5, "against"), Evidence("bend", 2.0, "for"))
    verdict = Verdict(True, 0.86, 3_760.0, 7_728.0, evidence, None)
    assert outlook_in_words(verdict, 8_000.0) == (
        "Its progress is believed predictable since 3,760 samples; at 7,728 samples its losses tell its end with "
        f"probability 0.86. For it: width 0.00223; bend 2. Against it: noise 0.5 ({UNIT})."
    )


def test_a_prediction_that_failed_speaks_against_it():
    verdict = Verdict(False, np.nan, 0.0, 10.0, (Evidence(PARTED_WORDS, PARTED, "against"),), None)
    assert outlook_in_words(verdict, 10.0) == (
        f"Its progress is not believed predictable. Against it: {PARTED_WORDS} {PARTED} ({UNIT})."
    )


def test_what_cannot_be_said_is_said():
    verdict = Verdict(cannot_say=CannotSay.TOO_FEW)
    assert "nothing can be said at 5 samples: " in outlook_in_words(verdict, 5.0)
