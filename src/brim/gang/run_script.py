"""Make a forked process behave like ``python script.py args``: same argv, ``__main__``, paths and exit code.

``read_command`` parses a command line, or returns why it needs a fresh interpreter. ``why_not_fork`` returns why this
interpreter, with what it has already loaded, cannot stand in for a fresh one. ``become`` resets what a fork inherits.
``run`` executes the script and ends the process.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib.machinery
import io
import json
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

ERROR_FILE_VARIABLE: Final = "BRIM_ERROR_FILE"
"""Environment: the file to which a forked rank writes the exception that ends it, as JSON: ``{"at_ns": monotonic,
"traceback": text}``."""
FORBID_VARIABLE: Final = "BRIM_ZYGOTE"
"""Environment: ``off`` turns forking off, so every rank is a fresh interpreter. A site hook may set it."""
_READ_AT_START: Final = (
    "PYTHON", "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_", "ATEN_", "TORCH_",
    "PYTORCH_", "MALLOC_", "LC_", "LANG", "GLIBC_", "TCMALLOC_",
)  # fmt: skip
"""Prefixes of variables that an interpreter or a library reads once, at start. Our list, from their documentation."""
_TORCH_CONSTANT: Final = 67280421310721
"""The seed that torch uses at import (c10::detail::default_rng_seed_val); newer versions draw one at random."""
_GPU_DEVICES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


@dataclass(frozen=True, slots=True)
class PythonRun:
    """A parsed Python command; ``kind`` is ``script``, ``folder``, ``module`` or ``code``."""

    kind: str
    target: str
    args: tuple[str, ...]
    unbuffered: bool = False


def read_command(command: Iterable[str], cwd: str) -> PythonRun | str:
    """Return what ``python ...`` would run, or why that needs a fresh interpreter.

    ``command`` does not include the interpreter.
    """
    words = list(command)
    unbuffered = False
    while words and words[0] == "-u":
        unbuffered = True
        words.pop(0)
    if not words or words[0] == "-":
        return "it reads its program from standard input"
    if words[0] in ("-m", "-c") and len(words) > 1:
        kind = "module" if words[0] == "-m" else "code"
        return PythonRun(kind, words[1], tuple(words[2:]), unbuffered)
    if words[0].startswith("-"):
        return f"the interpreter option {words[0]}"
    path = os.path.join(cwd, words[0])
    if words[0].endswith((".pyc", ".pyw")):
        return "it is a compiled file"
    kind = "folder" if os.path.isdir(path) or _is_zip(path) else "script"
    return PythonRun(kind, words[0], tuple(words[1:]), unbuffered)


def why_not_fork(run: PythonRun, env: Mapping[str, str], cwd: str, at_start: Mapping[str, str]) -> str | None:
    """Return why this interpreter, started with ``at_start``, cannot stand in for a fresh one; None if it can."""
    if env.get(FORBID_VARIABLE) == "off":
        return f"{FORBID_VARIABLE}=off"
    for name in sorted(env.keys() | at_start.keys()):
        if name.startswith(_READ_AT_START) and env.get(name) != at_start.get(name):
            return f"{name} is {env.get(name)!r} for the rank and was {at_start.get(name)!r} when the zygote started"
    if any(not os.path.isabs(entry) for entry in env.get("PYTHONPATH", "/").split(":")) and cwd != _CWD_AT_START:
        return "PYTHONPATH has relative folders"
    return _hidden_module(_first_path(run, cwd))


def why_never_fork(threads: int) -> str | None:
    """Return why this interpreter must never be forked; None if forking is safe.

    A site hook or a preloaded module may have started threads or opened a GPU, neither of which survives a fork.
    """
    if os.environ.get(FORBID_VARIABLE) == "off":
        return f"{FORBID_VARIABLE}=off, set by a site hook"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return "CUDA is initialised in the zygote"
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if (path := os.readlink(f"/proc/self/fd/{fd}")).startswith(_GPU_DEVICES):
                return f"the zygote has {path} open"
    if threads > 1:
        return f"{threads - 1} threads run in the zygote: a site hook or a preloaded module started them"
    return None


def why_child_unsound() -> str | None:
    """In a forked child, return why a library does not work after the fork; None if all do."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda._is_in_bad_fork():
        return "CUDA's driver was touched in the zygote"
    return None


_CWD_AT_START: Final = os.getcwd()


def _is_zip(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\3\4"
    except OSError:
        return False


def _first_path(run: PythonRun, cwd: str) -> str:
    """Return the entry that Python puts at the front of ``sys.path``."""
    if run.kind == "script":
        return os.path.dirname(os.path.realpath(os.path.join(cwd, run.target)))
    return {"module": cwd, "code": "", "folder": os.path.join(cwd, run.target)}[run.kind]


def _hidden_module(first: str) -> str | None:
    """Name a module beside the script that would be imported here from elsewhere, since its name is already loaded."""
    try:
        names = os.listdir(first or ".")
    except OSError:
        return None
    for entry in names:
        name, _, rest = entry.partition(".")
        loaded = sys.modules.get(name)
        if loaded is None or (rest and rest[-2:] not in ("py", "so")):
            continue
        if name in ("__main__", *sys.builtin_module_names):
            continue
        path = os.path.join(first, entry)
        if not rest and not os.path.exists(os.path.join(path, "__init__.py")):
            continue
        origin = getattr(loaded, "__file__", None)
        frozen = getattr(getattr(loaded, "__spec__", None), "origin", None) == "frozen"
        inside = os.path.join(path, "__init__.py") if not rest else path
        if not frozen and not (origin and os.path.exists(origin) and os.path.samefile(origin, inside)):
            return f"{path} would be imported by a fresh interpreter; here {name} is already loaded from {origin}"
    return None


# -- in the forked child -------------------------------------------------------------------------------------------


def become(run: PythonRun, env: Mapping[str, str], cwd: str, base_path: list[str]) -> None:
    """Reset this forked process to the state of a fresh interpreter. Descriptors 0 to 2 are already set."""
    os.environ.clear()
    os.environ.update(env)  # sets CUDA_VISIBLE_DEVICES before any library reads it
    os.chdir(cwd)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores SIGHUP, and children inherit that
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    time.tzset()
    tempfile.tempdir = None
    _reopen_streams(unbuffered=run.unbuffered)
    _fresh_multiprocessing(cwd)
    _fresh_random()
    first = _first_path(run, cwd)
    sys.path[:] = base_path if sys.flags.safe_path and run.kind != "folder" else [first, *base_path]
    sys.path_importer_cache.pop(first, None)
    argv0 = {"module": "-m", "code": "-c"}.get(run.kind, run.target)
    sys.argv[:] = [argv0, *run.args]
    asked = [argv0, run.target] if run.kind in ("module", "code") else [run.target]
    sys.orig_argv[:] = [sys.executable, *(["-u"] if run.unbuffered else []), *asked, *run.args]


def _reopen_streams(*, unbuffered: bool) -> None:
    """Open the standard streams on the new descriptors as Python does: line-buffered on a terminal, else in blocks."""
    unbuffered = unbuffered or bool(os.environ.get("PYTHONUNBUFFERED"))
    for name, fd in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        old: Any = getattr(sys, f"__{name}__")
        raw: Any = open(fd, "wb" if fd else "rb", buffering=0 if unbuffered and fd else -1, closefd=False)  # noqa: SIM115
        (raw.raw if hasattr(raw, "raw") else raw).name = f"<{name}>"
        stream = io.TextIOWrapper(
            raw, encoding=old.encoding if old else "utf-8", errors=old.errors if old else "backslashreplace",
            newline="\n" if fd else None, line_buffering=not unbuffered and (fd == 2 or raw.isatty()),
            write_through=unbuffered,
        )  # fmt: skip
        stream.mode = "w" if fd else "r"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _fresh_multiprocessing(cwd: str) -> None:
    """Reset what multiprocessing stored at import: the folder in which children start, and their shared key."""
    module: Any = sys.modules.get("multiprocessing.process")
    if module is not None:
        module.ORIGINAL_DIR = cwd
        module.current_process().authkey = os.urandom(32)


def _fresh_random() -> None:
    """Reseed the generators of numpy and torch. A fork reseeds Python's own generator, but not these."""
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    generator: Any = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is None:
        return
    if generator.initial_seed() == _TORCH_CONSTANT:
        generator.manual_seed(_TORCH_CONSTANT)
    else:
        generator.seed()


def run(what: PythonRun) -> NoReturn:
    """Run the command as ``__main__``, then end the process as the interpreter would: see ``_end``."""
    not_its_own = set(sys.modules)
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __annotations__={})
    for name in ("__loader__", "__spec__", "__package__"):
        setattr(module, name, None)
    sys.modules["__main__"] = module
    interrupted = False
    try:
        if what.kind == "module":
            runpy._run_module_as_main(what.target)  # type: ignore[attr-defined]
        elif what.kind == "folder":
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        else:
            exec(_code(what, module), module.__dict__)
        status = 0
    except SystemExit as end:
        status = _status(end)
    except BaseException as error:
        status = _report(what, error)
        interrupted = isinstance(error, KeyboardInterrupt)
    _end([module, *(sys.modules[name] for name in reversed(sys.modules) if name not in not_its_own)])
    if interrupted:  # die of SIGINT, so that a shell sees the interruption
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


def _status(end: SystemExit) -> int:
    """Return the exit code of a ``SystemExit``; a code that is no number is printed to stderr."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    with contextlib.suppress(Exception):
        sys.stderr.write(f"{end.code}\n")
    return 1


def _end(modules: list[types.ModuleType]) -> None:
    """Do what the interpreter does at exit, except unload the preloaded libraries.

    It joins threads, runs exit functions and clears the script's own modules, so that files are flushed and finalizers
    run. Unloading torch as well would cost each rank half a second of CPU, and the end of the process frees the same
    memory. Exit functions of C libraries are not called.
    """
    with contextlib.suppress(KeyboardInterrupt):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush()
    threading.excepthook = lambda _: None  # daemon threads may fail on cleared modules; that error is meaningless
    for module in modules:
        names = vars(module)
        for hidden in (True, False):
            for name in list(names):
                if name != "__builtins__" and name.startswith("_") is hidden:
                    names[name] = None
    gc.collect()
    _flush()
    ctypes.PyDLL(None).fflush(None)


def _flush() -> None:
    """Flush the standard streams; exit with 120, as Python does, if that fails."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception as error:
            if stream is sys.stdout:
                sys.unraisablehook(_unraisable_type()((type(error), error, None, None, stream)))
                os._exit(120)


def _unraisable_type() -> Any:
    """Return the type that ``sys.unraisablehook`` takes. Python does not export it, so an example is produced."""
    given: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, given.append
    _Fails()
    sys.unraisablehook = hook
    return type(given.pop())


class _Fails:
    def __del__(self) -> None:
        raise RuntimeError


def _code(what: PythonRun, module: types.ModuleType) -> types.CodeType:
    if what.kind == "code":
        module.__loader__ = importlib.machinery.BuiltinImporter
        return compile(what.target, "<string>", "exec", dont_inherit=True)
    path = os.path.join(os.getcwd(), what.target)  # not normalised, as Python does not
    try:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        os.execv(sys.executable, sys.orig_argv)  # nothing has run yet, so the interpreter can report the error itself
    module.__file__ = path
    module.__dict__["__cached__"] = None
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    return code


def _report(what: PythonRun, error: BaseException) -> int:
    """Report an uncaught exception as the interpreter does, without the frames of this module."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    if what.kind == "code" and trace is not None and trace.tb_frame.f_code is _code.__code__:
        trace = None  # it could not be compiled
    error.__traceback__ = trace
    _write_error_file(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException:
        sys.__excepthook__(type(error), error, trace)
    return 1


def _write_error_file(error: BaseException) -> None:
    path = os.environ.get(ERROR_FILE_VARIABLE)
    if not path or isinstance(error, KeyboardInterrupt):
        return
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(OSError):
        with open(path + ".part", "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump({"at_ns": time.monotonic_ns(), "traceback": text}, file)
        os.replace(path + ".part", path)
