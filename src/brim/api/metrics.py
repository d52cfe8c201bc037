"""Metrics for Prometheus, computed from what is known when they are asked for.

Names and units as on https://prometheus.io/docs/practices/naming. No label has a value per user or per job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from brim import __version__
from brim.live.service import ClusterService
from brim.units import MS_PER_S

WAIT_S: Final = (1, 10, 60, 300, 1_800, 3_600, 14_400, 86_400, 604_800)
"""Upper bounds of the histogram of waiting times: from a second to a week; ours."""


class _Jobs(Collector):
    def __init__(self, service: ClusterService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        """See ``Collector``."""
        jobs = self._service.jobs()
        build = GaugeMetricFamily("brim_build_info", "Version of brim.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        count = Counter((job.state, job.request.job_class) for job in jobs)
        states = GaugeMetricFamily("brim_jobs", "Jobs that are kept, by state and class.", labels=["state", "class"])
        for (state, kind), number in sorted(count.items()):
            states.add_metric([state, kind], number)
        yield states
        devices = Counter(device["state"] for node in self._service.nodes() for device in node["devices"])
        gpus = GaugeMetricFamily("brim_devices", "Devices, by state.", labels=["state"])
        for state, number in sorted(devices.items()):
            gpus.add_metric([state], number)
        yield gpus
        waits_s = [(job.first_start_ms - job.submit_ms) / MS_PER_S for job in jobs if job.first_start_ms >= 0]
        buckets = [(str(float(bound)), float(sum(wait <= bound for wait in waits_s))) for bound in WAIT_S]
        yield HistogramMetricFamily(
            "brim_queue_wait_seconds", "Time from submission to the first start of the jobs that are kept.",
            buckets=[*buckets, ("+Inf", float(len(waits_s)))], sum_value=sum(waits_s),
        )  # fmt: skip
        yield CounterMetricFamily(
            "brim_preemptions", "Times that the scheduler took a job's devices away.",
            value=sum(job.preemptions for job in jobs),
        )  # fmt: skip
        yield CounterMetricFamily(
            "brim_lost_work_gpu_seconds", "GPU time whose work was lost by preemptions and failures.",
            value=sum(job.lost_gpu_s for job in jobs),
        )  # fmt: skip
        running = [job for job in jobs if job.state == "running"]
        yield GaugeMetricFamily(
            "brim_devices_waiting_for_data", "Devices of running jobs times the part of a step that waits for data.",
            value=sum((job.loader_wait_ratio or 0.0) * len(job.devices) for job in running),
        )  # fmt: skip


def exposition(service: ClusterService) -> Response:
    """Return the metrics in the format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Jobs(service))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
