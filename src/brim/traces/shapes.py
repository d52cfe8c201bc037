"""Parameters of synthetic traces: published marginals, and the values fitted to them.

Source of means, medians, maxima, rates and GPU times: cluster_summary.csv of github.com/InternLM/AcmeTrace (CC-BY-4.0),
rows Philly, Helios, Seren (for ``acme``) and PAI. Source of jobs per day: job counts there over the published spans.

Fitted: run times are a mixture of two lognormals, short and long, cut at the published maximum. Their sigmas are set
(1.4 and 1.3), and so is the share of long jobs (0.2; 0.1 for Seren, whose cancelled jobs would not fit otherwise). The
two medians and the growth of the long share with the logarithm of the gang are solved so that mean run time, median run
time and GPU time per job equal the published ones (PAI publishes no GPU time: no growth). Gangs are powers of two: the
share of single GPUs is set (published: the median is 1), the rest falls by a constant factor solved for the mean.
PAI's shares are set to its published mean of 0.683 and median of 0.5 GPUs.

Daily patterns: for ``philly``, jobs per hour and weekday of the extract of October 2017 of github.com/petuum/adaptdl
(branch osdi21-artifact; Philly trace: CC-BY-4.0); for the others, jobs per hour of day of the Alibaba 2026 cluster
(hour_of_day_patterns.csv, github.com/sultanul-ovi/GPU-Cluster-Spot-Resource-Dataset-Analysis, MIT).

Set by us, not published: users and how unequal they are, groups, and how far users over-ask for time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brim.core.trace import Status

SHORT_SIGMA: Final = 1.4
LONG_SIGMA: Final = 1.3
ZIPF_EXPONENT: Final = 1.2
NUM_USERS: Final = 300
NUM_GROUPS: Final = 12
OVERASK_MEDIAN: Final = 3.0
"""Median factor by which users over-ask for time; with OVERASK_SIGMA of its logarithm."""
OVERASK_SIGMA: Final = 1.0
LIMITS_H: Final = (1, 2, 4, 8, 12, 24, 48, 72, 168, 336, 720, 1_440, 2_880)
"""Time limits in hours that users choose from."""

_ALIBABA_HOURS: Final = (
    1.154, 0.819, 0.724, 0.688, 0.664, 0.726, 0.732, 0.773, 0.820, 0.872, 1.288, 1.323, 1.016, 0.991, 1.301, 1.287,
    1.389, 1.304, 1.029, 1.089, 1.125, 0.985, 0.967, 0.932,
)  # fmt: skip
_PHILLY_HOURS: Final = (
    1.460, 1.243, 1.451, 0.956, 0.461, 1.270, 1.834, 2.612, 1.101, 0.957, 0.778, 0.569, 0.686, 0.504, 0.403, 0.388,
    1.027, 0.681, 0.560, 0.470, 1.243, 0.904, 1.319, 1.123,
)  # fmt: skip
_PHILLY_DAYS: Final = (0.719, 0.934, 1.072, 1.430, 1.529, 0.788, 0.528)
"""Monday first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One cluster's marginals.

    Attributes:
        jobs_per_day: Published arrival rate.
        gang_share: Share of jobs by GPUs 1, 2, 4, 8 ...
        fraction_share: Share of jobs by (thousandths of a GPU), among single-GPU jobs.
        short_median_s: Median run time of short jobs.
        long_median_s: Median run time of long jobs.
        long_offset: Logit of the long share at one GPU.
        long_slope: Growth of that logit per doubling of the gang.
        max_run_s: Published maximum.
        status_by_jobs: Completed, failed, cancelled as shares of jobs; empty where not published.
        status_by_gpu_time: The same as shares of GPU time.
        hour_weight: Relative arrivals by hour of day.
        day_weight: Relative arrivals by weekday, Monday first.
    """

    jobs_per_day: float
    gang_share: tuple[float, ...]
    short_median_s: float
    long_median_s: float
    long_offset: float
    long_slope: float
    max_run_s: int
    fraction_share: tuple[tuple[int, float], ...] = ()
    status_by_jobs: tuple[float, ...] = ()
    status_by_gpu_time: tuple[float, ...] = ()
    hour_weight: tuple[float, ...] = _ALIBABA_HOURS
    day_weight: tuple[float, ...] = (1.0,) * 7


STATUSES: Final = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
"""Order of the status shares."""

SHAPES: Final = {
    "philly": Shape(
        jobs_per_day=112_956 / 137,
        gang_share=(0.85, 0.07495, 0.03781, 0.01908, 0.00962, 0.00485, 0.00245, 0.00124),
        short_median_s=560.5, long_median_s=36_194, long_offset=-1.531, long_slope=0.3941, max_run_s=4_240_676,
        status_by_jobs=(0.604, 0.305, 0.090), status_by_gpu_time=(0.321, 0.386, 0.294),
        hour_weight=_PHILLY_HOURS, day_weight=_PHILLY_DAYS,
    ),
    "helios": Shape(
        jobs_per_day=1_580_464 / 183,
        gang_share=(0.6, 0.21826, 0.09919, 0.04508, 0.02048, 0.00931, 0.00423, 0.00192, 0.00087, 0.0004, 0.00018,
                    0.00008),
        short_median_s=131.9, long_median_s=13_714.2, long_offset=-1.6272, long_slope=0.2854, max_run_s=4_320_009,
        status_by_jobs=(0.624, 0.155, 0.221), status_by_gpu_time=(0.513, 0.093, 0.394),
    ),
    "acme": Shape(
        jobs_per_day=663_813 / 184,
        gang_share=(0.6, 0.18709, 0.09975, 0.05318, 0.02835, 0.01512, 0.00806, 0.0043, 0.00229, 0.00122, 0.00065),
        short_median_s=100.4, long_median_s=5_055.3, long_offset=-2.8054, long_slope=0.4815, max_run_s=1_209_604,
        status_by_jobs=(0.497, 0.429, 0.075), status_by_gpu_time=(0.212, 0.124, 0.664),
    ),
    "pai": Shape(
        jobs_per_day=1_037_085 / 62,
        gang_share=(0.95, 0.03, 0.015, 0.005),
        fraction_share=((250, 0.36 / 0.95), (500, 0.30 / 0.95), (1_000, 0.29 / 0.95)),
        short_median_s=311.2, long_median_s=8_935.3, long_offset=-1.3863, long_slope=0.0, max_run_s=626_371,
    ),
}  # fmt: skip
