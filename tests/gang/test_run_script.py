"""A rank forked from the zygote cannot be told from ``python script.py args``: both are run, and compared."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from brim.gang import fork_safety
from brim.gang.inherited import AS_IT_IS, Inherited
from brim.gang.zygote_client import ZygoteClient
from brim.gang.zygote_events import ProcessExited, ProcessStarted, StartFailed, ZygoteLost, ZygoteReady
from tests.gang.conftest import END_S

PROBE = """
import atexit, io, json, multiprocessing, os, random, signal, sys, tempfile, threading
import neighbour
try: from package.inner import name as inner
except ModuleNotFoundError: inner = None
def child(queue): queue.put([__name__, os.getcwd(), sys.argv])
if __name__ == "__main__":
    main = sys.modules["__main__"]
    hidden = {"child", "main", "hidden", "found", "queue", "process", "context"}
    found = {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(), "name": __name__,
        "file": __file__, "spec": str(getattr(__spec__, "name", None)), "package": __package__,
        "loader": type(__loader__).__name__ if not isinstance(__loader__, type) else __loader__.__name__,
        "cached": __cached__, "doc": __doc__, "builtins": type(__builtins__).__name__,
        "names": sorted(set(vars(main)) - hidden), "same": vars(main) is globals(), "neighbour": neighbour.__file__,
        "inner": inner, "threads": threading.active_count(), "main_thread": threading.current_thread().name,
        "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines,
                     type(s.buffer).__name__, s.fileno(), s.isatty()] for s in (sys.stdin, sys.stdout, sys.stderr)],
        "same_streams": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],
        "signals": [str(signal.getsignal(n)) for n in (2, 15, 17, 1, 13)], "env": sorted(os.environ.items()),
        "mask": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())], "leader": os.getsid(0) == os.getpid(),
        "children": len(multiprocessing.active_children()), "exit": str(sys.excepthook),
        "wakeup": signal.set_wakeup_fd(-1), "flags": str(sys.flags), "tmp": tempfile.gettempdir(),
        "origin": multiprocessing.process.ORIGINAL_DIR,
        "annotations": __annotations__, "executable": sys.executable,
    }
    found["names"] = [n for n in found["names"]]
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=neighbour.child if __file__.endswith("__main__.py") else child, args=(queue,))
    process.start(); found["spawned"] = queue.get(); process.join(); found["spawn_code"] = process.exitcode
    json.dump(found, sys.stdout)
    atexit.register(lambda: print("at exit", threading.active_count()))
    threading.Timer(0.05, lambda: print("a thread that is waited for")).start()
"""


@pytest.fixture
def folder(tmp_path):
    """A project with a script, a neighbour, and a package."""
    project = tmp_path / "project"
    (project / "package").mkdir(parents=True)
    (project / "script.py").write_text(PROBE)
    (project / "neighbour.py").write_text("def child(queue): queue.put(__name__)")
    (project / "package" / "__init__.py").write_text("")
    (project / "package" / "inner.py").write_text("from . import __name__ as up\nname = __name__ + up")
    (project / "package" / "run.py").write_text(PROBE)
    (project / "package" / "__main__.py").write_text(PROBE)
    (project / "package" / "neighbour.py").write_text("def child(queue): queue.put(__name__)")
    (project / "link.py").symlink_to(project / "script.py")
    return project


class Forks:
    """A zygote without torch, and what becomes of those it starts."""

    def __init__(self, cwd, preload=("json",), env=None, path=None):
        self.cwd = str(cwd)
        self.env = {**os.environ, **(env or {})}
        python = sys.executable
        if path is not None:  # a folder that only the zygote knows: no variable that a rank could be told apart by
            python = str(path / "python")
            known = f"import sys; sys.path.append('{path}'); $program"
            Path(python).write_text(f'#!/bin/sh\nprogram="$2"; shift 2\nexec {sys.executable} -c "{known}" "$@"\n')
            os.chmod(python, 0o755)
        self.client = ZygoteClient.private(python, preload, self.env, self.cwd, 1.0)
        self.number = 0
        ready = self.events()[0]
        assert isinstance(ready, ZygoteReady)
        self.ready = ready

    def events(self):
        return self.client.receive()

    def run(self, command, stdin=b"", env=None, cwd=None, during=None, inherits=AS_IT_IS):
        """Start it, and wait: code, stdout, stderr, how, why."""
        self.number += 1
        in_fd, in_write = os.pipe()
        out_read, out_fd = os.pipe()
        err_read, err_fd = os.pipe()
        os.write(in_write, stdin)
        os.close(in_write)
        fds = [in_fd, out_fd, err_fd]
        self.client.start(self.number, command, env or self.env, str(cwd or self.cwd), fds, inherits)
        for fd in (in_fd, out_fd, err_fd):
            os.close(fd)
        texts = {}
        threads = [threading.Thread(target=self._read, args=(texts, n, fd)) for n, fd in ((1, out_read), (2, err_read))]
        for thread in threads:
            thread.start()
        how, why, code = "", "", None
        while code is None:
            for event in self.events():
                if isinstance(event, ProcessStarted):
                    how, why = event.start_method, event.spawn_reason
                    if during:
                        during(event)
                    os.close(event.pidfd)
                elif isinstance(event, StartFailed):
                    how, why, code = "refused", event.detail, event.exit_code
                elif isinstance(event, ProcessExited):
                    code = os.waitstatus_to_exitcode(event.wait_status)
                else:
                    assert not isinstance(event, ZygoteLost)
        for thread in threads:
            thread.join()
        return code, texts[1], texts[2], how, why

    @staticmethod
    def _read(texts, number, fd):
        with open(fd) as file:
            texts[number] = file.read()

    def close(self):
        pid = self.client.pid
        self.client.close()
        os.waitpid(pid, 0)


@pytest.fixture
def forks(folder):
    made = []

    def make(**options):
        made.append(Forks(options.pop("cwd", folder), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def fresh(command, cwd, stdin=b""):
    done = subprocess.run(
        command, cwd=cwd, input=stdin, capture_output=True, start_new_session=True, check=False, env=dict(os.environ)
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.cases(3)
@pytest.mark.parametrize("words", [
    ["script.py", "a", "b c", "--x"], ["./script.py"], ["../project/script.py"], ["link.py"], ["-u", "script.py"],
    ["-m", "package.run", "-x"], ["-m", "package"], ["package"], ["{abs}/script.py"],
], ids=" ".join)  # fmt: skip
def test_everything_a_script_can_see_is_as_in_a_fresh_interpreter(forks, folder, words):
    command = [sys.executable, *(word.format(abs=folder) for word in words)]
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "has_looked.py").write_text("import multiprocessing, tempfile; tempfile.gettempdir()")
    zygote = forks(preload=("has_looked",), cwd=folder / "elsewhere", env={"TMPDIR": "/"}, path=folder / "elsewhere")
    code, out, err, how, why = zygote.run(command, env=dict(os.environ), cwd=folder)
    assert (how, why) == ("fork", "")
    expected = fresh(command, folder)
    found, wanted = (json.loads(text[: text.rindex("}") + 1]) for text in (out, expected[1]))
    for one in (found, wanted):
        one["env"] = [item for item in one["env"] if item[0] != "BRIM_GANG"]
    found["path"].remove(str(folder / "elsewhere"))
    wanted["fds"], found["fds"] = [fd for fd in wanted["fds"] if fd < 3], found["fds"]
    assert found == wanted
    assert (code, out[out.rindex("}") :], err) == (expected[0], expected[1][expected[1].rindex("}") :], expected[2])


def test_umask_and_limits_are_those_asked_for_however_it_is_started(forks, folder):
    show = "import os, resource; print(os.umask(0), resource.getrlimit(resource.RLIMIT_CORE)[0])"
    (folder / "show.py").write_text(show)
    zygote, wanted = forks(), Inherited(umask=0o31, limits={"core": 0})
    code, out, _, how, _ = zygote.run([sys.executable, "show.py"], inherits=wanted)
    assert (code, out, how) == (0, f"{0o31} 0\n", "fork")
    code, out, _, how, _ = zygote.run(["/bin/sh", "-c", "umask; ulimit -c"], inherits=wanted)
    assert (code, out, how) == (0, "0031\n0\n", "spawn")
    code, out, *_ = zygote.run(["/bin/sh", "-c", "umask"])
    assert int(out, 8) == os.umask(int(out, 8))


ENDINGS = {
    "returns": "",
    "exit 3": "import sys; sys.exit(3)",
    "exit text": "import sys; sys.exit('sorry')",
    "exit none": "raise SystemExit",
    "exit 300": "raise SystemExit(300)",
    "os._exit": "import os; os._exit(7)",
    "exception": "def f(): 1/0\nf()",
    "chained": "try: 1/0\nexcept Exception as e: raise KeyError('x') from e",
    "group": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "syntax": "def f(:\n  pass",
    "null": "x = '\\0'\n\0",
    "encoding": "# -*- coding: latin-1 -*-\nprint(ascii('\xe4'))",
    "bad encoding": "# -*- coding: nonsense -*-\n",
    "tabs": "if 1:\n\tx=1\n        y=2",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "abort": "import os; os.abort()",
    "hook": "import sys\nsys.excepthook = lambda *e: print('hook', e[0], e[2] is not None)\n1/0",
    "broken hook": "import sys\nsys.excepthook = None\nprint(1)",
    "thread": "import threading; threading.Thread(target=lambda: 1/0).start()",
    "at exit": "import atexit; atexit.register(lambda: print('bye')); raise ValueError",
    "closed": "import sys; print('x'); sys.stdout.flush(); 1/0",
    "unflushed": "import os; print('lost'); os._exit(0)",
    "input": "print(input() + input())",
    "argv0": "import sys; print(sys.argv, __file__)",
    "future": "from __future__ import annotations\ndef f(x: nothing): ...\nprint(f.__annotations__)",
    "no future": "try:\n  def f(x: nothing): ...\nexcept NameError: print('evaluated')",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "warning": "import warnings; warnings.warn('look', stacklevel=1)",
    "file left open": "f = open('left', 'w'); f.write('text')",
    "left in a module": "import sys, types; open('mod.py', 'w').write('f = open(\"left2\", \"w\")')\n"
                        "import mod; mod.f.write('text')",
    "last words": "class A:\n  def __del__(self): print('last words')\na = A(); b = [a]; b.append(b)",
    "callback of the collector": "import gc, time\nnow = time.monotonic\ngc.callbacks.append(lambda *_: now())",
    "exit in a thread": "import threading, sys; threading.Thread(target=lambda: sys.exit(3)).start()",
    "daemon": "import threading, time\ndef loop():\n  while True: time.sleep(0.001)\n"
              "threading.Thread(target=loop, daemon=True).start(); time.sleep(0.05)",
    "exit function fails": "import atexit; atexit.register(lambda: 1/0)",
    "exit in exit function": "import atexit, sys; atexit.register(lambda: sys.exit(4))",
    "executor": "from concurrent.futures import ThreadPoolExecutor as E; E().submit(lambda: print('done'))",
    "forks": "import os, multiprocessing as m\ndef f(): print('child', flush=True)\n"
             "if __name__ == '__main__':\n  p = m.get_context('fork').Process(target=f); p.start(); p.join()",
    "no stdout": "import os; print('x'); os.close(1)",
    "closed stdout": "import sys; sys.stdout.close()",
    "recursion": "def f(): f()\nf()",
}


@pytest.mark.cases(18)
@pytest.mark.parametrize("name", ENDINGS)
def test_it_ends_as_a_fresh_interpreter_would(one_zygote, name):
    folder, zygote = one_zygote
    (folder / "end.py").write_bytes(ENDINGS[name].encode("latin-1"))
    command = [sys.executable, "end.py", "x"]
    code, out, err, how, _ = zygote.run(command, b"in\nput\n")
    assert how == "fork"
    left = taken(folder)
    wanted_code, wanted_out, wanted_err = fresh(command, folder, b"in\nput\n")
    assert left == taken(folder)
    assert code == wanted_code
    assert out == wanted_out
    ours_alone = r"0x[0-9a-f]+|repeated \d+ more"  # addresses, and a stack that is four frames deep already
    assert re.sub(ours_alone, "", err) == re.sub(ours_alone, "", wanted_err)


def taken(folder):
    """What was left in files, which are taken away."""
    texts = {path.name: path.read_text() for path in folder.glob("left*")}
    for name in texts:
        (folder / name).unlink()
    return texts


@pytest.fixture(scope="module")
def one_zygote(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ends")
    zygote = Forks(folder)
    yield folder, zygote
    zygote.close()


@pytest.mark.cases(5)
@pytest.mark.parametrize("words", [
    ["missing.py"], ["-m", "missing"], ["-m", "package.missing"],
    ["-c", "import sys; print(sys.argv, sys.path[0])", "y"],
    ["-c", "1/0"], ["-c", "def"], ["-m", "json.tool", "missing"],
    ["-c", "print(__name__, __spec__, __loader__, '__file__' in vars())"],
    ["empty"],
], ids=" ".join)  # fmt: skip
def test_what_is_missing_is_said_as_python_says_it(forks, folder, words):
    (folder / "empty").mkdir()
    command = [sys.executable, *words]
    code, out, err, how, _ = forks().run(command)
    assert how == "fork"
    assert (code, out, err) == fresh(command, folder)


@pytest.mark.parametrize(("words", "why"), [
    (["/bin/echo", "hello"], "/bin/echo is not"), (["echo", "hello"], "echo is not"),
    (["PYTHON", "-O", "script.py"], "option -O"), (["PYTHON", "-W", "error", "script.py"], "option -W"),
    (["PYTHON", "-"], "standard input"),
])  # fmt: skip
def test_what_cannot_be_forked_is_started_afresh_and_why_is_said(forks, words, why):
    words = [sys.executable if word == "PYTHON" else word for word in words]
    code, _, _, how, said = forks().run(words)
    assert (code, how) == (0, "spawn")
    assert why in said


def test_a_command_that_is_not_there_is_refused_as_a_shell_would(forks, folder):
    code, _, _, how, why = forks().run(["no-such-program"])
    assert (code, how) == (127, "refused")
    assert "no-such-program" in why
    (folder / "plain").write_text("text")
    assert forks().run(["./plain"])[0] == 126


def test_a_variable_that_is_read_at_start_takes_a_fresh_interpreter(forks):
    zygote = forks()
    for name in ("PYTHONHASHSEED", "OMP_NUM_THREADS", "LD_PRELOAD", "PYTHONPATH"):
        value = {"LD_PRELOAD": ""}.get(name, "3")
        *_, how, why = zygote.run([sys.executable, "-c", ""], env={**zygote.env, name: value})
        assert how == "spawn"
        assert name in why
    *_, how, why = zygote.run([sys.executable, "-c", ""], env={**zygote.env, "BRIM_ZYGOTE": "off"})
    assert (how, why) == ("spawn", "BRIM_ZYGOTE=off")
    *_, how, _ = zygote.run([sys.executable, "-c", ""], env={**zygote.env, "CUDA_VISIBLE_DEVICES": "1"})
    assert how == "fork"


def test_a_module_beside_the_script_is_not_hidden_by_a_preloaded_one(forks, folder):
    zygote = forks(preload=("colorsys",))
    (folder / "colorsys.py").write_text("mine = 1")
    (folder / "uses.py").write_text("import colorsys; print(colorsys.mine)")
    code, out, _, how, why = zygote.run([sys.executable, "uses.py"])
    assert (code, out, how) == (0, "1\n", "spawn")
    assert "colorsys" in why


@pytest.mark.parametrize(("module", "why"), [
    ("import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()", "threads run"),
    ("import os; os.environ['BRIM_ZYGOTE'] = 'off'", "BRIM_ZYGOTE=off"),
    ("import sys, types\nt = types.ModuleType('torch')\nt.cuda = types.SimpleNamespace(is_initialized=lambda: True)\n"
     "sys.modules['torch'] = t", "CUDA is initialised"),
    ("import os, sys, types\nt = types.ModuleType('torch'); me = os.getpid()\nt.cuda = types.SimpleNamespace("
     "is_initialized=lambda: False, _is_in_bad_fork=lambda: os.getpid() != me)\nsys.modules['torch'] = t",
     "driver was touched"),
])  # fmt: skip
def test_a_hook_that_makes_fork_unsound_is_noticed(forks, folder, module, why):
    (folder / "hook.py").write_text(module)
    (folder / "hello.py").write_text("print(1)")
    zygote = forks(preload=("hook",), env={"PYTHONPATH": str(folder)})
    assert why in zygote.ready.fork_obstacle
    assert zygote.run([sys.executable, "hello.py"])[1] == "1\n"


def test_what_cannot_be_preloaded_is_left_out(forks):
    zygote = forks(preload=("no_such_module_anywhere", "json"))
    assert zygote.ready.fork_obstacle is None
    assert zygote.run([sys.executable, "-c", "import sys; print('json' in sys.modules)"])[1] == "True\n"


def test_the_end_of_a_rank_finalizes_what_it_has_made_and_not_what_the_zygote_has(folder):
    (folder / "makes.py").write_text("import tempfile; its = tempfile.TemporaryDirectory()")
    program = "import makes, sys, tempfile as t; sys.own = t.TemporaryDirectory(); print(makes.its.name, sys.own.name)"
    with contextlib.closing(Forks(folder, preload=("makes",), env={"PYTHONPATH": str(folder)})) as zygote:
        of_zygote, own = zygote.run([sys.executable, "-c", program])[1].split()
        assert (os.path.exists(of_zygote), os.path.exists(own)) == (True, False)
    assert not os.path.exists(of_zygote)


def test_the_end_of_a_supervisor_leaves_what_a_shared_zygote_has_made_to_it(tmp_path, folder):
    (folder / "makes.py").write_text("import tempfile; its = tempfile.TemporaryDirectory(prefix='its-', dir='.')")
    path, env = str(tmp_path / "z"), {**os.environ, "PYTHONPATH": str(folder)}
    root = subprocess.Popen([sys.executable, "-m", "brim.gang.zygote", "--listen", path, "--preload", "makes"],
                            cwd=folder, env=env, stderr=subprocess.PIPE)  # fmt: skip
    try:
        assert b"listening" in root.stderr.readline()
        client = ZygoteClient.shared(path)
        (ready,) = client.receive()
        client.close()
        wait_gone(ready.pid)
        assert len([*folder.glob("its-*")]) == 1
    finally:
        root.terminate()
        root.wait()
        root.stderr.close()
    assert not [*folder.glob("its-*")]


def test_ranks_have_different_random_numbers_and_torch_starts_as_ever(forks):
    zygote = forks(preload=("numpy.random",))
    program = "import random, numpy, multiprocessing as m; print(random.random(), numpy.random.rand(), " \
              "m.current_process().authkey.hex())"  # fmt: skip
    first, second = (zygote.run([sys.executable, "-c", program])[1].split() for _ in range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_a_signal_to_a_rank_reaches_it_and_only_it(forks, folder):
    (folder / "wait.py").write_text(
        "import time\ntry: open('here', 'w'); time.sleep(20)\nexcept KeyboardInterrupt: print('caught')"
    )
    zygote = forks()

    def interrupt(event):
        while not (folder / "here").exists():
            time.sleep(0.01)
        signal.pidfd_send_signal(event.pidfd, signal.SIGINT)

    assert zygote.run([sys.executable, "wait.py"], during=interrupt)[:2] == (0, "caught\n")
    assert zygote.run([sys.executable, "-c", ""])[0] == 0


def test_descriptors_of_the_zygote_do_not_grow(forks):
    zygote = forks()
    count = lambda: len(os.listdir(f"/proc/{zygote.client.pid}/fd"))  # noqa: E731
    zygote.run([sys.executable, "-c", ""])
    before = count()
    for _ in range(10):
        zygote.run([sys.executable, "-c", ""])
        zygote.run(["/bin/true"])
    assert count() == before


def test_the_error_file_holds_the_traceback(forks, folder):
    zygote = forks()
    path = folder / "error.json"
    _, _, err, _, _ = zygote.run([sys.executable, "-c", "1/0"], env={**zygote.env, "BRIM_ERROR_FILE": str(path)})
    assert json.loads(path.read_text())["traceback"] == err


def test_parse_command():
    parsed = fork_safety.PythonCommand
    assert fork_safety.parse_command(["-m", "a.b", "-c"], "/") == parsed("module", "a.b", ("-c",))
    assert fork_safety.parse_command(["-u", "-m", "a"], "/") == parsed("module", "a", (), unbuffered=True)
    assert fork_safety.parse_command(["s.py", "-m"], "/") == parsed("script", "s.py", ("-m",))
    assert isinstance(fork_safety.parse_command([], "/"), str)
    assert isinstance(fork_safety.parse_command(["-"], "/"), str)


def test_one_zygote_serves_several_supervisors_and_each_dies_alone(tmp_path, folder):
    path = str(tmp_path / "z")
    root = subprocess.Popen([sys.executable, "-m", "brim.gang.zygote", "--listen", path, "--preload", "json"],
                            cwd=folder, stderr=subprocess.PIPE)  # fmt: skip
    try:
        assert b"listening" in root.stderr.readline()
        clients = [ZygoteClient.shared(path) for _ in range(2)]
        pids = []
        for client in clients:
            assert isinstance(client.receive()[0], ZygoteReady)
            null = os.open(os.devnull, os.O_RDWR)
            client.start(0, [sys.executable, "-c", "import time; time.sleep(60)"], os.environ, str(folder), [null] * 3)
            os.close(null)
            (started,) = client.receive()
            pids.append(started.pid)
            os.close(started.pidfd)
        clients[0].close()
        wait_gone(pids[0])
        os.kill(pids[1], 0)
        session = int(Path(f"/proc/{pids[1]}/stat").read_text().split()[3])
        os.kill(session, signal.SIGKILL)
        wait_gone(pids[1])
        assert isinstance(clients[1].receive()[0], ZygoteLost)
        clients[1].close()
        with socket.socket(socket.AF_UNIX) as again:
            again.connect(path)
    finally:
        root.terminate()
        root.wait()
        root.stderr.close()


def wait_gone(pid):
    deadline_s = time.monotonic() + END_S
    while time.monotonic() < deadline_s:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError(f"{pid} is still there")
