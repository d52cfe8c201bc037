"""Power curves: those that come with brim, and broken files."""

import numpy as np
import pytest

from brim.beliefs.power import BUILTIN, curves_for, load_curves, parse_curves
from brim.core.cluster import parse_cluster
from brim.errors import ConfigError, NotFoundError

EACO = ((4.72, 712), (11.17, 959), (36.61, 1330), (48.01, 1533), (40.25, 1390), (55.16, 1506), (61.06, 1644),
        (52.24, 1541), (66.99, 1713), (96.64, 1944))
"""Mean GPU utilisation in percent and mean power in W of ten job sets: EaCO, arXiv 2412.08294."""
ENTRY = '[[node]]\ngpu_type = "X1"\ngpus = 4\nidle_w = 100\nfull_w = 300\n'


def test_the_curve_of_v100_nodes_is_within_70_w_of_every_job_set_of_eaco():
    curve = load_curves(BUILTIN)["v100"]

    watts = curve.watts(np.array([percent / 100 for percent, _ in EACO]), 8)

    assert np.abs(watts - [measured for _, measured in EACO]).max() <= 70


def test_a_cluster_has_a_curve_for_each_of_its_types():
    both = curves_for(parse_cluster("2x8xH100+1x4xv100"), load_curves(BUILTIN))

    assert [curve.gpu_type for curve in both] == ["H100", "V100"]


def test_a_curve_is_that_of_types_which_have_more_words():
    curves = load_curves(BUILTIN)
    cluster = parse_cluster("1x8xA100-SXM4-80GB")

    assert curves_for(cluster, curves)[0] is curves["a100"]
    own = parse_curves(ENTRY.replace("X1", "A100-80GB"), "f.toml")
    assert curves_for(cluster, curves | own)[0] is own["a100-80gb"]


@pytest.mark.parametrize(("cluster", "words"), [
    ("2x8xA10", "found GPUs of type A10 in the cluster"),
    ("2x8xT4", "found GPUs of type T4 in the cluster, expected one of A100, H100, V100"),
    ("2x8", "found GPUs without a type in the cluster"),
])
def test_a_type_without_a_curve_is_refused(cluster, words):
    with pytest.raises(ConfigError, match=words):
        curves_for(parse_cluster(cluster), load_curves(BUILTIN))


@pytest.mark.parametrize(("text", "words"), [
    ("x =", r"f.toml: not TOML"),
    ("", r"f.toml: found no \[\[node\]\]"),
    (ENTRY.replace("gpus = 4\n", ""), "f.toml, node 1: found no 'gpus'"),
    (ENTRY.replace("= 4", "= 4.5"), "f.toml, node 1: found gpus=4.5"),
    (ENTRY + "watts = 3\n", "f.toml, node 1: found 'watts'"),
    (ENTRY.replace("300", "'300'"), "f.toml, node 1: found full_w='300', expected a number"),
    (ENTRY.replace("300", "30"), "f.toml, node 1: power curve of X1: found full_w=30"),
    (ENTRY + ENTRY, "f.toml, node 2: found gpu_type='X1' again"),
])
def test_a_broken_file_names_entry_and_field(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_curves(text, "f.toml")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(NotFoundError, match=r"cannot read .*no\.toml: No such file"):
        load_curves(str(tmp_path / "no.toml"))
