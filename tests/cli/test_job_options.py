"""Options, headers and YAML files of a job: known answers, and errors that say where."""

from __future__ import annotations

import re
import time

import pytest

from brim.cli.headers import read_headers
from brim.cli.job_options import Dependency, asked, merged
from brim.cli.jobfile import FILE_BYTES_MAX, read_jobfile
from brim.errors import ConfigError, shown


def fields(**options):
    found = asked({name.replace("_", "-"): value for name, value in options.items()}).fields
    assert found.pop("attempts_max") == 1
    return found


def test_a_padding_job_leaves_within_5_s_unless_it_names_a_grace_and_no_grace_exceeds_the_limit():
    assert fields(**{"class": "padding"}) == {"gpus": 1, "job_class": "padding"}
    assert fields(**{"class": "padding", "grace": "20s"})["grace_s"] == 20.0
    assert "grace_s" not in fields(**{"class": "regular"})
    with pytest.raises(ConfigError, match=r"^--grace: found '2m', expected no more than --time, which is 60s"):
        fields(grace="2m", time="60s")
    with pytest.raises(ConfigError, match=r"^--grace: found '25h', expected a duration up to 24h, such as 90"):
        fields(grace="25h")
    with pytest.raises(ConfigError, match=r"^--class: found 'pading', expected regular, urgent or padding"):
        fields(**{"class": "pading"})


@pytest.mark.parametrize(("text", "wanted"), [
    ("4", {"gpus": 4}), ("1-8", {"gpus": 1, "gpus_min": 1, "gpus_max": 8}), ("A100:4", {"gpus": 4, "gpu_type": "A100"}),
    ("2..4", {"gpus": 2, "gpus_min": 2, "gpus_max": 4}), ("4,1,2", {"gpus": 1, "sizes": [1, 2, 4]}),
    ("H100:1-2", {"gpus": 1, "gpus_min": 1, "gpus_max": 2, "gpu_type": "H100"}),
    ("V100", {"gpus": 1, "gpu_type": "V100"}),
])  # fmt: skip
def test_gpus(text, wanted):
    assert fields(gpus=text) == wanted


@pytest.mark.parametrize("text", ["", "x:y", "4-1", "0-2", "-1", "1.5", "A100:", "1,x", "\u0664", "a b:1", "0"])
def test_gpus_that_are_none(text):
    with pytest.raises(ConfigError, match=r"^--gpus: found .*, expected a (number, a range or a list|whole number)"):
        fields(gpus=text)


def test_a_range_of_batches_goes_from_the_smaller_to_the_larger():
    with pytest.raises(ConfigError, match=r"^--batch: found '9-3', expected a number, or a range from the smaller"):
        fields(batch="9-3")


def test_cores_and_memory_are_of_the_whole_job():
    assert fields(gpus="4", cpus="8", mem="10G") == {"gpus": 4, "cpus_per_gpu": 2.0, "mem_mib_per_gpu": 2560}


def test_what_a_job_uses_of_each_gpu():
    found = fields(gpus="4", **{"gpu-mem": "10GB", "gpu-util": "60%"})
    assert found == {"gpus": 4, "gpu_mem_mib": 10 * 1024, "gpu_util_milli": 600}
    assert fields(**{"gpu-util": "0.6"}) == fields(**{"gpu-util": "60%"})
    assert read_headers("#BRIM --gpu-mem=2G --gpu-util 5%\n", "f").options == {"gpu-mem": "2G", "gpu-util": "5%"}
    for text in ("60", "0", "-1%", "101%", "nan", "x%", "%"):
        with pytest.raises(ConfigError, match=r"^--gpu-util: found .*, expected a part of the time, such as 60%"):
            asked({"gpu-util": text})


@pytest.mark.parametrize(("option", "text", "expected"), [
    ("time", "9999999999h", "a duration such as 90s, 90m, 1h30m, 2d or 02:00:00, up to a century"),
    ("mem", "99999999T", "a size such as 24GB or 512MiB, up to 2,047 TB for each"), ("mem", "3P", "a size"),
    ("gpu-mem", "3P", "a size such as 24GB or 512MiB, up to 2,047 TB for each"),
    ("gpu-mem", "0", "a size such as 24GB, above 0"),
    ("cpus", "3000001", "at most 1,000,000 cores for each GPU"),
])  # fmt: skip
def test_a_value_that_is_too_large_is_refused_by_the_option_with_its_limit(option, text, expected):
    gpus = "3" if option == "cpus" else "1"
    with pytest.raises(ConfigError, match=f"^--{option}: found '{text}', expected {re.escape(expected)}"):
        asked({"gpus": gpus, option: text})
    assert fields(gpus="3", cpus="3000000", mem="5P")["cpus_per_gpu"] == 1e6
    assert fields(begin="1960-01-01")["begin_s"] == 1


def test_a_dependency_that_is_empty_is_refused(tmp_path):
    """An id that a script failed to get: the job would start before what it needs."""
    with pytest.raises(ConfigError, match=r"^--depends-on: found nothing, expected job ids or names; to wait for none"):
        asked({"depends-on": ""})
    assert asked({}).after == ()
    assert asked(jobfile(tmp_path, "run: x\ndepends_on: []\n").options).after == ()


def test_times():
    assert fields(time="2:00:00", grace="90") == {"gpus": 1, "time_limit_s": 7_200, "grace_s": 90.0}
    assert fields(time="1-12:00:00", grace="2m") == {"gpus": 1, "time_limit_s": 129_600, "grace_s": 120.0}
    now = time.time()
    assert fields(begin="now+2h")["begin_s"] == pytest.approx(now + 7_200, abs=30)
    assert fields(begin="90m")["begin_s"] == pytest.approx(now + 5_400, abs=30)
    assert fields(begin="2031-05-06T07:08")["begin_s"] == int(time.mktime((2031, 5, 6, 7, 8, 0, 0, 0, -1)))
    assert 0 < fields(begin="14:30")["begin_s"] - now <= 86_400
    assert fields(deadline="now+3h")["deadline_s"] == pytest.approx(now + 10_800, abs=30)
    past = "a time to come"
    for wrong, expected in (("soon", "a time or a delay"), ("2020-01-01T00:00", past), ("now", past)):
        with pytest.raises(ConfigError, match=f"^--deadline: found '{wrong}', expected {expected}"):
            fields(deadline=wrong)
    for wrong in ("soon", "25:61", "2031-13-01", ""):
        with pytest.raises(ConfigError, match=f"^--begin: found {re.escape(shown(wrong))}"):
            fields(begin=wrong)


@pytest.mark.parametrize(("text", "wanted"), [
    ("0-3", (0, 1, 2, 3)), ("1,5,3", (1, 3, 5)), ("0-10:5", (0, 5, 10)), ("7", (7,)), ("0-1,1-2", (0, 1, 2)),
])  # fmt: skip
def test_arrays(text, wanted):
    assert asked({"array": text}).indices == wanted


@pytest.mark.parametrize("text", ["", "3-1", "0-9:0", "a", "0-20000", "0-10000,20000-30000", "-1"])
def test_arrays_that_are_none(text):
    with pytest.raises(ConfigError, match=r"^--array: found "):
        asked({"array": text})


@pytest.mark.parametrize("text", ["0-9%0", "0-9%", "%3", "0-9%3,11", "0-9%-1", "0-9%2%3"])
def test_limits_that_are_none(text):
    with pytest.raises(ConfigError, match=r"^--array: found "):
        asked({"array": text})


def test_an_array_may_have_a_limit():
    wants = asked({"array": "0-3,7%2"})
    assert (wants.indices, wants.fields["array_limit"]) == ((0, 1, 2, 3, 7), 2)
    assert "array_limit" not in asked({"array": "0-3"}).fields


@pytest.mark.parametrize(("text", "wanted"), [
    ("3,prep @", [("after", "3"), ("after", "prep"), ("after", "@")]),
    ("afterok:3:4", [("after", "3"), ("after", "4")]),
    ("afterany:3,afternotok:prep,5", [("after_any", "3"), ("after_not_ok", "prep"), ("after", "5")]),
])  # fmt: skip
def test_dependencies_in_brims_words_and_in_slurms(text, wanted):
    assert [(one.field, one.job) for one in asked({"depends-on": text}).after] == wanted


@pytest.mark.parametrize("text", ["after:3", "afterok:", "afterany:3:", "a/b", "afterok:3?afterok:4", "aftercorr:3"])
def test_dependencies_that_are_none(text):
    with pytest.raises(ConfigError, match=rf"^--depends-on: found {re.escape(repr(text))}, expected job ids"):
        asked({"depends-on": text})


def test_a_class_that_does_not_exist_is_named_by_its_option():
    with pytest.raises(ConfigError, match=r"^--class: found 'foo', expected regular, urgent or padding$"):
        asked({"class": "foo"})


@pytest.mark.parametrize(("option", "expected"), [
    ("time", "a duration such as 90s"), ("grace", "a duration such as 90s"), ("mem", "a size such as 24GB"),
    ("gpu-mem", "a size such as 24GB"),
])  # fmt: skip
def test_a_duration_or_size_that_is_none_is_named_by_its_option(option, expected):
    with pytest.raises(ConfigError, match=rf"^--{option}: found '1x', expected {expected}"):
        asked({option: "1x"})


@pytest.mark.parametrize("option", ["gpus", "mem", "time", "batch", "devices", "class", "array", "depends-on"])
def test_a_long_value_is_cut_in_its_error(option):
    with pytest.raises(ConfigError, match=rf"^--{option}: found 'x{{56}}\.\.\., expected ") as refused:
        asked({option: "x" * 5_000 + ":"})
    assert len(str(refused.value)) < 300


def test_memory_of_a_gpu_that_is_none_is_named_by_its_option():
    with pytest.raises(ConfigError, match=r"^--gpu-mem: found '0', expected a size such as 24GB"):
        asked({"gpu-mem": "0"})


def test_ranks():
    """One process per GPU on exactly two GPUs, which only a range of GPUs could ask for."""
    assert fields(gpus="2", ranks="per-gpu") == {"gpus": 2, "ranks": "per-gpu"}
    assert read_headers("#BRIM -g 2 --ranks per-gpu\n", "f").options == {"gpus": "2", "ranks": "per-gpu"}
    with pytest.raises(ConfigError, match=r"^--ranks: found '2', expected one or per-gpu$"):
        fields(ranks="2")


def test_words_are_read_as_on_the_command_line():
    assert read_headers("#BRIM --dependency=afterok:3\n", "f").options == {"depends-on": "afterok:3"}
    line = "#BRIM -g4 --name='a b' -t 1h --env A=1 --env B='2 3' --no-requeue # why\n"
    assert read_headers(line, "f").options == {
        "gpus": "4", "name": "a b", "time": "1h", "env": {"A": "1", "B": "2 3"}, "requeue": False,
    }  # fmt: skip
    for line, said in (("--gpu 4", "'--gpu'"), ("-g", "-g without a value"), ("4", "'4'"), ("-x 1", "'-x'"),
                       ("--env A", "'A'"), ("'", "No closing quotation")):
        with pytest.raises(ConfigError, match=rf"^f, line 2: .*{re.escape(said)}"):
            read_headers(f"#!/bin/sh\n#BRIM {line}\n", "f")


def test_the_command_line_counts_before_headers_and_these_before_a_file():
    both = merged({"gpus": "1", "time": "1h", "env": {"A": "file", "B": "file"}}, {"gpus": "2", "env": {"A": "header"}})
    assert merged(both, {"gpus": "4"}) == {"gpus": "4", "time": "1h", "env": {"A": "header", "B": "file"}}


SLURM = """#!/bin/bash
#SBATCH --job-name=resnet      # its name
#SBATCH -N 1
#SBATCH --gres=gpu:a100:2
#SBATCH --cpus-per-task=8 --mem=64G
#SBATCH -t 90
#SBATCH --array=0-3%2
#SBATCH --dependency=afterok:12:13
#SBATCH -o out-%j.txt
#SBATCH --partition=gpu
#SBATCH --mail-user=ann@example.org
#SBATCH --no-requeue

#BRIM --grace 2m --env MODE=fast
# a comment
echo start
#SBATCH --time=1
"""


def test_slurms_headers_are_translated_and_what_is_ignored_is_listed():
    found = read_headers(SLURM, "job.sh")
    assert found.slurm == {"SLURM_CPUS_PER_TASK": "8", "SLURM_MEM_PER_NODE": "65536", "SLURM_JOB_PARTITION": "gpu"}
    assert found.options == {
        "name": "resnet", "gpus": "a100:2", "cpus": "8", "mem": "65536M", "time": "90m", "array": "0-3%2",
        "depends-on": "afterok:12:13", "requeue": False, "grace": "2m", "env": {"MODE": "fast"},
    }  # fmt: skip
    assert [line.partition(":")[0] for line in found.ignored] == [
        "--output=out-%j.txt", "--partition=gpu", "--mail-user=ann@example.org",
    ]  # fmt: skip
    wants = asked(found.options)
    assert wants.fields["time_limit_s"] == 5_400
    assert wants.fields["cpus_per_gpu"] == 4.0
    assert wants.fields["mem_mib_per_gpu"] == 32_768
    assert (wants.indices, wants.fields["array_limit"]) == ((0, 1, 2, 3), 2)
    assert wants.after == (Dependency("after", "12"), Dependency("after", "13"))


@pytest.mark.parametrize(("line", "wanted"), [
    ("--gpus=4", {"gpus": "4"}), ("-G h100:2", {"gpus": "h100:2"}), ("--gpus-per-node 2", {"gpus": "2"}),
    ("--gres=gpu:2", {"gpus": "2"}), ("--gres=gpu", {"gpus": "1"}), ("-N 2 --gpus-per-node=a100:2", {"gpus": "a100:4"}),
    ("-n 4 --gpus-per-task=1", {"gpus": "4"}), ("-N 2 --ntasks-per-node=2 --gpus-per-task=2", {"gpus": "8"}),
    ("-n 2 --ntasks-per-node=1 --gres=gpu:2", {"gpus": "4"}),
    ("-n 5 --ntasks-per-node=2 --gpus-per-node=a100:1", {"gpus": "a100:3"}),
    ("-N 2 --gres=gpu:a100", {"gpus": "a100:2"}), ("-s -Q -W -B 1:2 -m block -c 2", {"cpus": "2"}),
    ("-N 1 --ntasks-per-node=8 -c 8", {"cpus": "64"}), ("-N 2 -c 8", {"cpus": "16"}),
    ("-N 2 -n 3 --ntasks-per-node=2 -c 8 --mem-per-cpu=1G", {"cpus": "24", "mem": "24576M"}),
    ("-N 2-4 --ntasks-per-node=2 --mem-per-cpu=1G", {"mem": "4096M"}),
    ("--mem=4G", {"mem": "4096M"}), ("-N 2 --mem=4G", {"mem": "8192M"}),
    ("-n 5 --ntasks-per-node=2 --mem=4G", {"mem": "12288M"}),
    ("-G 4 --ntasks-per-gpu=2 -c 3", {"gpus": "4", "cpus": "24"}), ("-n 5 --ntasks-per-gpu=2", {"gpus": "3"}),
    ("-N 2 --gres=gpu:2 --ntasks-per-gpu=1 -c 3", {"gpus": "4", "cpus": "12"}),
    ("-n 8 --ntasks-per-gpu=2 -G a100:4 -c 1", {"gpus": "a100:4", "cpus": "8"}),
    ("--mem-per-gpu=8G --gpus=2", {"gpus": "2", "mem": "16384M"}),
    ("--mem-per-cpu=2G -c 4", {"mem": "8192M", "cpus": "4"}),
    ("--cpus-per-gpu=6 --gpus 2", {"gpus": "2", "cpus": "12"}),
    ("-t 1-0", {"time": "1-0"}), ("--time=UNLIMITED", {}), ("--hold", {"hold": True}), ("--nice=5", {"priority": "-5"}),
    ("-H -J x", {"hold": True, "name": "x"}), ("--chdir=/tmp", {"chdir": "/tmp"}), ("-Jx", {"name": "x"}),
    ("--job-name='my job (v2)'", {"name": "my-job--v2-"}), ("--comment ''", {}), ("--mem=0", {}),
    ("--begin=now+30", {"begin": "now+30s"}), ("-b now+1hour", {"begin": "now+1h"}), ("-b 16:00", {"begin": "16:00"}),
    ("--gres=gpu:a100:2,tmpdir:10G", {"gpus": "a100:2"}), ("--gres=tmpdir:10G,gpu:2", {"gpus": "2"}),
    ("--export=ALL,FOO=bar,LR=0.1", {"env": {"FOO": "bar", "LR": "0.1"}}), ("--export=ALL", {}), ("--gres=gpux:2", {}),
    ("--depend=afterok:2", {"depends-on": "afterok:2"}), ("--cpus-per-t=1 --job x", {"cpus": "1", "name": "x"}),
    ("--mem=1G --gpus 2", {"mem": "1024M", "gpus": "2"}), ("--tasks-per-node=4 -c 2", {"cpus": "8"}),
    ("-d afterany:3", {"depends-on": "afterany:3"}), ("--deadline=now+2h", {"deadline": "now+2h"}),
    ("--deadline=now+2hours", {"deadline": "now+2h"}), ("--deadline=now+90", {"deadline": "now+90s"}),
])  # fmt: skip
def test_each_of_slurms_options(line, wanted):
    assert read_headers(f"#SBATCH {line}\n", "job.sh").options == wanted


@pytest.mark.parametrize("line", ["--job-name", "-J", "--job-name --hold", "--comment", "-t"])
def test_an_option_of_sbatch_without_its_value_is_refused(line):
    with pytest.raises(ConfigError, match=r"^f, line 1: found --(job-name|comment|time) without a value, expected one"):
        read_headers(f"#SBATCH {line}\n", "f")
    assert read_headers("#SBATCH --nice --hold\n", "f").options == {"priority": "-100", "hold": True}


def test_a_beginning_of_several_options_is_refused_and_a_name_that_sbatch_does_not_know_is_listed():
    with pytest.raises(ConfigError, match=r"^f, line 1: found --exc, expected one of --exclude, --exclusive$"):
        read_headers("#SBATCH --exc=1\n", "f")
    assert read_headers("#SBATCH --open=append --segment=2\n", "f").ignored == (
        "--open-mode=append: logs are kept attempt by attempt", "--segment=2: it has no meaning here",
    )  # fmt: skip


def test_of_resources_and_variables_what_is_not_kept_is_listed():
    text = "#SBATCH --gres=tmpdir:10G,gpu:2 --ntasks-per-gpu=1\n#SBATCH --export=ALL,A=1\n#BRIM --env B=2\n"
    found = read_headers(text, "f")
    assert found.options == {"gpus": "2", "env": {"A": "1", "B": "2"}}
    assert found.ignored == (
        "--gres=tmpdir:10G: brim gives out GPUs, cores and memory",
        "--ntasks-per-gpu=1: the script is started once; `#BRIM --ranks per-gpu` starts it once per GPU",
    )


def test_all_memory_of_the_node_is_not_kept_which_is_listed():
    assert read_headers("#SBATCH --mem=0G\n", "f").options == {}
    found = read_headers("#SBATCH --mem=0\n", "f")
    assert (found.options, found.ignored) == ({}, ("--mem=0: all memory of the node: brim keeps none for it",))


def test_nodes_and_tasks_that_are_ignored_say_what_counts_as_often():
    found = read_headers("#SBATCH --nodes=2 --gres=gpu:1 --ntasks=3 -c 2\n", "f")
    assert found.options == {"gpus": "2", "cpus": "6"}
    assert found.ignored == (
        "--nodes=2: there is one node; --gres counts 2 times",
        "--ntasks=3: the script is started once; `#BRIM --ranks per-gpu` starts it once per GPU; "
        "--cpus-per-task counts 3 times",
    )


@pytest.mark.parametrize(("line", "said"), [
    ("-N 2 --ntasks-per-node=8 -c 8", ["nodes=2: cpus-per-task 16", "ntasks-per-node=8: cpus-per-task 16"]),
    ("-N 2 -n 16 --ntasks-per-node=8 --gres=gpu:8 --mem-per-gpu=1G", ["ntasks=16: gres 2, mem-per-gpu 2"]),
    ("-n 4 --ntasks-per-node=2 --gpus-per-node=2", ["ntasks=4: gpus-per-node 2"]),
    ("-n 2 --ntasks-per-node=1 --gres=gpu:h100:2", ["ntasks=2: gres 2"]),
    ("-N 3 --mem=4G", ["nodes=3: mem 3"]), ("-G 4 --ntasks-per-gpu=2 -c 3", ["ntasks-per-gpu=2: cpus-per-task 8"]),
])  # fmt: skip
def test_what_nodes_and_tasks_mean_together_is_said_with_the_number_that_counts(line, said):
    ignored = read_headers(f"#SBATCH {line}\n", "f").ignored
    counts = {each.partition(":")[0][2:]: re.findall(r"--([\w-]+) counts (\d+) times", each) for each in ignored}
    assert [f"{name}: {', '.join(map(' '.join, found))}" for name, found in counts.items() if found] == said


@pytest.mark.parametrize("line", [
    "--dependency=singleton", "-d after:3", "-d afterok:1?afterok:2", "-d afterany:", "--mem=x",
    "--cpus-per-task=x", "--gpus-per-task=x", "--ntasks=x", "--ntasks-per-node=x", "--ntasks-per-gpu=x", "job.sh",
    "--nice=x", "--job-name=", "--array=", "--mem-per-cpu=1 -c inf", "'",
])  # fmt: skip
def test_what_slurm_would_do_and_brim_cannot_is_an_error_with_its_line(line):
    for first in ("#!/bin/sh", "#SBATCH --nodes=2"):
        with pytest.raises(ConfigError, match=r"^job.sh, line 2: "):
            read_headers(f"{first}\n#SBATCH {line}\n", "job.sh")


@pytest.mark.parametrize(("line", "said"), [
    ("--gpus-per-socket=2", "--gpus-per-socket: found '2', expected --gpus, --gpus-per-node"),
    ("--gres=gpu:a100:1,gpu:v100:1", "--gres: found 'gpu:a100:1,gpu:v100:1', expected GPUs of one type"),
    ("--gpus=a100:1,v100:1", "--gpus: found 'a100:1,v100:1', expected GPUs of one type"),
    ("--gres=gpu:0", "--gres: found 'gpu:0', expected GPUs of one type, at least one, such as gpu:2 or gpu:a100:2"),
    ("--gpus-per-node=0", "--gpus-per-node: found '0', expected GPUs of one type, at least one"),
    ("--tres-per-task=gres/gpu:1", "--tres-per-task: found 'gres/gpu:1', expected --gpus, --gpus-per-node"),
    ("-G 0", "--gpus: found '0', expected GPUs of one type, at least one"),
])  # fmt: skip
def test_gpus_that_brim_cannot_give_are_refused_with_their_line(line, said):
    with pytest.raises(ConfigError, match=rf"^job.sh, line 2: {re.escape(said)}"):
        read_headers(f"#!/bin/sh\n#SBATCH {line}\n", "job.sh")


def test_a_wrong_header_of_brim_names_its_line():
    with pytest.raises(ConfigError, match=r"^job.sh, line 3: found '--gpu=4', expected one of --name, --gpus"):
        read_headers("#!/bin/sh\n#BRIM -g 1\n#BRIM --gpu=4\n", "job.sh")
    assert read_headers("#BRIMFUL -x\n#SBATCHES -x\n", "job.sh").options == {}


FILE = """
name: resnet
run: python train.py --epochs 90
workdir: /tmp
env: {WANDB_PROJECT: demo, N: 3}
resources: {gpu: "A100:1..8", cpu: 4..16, memory: 32GB..}
class: filler
limits: {time: 12:00:00, preempt_grace: 120s}
depends_on: [prep, 3]
hold: true
"""


def jobfile(tmp_path, text):
    (tmp_path / "job.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_jobfile(tmp_path / "job.yaml")


def test_a_file_says_the_same_as_options(tmp_path):
    found = jobfile(tmp_path, FILE)
    assert found.command == ("python", "train.py", "--epochs", "90")
    assert found.options == {
        "name": "resnet", "chdir": "/tmp", "env": {"WANDB_PROJECT": "demo", "N": "3"}, "gpus": "A100:1..8", "cpus": "4",
        "mem": "32GB", "class": "padding", "time": "12:00:00", "grace": "120s", "depends-on": "prep,3", "hold": True,
    }  # fmt: skip
    assert asked(found.options).fields["time_limit_s"] == 43_200
    minutes = jobfile(tmp_path, "run: x\nlimits: {time: 5, preempt_grace: 5}\n").options
    assert minutes == {"time": "5", "grace": "5s", "class": "regular"}  # Slurm: minutes; Kubernetes: seconds
    with pytest.raises(ConfigError, match=r"^--time: found '5', expected a duration such as 90s, 90m"):
        asked(minutes)
    elastic = jobfile(tmp_path, "run: [a, b c]\nelastic: {sizes: [1, 2, 4], global_batch: 256}\n")
    assert elastic.command == ("a", "b c")
    assert asked(elastic.options).fields["sizes"] == [1, 2, 4]
    assert asked(elastic.options).fields["batch"] == 256
    uses = jobfile(tmp_path, "run: x\nresources: {gpu_memory: 10GB, gpu_utilization: 60%}\n").options
    assert (uses["gpu-mem"], uses["gpu-util"]) == ("10GB", "60%")
    assert jobfile(tmp_path, "run: x\nranks: per-gpu\n").options["ranks"] == "per-gpu"
    for text in ("2026-11-23T08:00", "2026-11-23 08:00:00", "2026-11-23", "14:30"):
        found = jobfile(tmp_path, f"run: x\nbegin: {text}\nenv: {{AT: {text}}}\nlimits: {{time: 1:30:00}}\n").options
        assert (found["begin"], found["env"], found["time"]) == (text, {"AT": text}, "1:30:00")
        assert asked(found).fields["time_limit_s"] == 5_400
        assert asked(found).fields["begin_s"] == asked({"begin": text}).fields["begin_s"]
    assert jobfile(tmp_path, "run: cd x && ./y | tee z").command == ("/bin/sh", "-c", "cd x && ./y | tee z")


@pytest.mark.parametrize(("text", "said"), [
    ("run: &a [x]\nname: *a\n", "line 2: found an alias"), ("a: &a [&b [1], 2]\nb: [*a, *a]", "line 2: found an alias"),
    ("run: !!python/object/apply:os.system [id]", "could not determine a constructor"),
    ("run: !!binary aGk=\nname: !!python/name:os.system x", "could not determine"),
    ("run: x\nresources: " + "[" * 100 + "]" * 100, "more than 32 levels"),
    ("{" * 3_000, "more than 32 levels"), ("", "found no fields"), ("- a", "found no fields"),
    ("run: x\nfoo: 1", "field 'foo'"),
    ("run: x\nresources: {gpus: 1}", "field 'gpus', expected one of gpu, cpu, memory, gpu_memory, gpu_utilization"),
    ("name: x", "run: found nothing, expected a command"),
    ("run: x\nenv: [1]", "env: found"), ("run: x\nenv: {A: yes}", "in quotes"),
    ("run: x\nname: {a: 1}", "name: found"), ("run: 'a", "job.yaml, line "),
    ('run: "echo \\0 x"', r"run: found 'echo \x00 x', expected no NUL in it"), ('run: [a, "\\0"]', "run: found"),
    ('run: x\nenv: {A: "a\\0b"}', r"env: found 'a\x00b'"), ('run: x\nenv: {"a\\0b": 1}', "env: found"),
    ('run: x\nworkdir: "~\\0"', r"workdir: found '~\x00', expected no NUL in it"),
    ("run: x\n\x00", "job.yaml"), (b"run: \xff\xfe", "job.yaml"), ("run: x\n1: 2", "field 1"),
    ("run: \"a 'b\"", "run: No closing"),
    ("run: x\nhold: maybe\nlimits: 3", "limits: found 3"), (b"#" * (FILE_BYTES_MAX + 1), "over 65536 bytes"),
    ("run: x\nname: a\nname: b\n", "line 3: found 'name' a second time"),
    ("run: x\nenv:\n  A: 1\n  B: 2\n  A: 3\n", "line 5: found 'A' a second time"),
    ("run: x\nresources: {gpu: 1, cpu: 2,\n  gpu: 3}\n", "line 3: found 'gpu' a second time"),
    ("run: x\npriority: .nan\nname: [[1]]", "name: found"),
])  # fmt: skip
def test_a_hostile_file_is_refused_in_one_line(tmp_path, text, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        jobfile(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert "job.yaml" in str(caught.value)
