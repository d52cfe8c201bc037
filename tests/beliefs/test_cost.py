"""Prices: tiers, and broken files."""

import pytest

from brim.beliefs.cost import load_prices, parse_prices
from brim.core.prices import Prices, tier_of
from brim.errors import ConfigError, NotFoundError


def test_a_tier_pays_its_part():
    prices = Prices(gpu_hour=2.0)

    assert [prices.of(tier) for tier in ("reserved", "elastic", "padding")] == pytest.approx([2.0, 1.2, 0.26])


def test_the_tier_of_a_job():
    assert tier_of(padding=True, elastic=True) == "padding"
    assert tier_of(padding=False, elastic=True) == "elastic"
    assert tier_of(padding=False, elastic=False) == "reserved"


def test_a_number_is_the_price_for_every_tier():
    prices = load_prices("2.50")

    assert {prices.of(tier) for tier in ("reserved", "elastic", "padding")} == {2.5}


def test_a_file_has_prices_by_tier(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text("gpu_hour = 2\nkwh = 0.3\nco2_g_per_kwh = 380\n[tiers]\npadding = 0.1\n")

    assert load_prices(str(file)) == Prices(gpu_hour=2, padding=0.1, kwh=0.3, co2_g_per_kwh=380)


@pytest.mark.parametrize(("text", "words"), [
    ("gpu_hour =", r"p\.toml: not TOML"),
    ("kwh = 1", r"p\.toml: found no 'gpu_hour'"),
    ("gpu_hour = -1", r"p\.toml: prices: found gpu_hour=-1, expected a number from 0 up"),
    ("gpu_hour = nan", "found gpu_hour=nan"),
    ("gpu_hour = '2'", r"p\.toml: found gpu_hour='2', expected a number"),
    ("gpu_hour = 1\nkWh = 2", r"p\.toml: found 'kWh', expected gpu_hour, kwh"),
    ("gpu_hour = 1\n[tiers]\nspot = 0.1", r"p\.toml: found the tier 'spot', expected reserved, elastic, padding"),
    ("gpu_hour = 1\n[tiers]\npadding = -0.1", "found padding=-0.1"),
    ("gpu_hour = 1\ntiers = 3", "found tiers=3, expected a table"),
])
def test_a_broken_file_names_the_field(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_prices(text, "p.toml")


@pytest.mark.parametrize("given", ["-1", "nan", "inf"])
def test_a_price_below_nothing(given):
    with pytest.raises(ConfigError, match="expected a price per GPU-hour"):
        load_prices(given)


def test_a_file_that_is_not_there():
    with pytest.raises(NotFoundError, match=r"--price: cannot read no\.toml: No such file"):
        load_prices("no.toml")
