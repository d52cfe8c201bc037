"""The local executor: real processes, really gone."""

from __future__ import annotations

import select
import selectors
import time
import uuid
from pathlib import Path

import pytest

from brim.live.executor import ENDS, AttemptReport, Command, ReportKind
from brim.live.local import LocalExecutor
from tests.live.conftest import alive_with, python, sleeper


def until(executor: LocalExecutor, *whats: ReportKind, job: int = 0, seconds: float = 8.0) -> list[AttemptReport]:
    """Listen until one of these words about the job is heard."""
    heard: list[AttemptReport] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        heard += executor.wait(round(1000 * max(0.0, end_s - time.monotonic())))
        if any(report.kind in whats and report.job == job for report in heard):
            return heard
    raise AssertionError(f"heard only {heard}")


def last(reports: list[AttemptReport], job: int = 0) -> AttemptReport:
    return [report for report in reports if report.job == job][-1]


def test_a_command_runs_with_its_devices_in_its_own_session_and_its_log(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "print(os.environ['BRIM_JOB_ID'], os.environ['BRIM_ATTEMPT'], os.environ['BRIM_DEVICES'],\n"
        "      os.environ['OMP_NUM_THREADS'], os.getsid(0) == os.getpid(), os.path.isdir(os.environ['BRIM_CKPT_DIR']))"
    )
    code += "\nprint(os.environ.get('BRIM_LOADER_WORKERS'))"
    with LocalExecutor(4, tmp_path) as executor:
        executor.start(0, 3, (1, 2), python(code), 5)
        heard = until(executor, *ENDS)
    assert [report.kind for report in heard] == [ReportKind.LAUNCHED, ReportKind.STARTED, ReportKind.FINISHED]
    assert (tmp_path / "job-0" / "log").read_text() == "0 3 1,2 1 True True\n5\n"


@pytest.mark.parametrize(
    ("code", "stop", "what"),
    [
        (0, False, ReportKind.FINISHED), (1, False, ReportKind.FAILED), (75, False, ReportKind.FAILED),
        (75, True, ReportKind.STOPPED), (85, True, ReportKind.STOPPED), (99, True, ReportKind.STOPPED),
        (143, True, ReportKind.STOPPED),
        (0, True, ReportKind.FINISHED), (1, True, ReportKind.FAILED),
    ],
)
def test_exit_codes_mean_resume_me_only_after_an_announced_stop(
    tmp_path: Path, code: int, stop: bool, what: ReportKind
) -> None:
    script = (
        "import os, signal, sys\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))\n"
        f"os.write(int(os.environ['BRIM_REPORT_FD']), b'0/1\\n')\n"
        + ("signal.pause()" if stop else f"sys.exit({code})")
    )
    with LocalExecutor(1, tmp_path) as executor:
        executor.start(0, 1, (0,), python(script, reports=True))
        heard = until(executor, ReportKind.STARTED)
        if stop:
            executor.stop(0, 1)
        if last(heard).kind not in ENDS:
            heard = until(executor, *ENDS)
    assert last(heard).kind is what


@pytest.mark.parametrize("exit_first", [False, True])
def test_last_words_and_the_exit_are_heard_in_one_go_in_either_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_first: bool
) -> None:
    code = "import os; os.write(int(os.environ['BRIM_REPORT_FD']), b'1/2\\n')"
    with LocalExecutor(1, tmp_path) as executor:
        executor.start(0, 1, (0,), python(code, reports=True))
        both = select.poll()
        for key in list(executor._selector.get_map().values()):
            if key.data is not None:
                both.register(key.fd, select.POLLIN)
        end_s = time.monotonic() + 30
        while len(both.poll(0)) < 2:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        ready = executor._selector.select
        monkeypatch.setattr(executor._selector, "select", lambda s: sorted(ready(s), key=_fd, reverse=exit_first))
        heard = until(executor, *ENDS)
    words = [(report.kind, report.fraction) for report in heard]
    assert words == [
        (ReportKind.LAUNCHED, 0), (ReportKind.STARTED, 0), (ReportKind.PROGRESS, 0.5), (ReportKind.FINISHED, 0),
    ]


def _fd(event: tuple[selectors.SelectorKey, int]) -> int:
    return event[0].fd


def test_a_command_that_knows_nothing_of_stops_is_resumable(tmp_path: Path) -> None:
    with LocalExecutor(1, tmp_path) as executor:
        executor.start(0, 1, (0,), python("import signal; signal.pause()"))
        until(executor, ReportKind.STARTED)
        executor.stop(0, 1)
        assert last(until(executor, *ENDS)) == AttemptReport(0, 1, ReportKind.STOPPED, detail="ended by SIGTERM")


def test_who_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    deaf = (
        "import os, signal\n"
        "signal.signal(15, signal.SIG_IGN)\n"
        "os.write(int(os.environ['BRIM_REPORT_FD']), b'1/9\\n')\n"
        "while True: signal.pause()"
    )
    with LocalExecutor(1, tmp_path, grace_ms=300) as executor:
        executor.start(0, 1, (0,), python(deaf, reports=True))
        until(executor, ReportKind.PROGRESS)
        began_s = time.monotonic()
        executor.stop(0, 1)
        assert last(until(executor, *ENDS)) == AttemptReport(0, 1, ReportKind.STOPPED, detail="ended by SIGKILL")
        assert 0.29 < time.monotonic() - began_s < 5


def test_the_slots_are_free_only_when_the_whole_session_is_gone(tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    leaver = (  # its child is deaf to SIGTERM and in a process group of its own
        "import os, signal, subprocess, sys, time\n"
        "child = 'import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)'\n"
        "p = subprocess.Popen([sys.executable, '-I', '-S', '-c', child, sys.argv[1]], process_group=0,\n"
        "                     stdout=subprocess.PIPE)\n"
        "p.stdout.readline()\n"
        "os.write(int(os.environ['BRIM_REPORT_FD']), b'0/1\\n')\n"
        "time.sleep(60)"
    )
    with LocalExecutor(1, tmp_path) as executor:
        executor.start(0, 1, (0,), python(leaver, marker, reports=True))
        until(executor, ReportKind.STARTED)
        assert len(alive_with(marker)) == 2
        executor.stop(0, 1)
        assert last(until(executor, *ENDS)).kind is ReportKind.STOPPED
        assert alive_with(marker) == []


def test_a_start_waits_until_the_leaver_is_gone_and_may_be_taken_back(tmp_path: Path) -> None:
    slow = (
        "import os, signal, sys, time\n"
        "signal.signal(15, lambda *_: (time.sleep(0.4), sys.exit(75)))\n"
        "os.write(int(os.environ['BRIM_REPORT_FD']), b'0/1\\n')\n"
        "time.sleep(60)"
    )
    with LocalExecutor(2, tmp_path) as executor:
        executor.start(0, 1, (0, 1), python(slow, reports=True))
        until(executor, ReportKind.STARTED)
        executor.stop(0, 1)
        executor.start(1, 1, (0,), sleeper(0.1))
        executor.start(2, 1, (1,), sleeper(0.1))
        executor.stop(2, 1)
        heard = until(executor, *ENDS, job=1)
    assert [(r.job, r.kind) for r in heard] == [
        (2, ReportKind.STOPPED), (0, ReportKind.STOPPED), (1, ReportKind.LAUNCHED), (1, ReportKind.STARTED),
        (1, ReportKind.FINISHED),
    ]


def test_a_command_that_cannot_start_says_so_and_leaves_its_slots(tmp_path: Path) -> None:
    with LocalExecutor(1, tmp_path) as executor:
        executor.start(0, 1, (0,), Command(argv=("/no/such/command",), reports=True))
        (report,) = until(executor, *ENDS)
        assert report.kind is ReportKind.UNUSABLE
        assert report.detail == "cannot start '/no/such/command': No such file or directory"
        executor.start(1, 1, (0,), sleeper(0))
        assert last(until(executor, *ENDS, job=1), job=1).kind is ReportKind.FINISHED
    assert "No such file" in (tmp_path / "job-0" / "log").read_text()


def test_a_message_to_another_attempt_changes_nothing(tmp_path: Path) -> None:
    with LocalExecutor(1, tmp_path) as executor:
        executor.start(0, 2, (0,), sleeper(0.2))
        executor.stop(0, 1)
        executor.stop(7, 1)
        assert last(until(executor, *ENDS)).kind is ReportKind.FINISHED


def test_closing_ends_everybody(tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    executor = LocalExecutor(2, tmp_path, grace_ms=300)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    executor.start(0, 1, (0,), python(deaf, marker))
    executor.start(1, 1, (1,), python("import time; time.sleep(60)", marker))
    executor.start(2, 1, (1,), python("import time; time.sleep(60)", marker))
    assert len(alive_with(marker)) == 2
    executor.close()
    assert alive_with(marker) == []
    executor.close()
