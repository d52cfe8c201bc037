"""Types of GPUs: as drivers name them, and as users ask for them."""

import pytest

from brim.core.cluster import parse_cluster
from brim.core.gpu_names import is_of_type
from brim.live.gpu_types import type_of


@pytest.mark.parametrize(("names", "wanted"), [
    (["NVIDIA A100-SXM4-80GB"] * 8, "A100-SXM4-80GB"), (["NVIDIA H100 80GB HBM3"], "H100-80GB-HBM3"),
    (["NVIDIA GeForce RTX 4090"] * 2, "RTX-4090"), (["Tesla V100-SXM2-16GB"], "V100-SXM2-16GB"), (["Tesla T4"], "T4"),
    (["NVIDIA RTX 6000 Ada Generation"], "RTX-6000-Ada-Generation"), (["NVIDIA H200"], "H200"),
    (["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"], "A100-SXM4"), (["Tesla T4", "NVIDIA H200"], "gpu"),
    (["NVIDIA A100 80GB PCIe", "NVIDIA A10"], "gpu"), ([""], "gpu"), (["NVIDIA 4090"], "gpu-4090"),
    (["\u2026:x=1,"], "x-1"),
])  # fmt: skip
def test_a_type_is_what_the_names_of_the_gpus_have_in_common(names, wanted):
    assert type_of(names) == wanted
    assert parse_cluster(f"1x{len(names)}x{wanted}").gpu_types == (wanted,)


@pytest.mark.parametrize("asked", ["A100", "a100", "A100-80GB", "nvidia_a100", "nvidia_a100_sxm4_80gb"])
def test_a_type_is_asked_for_by_some_of_its_words(asked):
    assert is_of_type(asked, "A100-SXM4-80GB")
    assert not is_of_type(asked, "A10")


@pytest.mark.parametrize("asked", ["A10", "A1", "H100", "A100-40GB", "100", "nvidia", "", "A100-SXM4-80GB-X"])
def test_what_is_another_type(asked):
    assert not is_of_type(asked, "A100-SXM4-80GB")


def test_words_may_be_written_as_one():
    assert is_of_type("RTX4090", "RTX-4090")
    assert is_of_type("rtx6000-ada", "RTX-6000-Ada-Generation")
    assert is_of_type("cpu", "cpu")
    assert not is_of_type("RTX4090", "RTX-4080")
