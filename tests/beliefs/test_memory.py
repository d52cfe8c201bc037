"""Memory of jobs and GPUs: known answers, bounds, and what is not believed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.beliefs.memory import BATCH, CONTEXT_MIB, NOTHING, PEAK, device_mib, fit, gpu_mib, memory_use
from brim.core.cluster import UNLIMITED
from brim.testing import job, snapshot_of

MIB = 1 << 20


def with_gradients(snapshot, *mib):
    return replace(snapshot, jobs=replace(snapshot.jobs, gradient_bytes=np.array([int(one * MIB) for one in mib])))


@pytest.mark.parametrize(("name", "mib"), [
    ("V100", 16_384), ("v100", 16_384), ("V100-SXM2-32GB", 32_768), ("A100-SXM4-80GB", 81_920), ("A100", 40_960),
    ("A10", 24_576), ("H100-80GB-HBM3", 81_920), ("H200", 144_384), ("nvidia_l40", 49_152), ("NVIDIA L40S", 49_152),
    ("NVIDIA RTX A6000", 49_152), ("NVIDIA GeForce RTX 2080 Ti", 11_264), ("rtx3090", 24_576), ("X1", None), ("", None),
    ("cpu-slot", None),
])
def test_memory_of_a_gpu_is_what_its_name_says_or_that_of_the_smallest_variant(name, mib):
    assert gpu_mib(name) == mib


def test_a_measured_peak_is_believed_before_an_estimate():
    found = memory_use(with_gradients(
        snapshot_of("1x8xV100", job(gpu_mem=5_000, batch=64, local_batch_max=64), job(gpu_mem=0)), 100, 0,
    ))

    assert found.mib.tolist() == [5_000, 0]
    assert found.basis.tolist() == [PEAK, PEAK]


def test_without_a_peak_parameters_stay_and_the_rest_grows_with_the_batch():
    """At 64 samples a V100 is full; 32 of them need the parameters, the context, and half of the rest."""
    found = memory_use(with_gradients(
        snapshot_of("1x8xV100", job(gpus=2, batch=128, local_batch_max=64), job(gpus=2, batch=64, local_batch_max=64),
                    job(gpus=1, batch=640, local_batch_max=64)), 100, 100, 100,
    ))

    fixed = CONTEXT_MIB + 400
    assert found.mib == pytest.approx([16_384, fixed + (16_384 - fixed) / 2, 16_384])  # the third accumulates
    assert found.basis.tolist() == [BATCH] * 3


def test_where_a_job_may_run_on_any_type_the_largest_gpu_counts():
    jobs = job(batch=64, local_batch_max=64), job(batch=64, local_batch_max=64, gpu_type="V100")

    found = memory_use(with_gradients(snapshot_of("1x8xV100+1x8xA100", *jobs), 100, 100))

    assert found.mib.tolist() == [40_960, 16_384]


@pytest.mark.parametrize(("cluster", "one", "gradient_mib"), [
    ("1x8xV100", job(), 100), ("1x8xV100", job(batch=64, local_batch_max=64), 0),
    ("1x8xX1", job(batch=64, local_batch_max=64), 9),
])
def test_of_what_is_not_known_nothing_is_believed_and_it_fits_nowhere(cluster, one, gradient_mib):
    found = memory_use(with_gradients(snapshot_of(cluster, one), gradient_mib))

    assert found.basis.tolist() == [NOTHING]
    assert not fit(found.mib.tolist(), gpu_mib("H200"))


def test_jobs_fit_together_up_to_the_limit():
    assert fit([8_000, 8_384], gpu_mib("V100"))
    assert not fit([8_000, 8_385], gpu_mib("V100"))
    assert not fit([8_000, 8_384], gpu_mib("V100"), 0.9)
    assert fit([], gpu_mib("V100"))
    assert not fit([1], gpu_mib("X1"))


@given(st.integers(1, 512), st.integers(1, 512), st.integers(1, 20_000))
def test_the_estimate_never_falls_with_the_batch_and_the_largest_fills_the_gpu(batch, largest, gradient_mib):
    jobs = [job(batch=size, local_batch_max=largest) for size in (batch, batch + 1, largest)]

    less, more, full = memory_use(with_gradients(snapshot_of("1x8xV100", *jobs), *[gradient_mib] * 3)).mib

    assert less <= more <= full
    assert full >= 16_384


def test_a_cpu_slot_has_its_part_of_the_memory_of_its_node():
    assert device_mib("cpu", 16_384, 4) == 4_096
    assert device_mib("cpu", UNLIMITED, 4) is None, "nobody said how much the node has"
    assert (device_mib("V100", 65_536, 4), device_mib("X1", 65_536, 4)) == (16_384, None)
