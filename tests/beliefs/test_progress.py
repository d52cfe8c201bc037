"""How far jobs are from their target loss: jobs that the snapshot does not show, and losses of whole curves."""

from dataclasses import replace

import numpy as np
import pytest

from brim.beliefs.convergence import CannotSay
from brim.beliefs.curve_features import seen
from brim.beliefs.progress import PARTED_WORDS, SeenProgress, Verdict, due
from brim.core.losses import ReportedLosses
from brim.testing.builders import job, snapshot_of

SAMPLES = np.arange(10.0, 510.0, 10.0)
LOSS = 0.9 / (0.01 * SAMPLES + 1) + 0.1


def snapshot(*jobs_with_losses, target_ppm=(200_000,)):
    made = snapshot_of("1x2xK80", *(job(gpus=1) for _ in target_ppm))
    points = tuple((SAMPLES, LOSS) for _ in jobs_with_losses)
    jobs = replace(made.jobs, target_loss_ppm=np.array(target_ppm), samples_done=np.full(len(target_ppm), 500))
    return replace(made, jobs=jobs, losses=ReportedLosses(jobs_with_losses, points))


def test_a_target_is_a_loss_in_millionths():
    outlook = SeenProgress().of_jobs(snapshot(0))
    assert outlook.samples_left == pytest.approx([800 - 500], rel=0.01)  # 0.9 / (0.01 k + 1) + 0.1 is 0.2 at k = 800


def test_the_plan_of_its_user_bounds_what_is_left_but_not_what_the_curve_says():
    made = snapshot(0, 1, target_ppm=(200_000, 50_000))
    made = replace(made, jobs=replace(made.jobs, samples_max=np.array([600, 600])))
    outlook = SeenProgress().of_jobs(made)
    assert outlook.samples_left.tolist() == [100, 100]
    assert outlook.by_curve == pytest.approx([300, np.inf], rel=0.03)  # it falls to 0.1, so 0.05 is never reached


def test_losses_of_jobs_that_the_snapshot_does_not_show_are_left_out():
    outlook = SeenProgress().of_jobs(snapshot(0, 7))
    assert np.isfinite(outlook.samples_left).tolist() == [True]
    assert np.isnan(SeenProgress().of_jobs(snapshot(7)).samples_left).all()


def test_a_job_without_target_or_without_losses_has_no_samples_left_to_tell():
    outlook = SeenProgress().of_jobs(snapshot(0, target_ppm=(-1, 200_000)))
    assert np.isnan(outlook.samples_left).all()
    assert not outlook.is_predictable[1]
    assert np.isnan(outlook.probability[1])


# -- what is believed of a job while it reports -----------------------------------------------------------------------


def told(samples, loss, states=None):
    """What is believed of a job with these losses, after each of them."""
    progress, verdicts = SeenProgress() if states is None else states, []
    for count in range(1, len(samples) + 1):
        made = snapshot(0)
        losses = ReportedLosses((0,), ((np.asarray(samples[:count], float), np.asarray(loss[:count], float)),))
        progress.of_jobs(replace(made, losses=losses))
        verdicts.append(progress.verdict(replace(made, losses=losses), 0))
    return verdicts


def test_equal_losses_give_equal_answers_however_they_came():
    """One that saw every report, one that sees them all at once, as after a restart, and a copy with other ids."""
    rng = np.random.default_rng(3)
    loss = LOSS * (1 + 0.05 * rng.standard_normal(len(LOSS)))
    grown = SeenProgress()
    for verdict in told(SAMPLES, loss, grown)[::7]:
        assert isinstance(verdict, Verdict)
    at_once = ReportedLosses((0,), ((SAMPLES, loss),))
    one = replace(snapshot(0), losses=at_once)
    other = replace(snapshot(0, target_ppm=(-1, 200_000)), losses=ReportedLosses((1,), at_once.points))
    expected = SeenProgress().verdict(one, 0)
    assert grown.verdict(one, 0) == expected
    copied = grown.copy()
    assert copied.of_jobs(other).probability[1] == grown.of_jobs(one).probability[0]
    assert copied.verdict(other, 1) == expected


def test_fewer_than_four_losses_say_nothing():
    for verdict in told(SAMPLES[:3], LOSS[:3]):
        assert verdict.cannot_say is CannotSay.TOO_FEW
        assert not verdict.is_predictable


@pytest.mark.slow
def test_a_single_evaluation_does_not_flip():
    """Whatever is reported, a job is believed otherwise only after two evaluations in a row that say so."""
    rng = np.random.default_rng(0)
    flips = 0
    for seed in range(20):
        noise = (0.003, 0.3)[seed % 2]
        loss = LOSS * np.exp(noise * rng.standard_normal(len(LOSS)))
        loss[25:] += (0.0, 0.4)[seed // 2 % 2]
        verdicts = [one for one in told(SAMPLES, loss) if one.cannot_say is not CannotSay.TOO_FEW]
        times = [one.at_samples for one in verdicts]
        changes = [k for k in range(1, len(verdicts)) if verdicts[k].is_predictable != verdicts[k - 1].is_predictable]
        flips += len(changes)
        evaluated = sorted(set(times))
        between = [evaluated.index(times[k]) for k in changes]
        assert all(later - before >= 2 for before, later in zip([-1, *between], between, strict=False))
        assert all(verdicts[k].since_samples == times[k] for k in changes)
    assert flips > 10


def test_a_job_is_not_believed_any_more_when_it_falls_otherwise_than_predicted():
    loss = LOSS.copy()
    loss[25:] = loss[24] + 0.05 * np.arange(1, 26)
    verdicts = told(SAMPLES, loss)
    assert verdicts[24].is_predictable
    assert not verdicts[-1].is_predictable
    assert verdicts[-1].since_samples > SAMPLES[25]
    evidence = [[(one.words, one.side) for one in verdict.evidence] for verdict in verdicts]
    parted = [(PARTED_WORDS, "against") in told for told in evidence]
    assert any(parted[26:])


@pytest.mark.cases(1)
@pytest.mark.parametrize("reports", [15, 25, 50])
def test_a_job_that_falls_along_its_curve_is_believed_once_and_for_all(reports):
    """With few reports, the loss falls by much from one to the next, and so by the time of the newest."""
    draw = np.random.default_rng(reports)
    samples = 500.0 * np.arange(1, reports + 1) / reports
    for _ in range(10):
        loss = (0.9 / (0.018 * samples + 1) + 0.1) * (1 + 0.003 * draw.standard_normal(reports))
        answers = [verdict.is_predictable for verdict in told(samples, loss)]
        assert answers == sorted(answers)
        assert answers[-1]


def test_evaluations_are_due_when_the_samples_have_grown_by_a_fifth():
    ends = due(np.arange(1.0, 1_000.0))
    assert ends[0] == 4
    assert len(ends) == 31
    assert (np.diff(ends) >= np.floor(0.1 * ends[:-1])).all()
    assert due(np.arange(1.0, 4.0)).tolist() == []


def test_a_point_that_is_still_averaged_is_not_looked_at():
    """Of 64 points or more, the last may be the mean of some of its reports only."""
    samples = np.arange(1.0, 65.0) * 10
    loss = 0.9 / (0.01 * samples + 1) + 0.1
    other = np.append(loss[:-1], 3.0)
    pair = [SeenProgress().verdict(replace(snapshot(0), losses=ReportedLosses((0,), ((samples, one),))), 0)
            for one in (loss, other)]
    assert pair[0] == pair[1]


def test_a_round_evaluates_only_jobs_that_are_due():
    """All have reported once more; a few of them have grown by a fifth since their last evaluation."""
    rng, jobs = np.random.default_rng(1), 20
    counts = rng.integers(30, 60, jobs)
    made = snapshot_of("1x2xK80", *(job(gpus=1) for _ in range(jobs)))
    columns = replace(made.jobs, target_loss_ppm=np.full(jobs, 200_000), samples_done=np.full(jobs, 900))
    samples = np.arange(1.0, 61.0) * 10
    curves = [(samples, 0.9 / (0.01 * samples + 1) + 0.1 + 0.001 * k) for k in range(jobs)]

    def at(extra):
        points = tuple((x[: n + extra], y[: n + extra]) for (x, y), n in zip(curves, counts, strict=True))
        return replace(made, jobs=columns, losses=ReportedLosses(tuple(range(jobs)), points))

    progress, calls = SeenProgress(), []
    progress.of_jobs(at(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brim.beliefs.progress.seen", lambda x, y, planned: calls.append(len(x)) or seen(x, y, planned))
        progress.of_jobs(at(1))
    is_due = [len(due(curves[k][0][: n + 1])) > len(due(curves[k][0][:n])) for k, n in enumerate(counts.tolist())]
    assert len(calls) == sum(is_due) < jobs / 2
