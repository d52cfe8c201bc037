"""Power, prices, slowdowns, loaders and graces that cannot be: one line with file and key, and exit code 2."""

from __future__ import annotations

from importlib.resources import files

import pytest

from tests.cli.commands import brim

PROFILES = files("brim.beliefs") / "profiles"
NODE = '[[node]]\ngpu_type = "V100"\ngpus = 8\nidle_w = {idle}\nfull_w = {full}\nexponent = {exponent}\n'
SET = '[[set]]\ngpu_type = "V100"\nmodels = ["a", "b"]\nslowdown_ratio = {ratio}\n'
SYNERGY = (PROFILES / "synergy.toml").read_text()
POLLUX = (PROFILES / "pollux.toml").read_text()


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("bad") / "trace.csv"
    path.write_text("job_id,submit_ms,gpus,run_ms,profile\na,0,1,60000,res18\nb,0,1,60000,res50\n")
    return path


@pytest.mark.cases(3)
@pytest.mark.parametrize(("words", "text", "said"), [
    (["--power"], NODE.format(idle=900, full=700, exponent=1), "node 1: power curve of V100: found full_w=700, "),
    (["--power"], NODE.format(idle=-1, full=700, exponent=1), "found asleep_w=0 and idle_w=-1, expected watts"),
    (["--power"], NODE.format(idle=1, full=700, exponent=-1), "node 1: power curve of V100: found exponent=-1, "),
    (["--price"], "gpu_hour = -2.0", "found gpu_hour=-2"), (["--price"], "gpu_hour = 2\nkwh = -0.1", "found kwh=-0.1"),
    (["--price"], "gpu_hour = 2\n[tiers]\npadding = -0.1", "found padding=-0.1"),
    (["--price"], "gpu_hour = 2\n[tiers]\nspot = 0.3", "found the tier 'spot', expected reserved, elastic, padding"),
    (["--sharing"], SET.format(ratio=0.9), "set 1: found slowdown_ratio=0.9, expected "),
    (["--sharing"], SET.format(ratio="[1.2, 0.9]"), "set 1: found slowdown_ratio=0.9, expected "),
    (["--sharing"], "[rule]\nper_neighbour = -0.1", "found per_neighbour=-0.1, expected "),
    (["--loading"], POLLUX, "found no 'loading' table, expected at least one"),
    (["--loading"], SYNERGY.replace("cpu_s = 0.003625\n", ""), "loading 1: found no 'cpu_s', expected a number from 0"),
    (["--loading"], SYNERGY.replace("cpu_s = 0.003625", "cpu_s = -1"), "loading 1: found cpu_s=-1, expected "),
    (["--power"], NODE.format(idle=900, full="9" * 400, exponent=1), "node 1: found full_w with 400 digits, expected"),
    (["--power"], NODE.format(idle=0.9, full=1.5, exponent=1), "node 1: found full_w=1.5 for 8 GPUs, expected watts,"),
    (["--price"], f"gpu_hour = {'9' * 400}", "found gpu_hour with 400 digits"),
    (["--price"], "gpu_hour = 1e308", "found gpu_hour with 309 digits"),
    (["--sharing"], SET.format(ratio=1e300), "set 1: found slowdown_ratio with 301 digits"),
    (["--sharing"], SET.format(ratio=1.2) + SET.format(ratio=1.5).replace('"a", "b"', '"B", "a"'), "set 2: found the"),
    (["--sharing"], SET.format(ratio=1.2).replace("[[set]]", "[set]"), "found [set], expected tables [[set]]"),
    (["--sharing"], "", "found neither, expected tables [[set]] or [rule]"),
    (["--sharing"], SET.format(ratio=1.2) + "batch = 3\n", "set 1: found 'batch', expected gpu_type, models"),
    (["--loading"], SYNERGY.replace("cpu_s = 0.003625", "cpu_s = 1e300"), "loading 1: found cpu_s with 301 digits"),
    (["-p", "adloader", "--library"], POLLUX, "found no 'loading' table, which policy 'adloader' reads"),
])  # fmt: skip
def test_what_cannot_be_is_refused_with_file_and_key(trace, tmp_path, words, text, said):
    file = tmp_path / "given.toml"
    file.write_text(text)

    done = brim("sim", "run", trace, "-c", "1x8xV100:cpus=24,mem=100GB", *words, file)

    *read, line = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert line.startswith("brim: error: ")
    assert f"{file}" in line
    assert said in line
    assert all(one.startswith("read trace.csv as brim") for one in read)


def test_a_file_with_a_byte_order_mark_is_read(trace, tmp_path):
    file = tmp_path / "prices.toml"
    file.write_bytes(b"\xef\xbb\xbfgpu_hour = 2.0\n")
    assert brim("sim", "run", trace, "-c", "1x8xV100", "--price", file).returncode == 0


def test_measured_sets_that_no_jobs_of_the_trace_have_are_counted(trace, tmp_path):
    file = tmp_path / "sets.toml"
    file.write_text(SET.format(ratio=1.2).replace('"a", "b"', '"res18", "res50"') + SET.format(ratio=1.5))
    done = brim("sim", "run", trace, "-c", "1x8xV100", "-p", "eaco", "--sharing", file)
    assert "as those 1 of 2 measured sets say whose models and GPU type are here" in " ".join(done.stdout.split())


def test_a_negative_price_of_the_command_line_is_refused(trace):
    done = brim("sim", "run", trace, "-c", "1x8xV100", "--price", "-1")

    assert (done.returncode, done.stdout) == (2, "")
    assert "brim: error: --price: found '-1', expected a price per GPU-hour" in done.stderr


def test_a_grace_longer_than_the_time_limit_is_refused_before_anything_is_sent():
    done = brim("submit", "--grace", "2m", "--time", "60s", "--", "true")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "brim: error: --grace: found '2m', expected no more than --time, which is 60s\n"
