"""How far jobs are from their target loss: jobs that the snapshot does not show, and losses of whole curves."""

from dataclasses import replace

import numpy as np
import pytest

from brim.beliefs.progress import SeenProgress
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


def test_losses_of_jobs_that_the_snapshot_does_not_show_are_left_out():
    outlook = SeenProgress().of_jobs(snapshot(0, 7))
    assert np.isfinite(outlook.samples_left).tolist() == [True]
    assert np.isnan(SeenProgress().of_jobs(snapshot(7)).samples_left).all()


def test_a_job_without_target_or_without_losses_has_no_outlook():
    outlook = SeenProgress().of_jobs(snapshot(0, target_ppm=(-1, 200_000)))
    assert np.isnan(outlook.samples_left).all()
    assert not outlook.is_predictable.any()
