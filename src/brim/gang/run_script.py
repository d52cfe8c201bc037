"""Makes a forked process behave like ``python script.py args``: same argv, ``__main__``, paths and exit code.

``reset_process`` resets what a fork inherits; ``run_script`` executes the script and ends the process.
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
import weakref
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from brim.gang.fork_safety import PythonCommand, first_path

ERROR_FILE_VARIABLE: Final = "BRIM_ERROR_FILE"
"""Environment: the file to which a forked rank writes the exception that ends it, as JSON: ``{"at_ns": monotonic,
"traceback": text}``."""
_TORCH_CONSTANT: Final = 67280421310721
"""The seed that torch uses at import (c10::detail::default_rng_seed_val); newer versions draw one at random."""


def reset_process(command: PythonCommand, env: Mapping[str, str], cwd: str, base_path: list[str]) -> None:
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
    _reopen_streams(unbuffered=command.unbuffered)
    _fresh_multiprocessing(cwd)
    _fresh_random()
    leave_finalizers_to_the_zygote()
    first = first_path(command, cwd)
    sys.path[:] = base_path if sys.flags.safe_path and command.kind != "folder" else [first, *base_path]
    sys.path_importer_cache.pop(first, None)
    argv0 = {"module": "-m", "code": "-c"}.get(command.kind, command.target)
    sys.argv[:] = [argv0, *command.args]
    words = [argv0, command.target] if command.kind in ("module", "code") else [command.target]
    sys.orig_argv[:] = [sys.executable, *(["-u"] if command.unbuffered else []), *words, *command.args]


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


def leave_finalizers_to_the_zygote() -> None:
    """Let the end of this fork not finalize what the preloaded libraries made: a temporary folder is still in use.

    Torch also unregisters its operators so, in 40 ms of CPU time.
    """
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # a collection may remove some
        finalizer.atexit = False


def run_script(command: PythonCommand) -> NoReturn:
    """Run the command as ``__main__``, then end the process as the interpreter would: see ``_finalize``."""
    loaded_before = set(sys.modules)
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __annotations__={})
    for name in ("__loader__", "__spec__", "__package__"):
        setattr(module, name, None)
    sys.modules["__main__"] = module
    interrupted = False
    try:
        if command.kind == "module":
            runpy._run_module_as_main(command.target)  # type: ignore[attr-defined]
        elif command.kind == "folder":
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        else:
            exec(_compile(command, module), module.__dict__)
        status = 0
    except SystemExit as end:
        status = _exit_code(end)
    except BaseException as error:
        status = _print_exception(command, error)
        interrupted = isinstance(error, KeyboardInterrupt)
    _finalize([module, *(sys.modules[name] for name in reversed(sys.modules) if name not in loaded_before)])
    if interrupted:  # die of SIGINT, so that a shell sees the interruption
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


def end_process() -> NoReturn:
    """End a process that has run no script as the interpreter would: see ``_finalize``."""
    _finalize([])
    os._exit(0)


def _exit_code(end: SystemExit) -> int:
    """Return the exit code of a ``SystemExit``; a code that is no number is printed to stderr."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    with contextlib.suppress(Exception):
        sys.stderr.write(f"{end.code}\n")
    return 1


def _finalize(modules: list[types.ModuleType]) -> None:
    """Do what the interpreter does at exit, except unload the preloaded libraries.

    It joins threads, runs exit functions and clears the script's own modules, so that files are flushed and finalizers
    run. Unloading torch as well would cost each rank half a second of CPU, and the end of the process frees the same
    memory. Exit functions of C libraries are not called.
    """
    with contextlib.suppress(KeyboardInterrupt):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush()
    gc.callbacks.clear()  # nor does the interpreter call them once it clears modules
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


def _compile(command: PythonCommand, module: types.ModuleType) -> types.CodeType:
    if command.kind == "code":
        module.__loader__ = importlib.machinery.BuiltinImporter
        return compile(command.target, "<string>", "exec", dont_inherit=True)
    path = os.path.join(os.getcwd(), command.target)  # not normalised, as Python does not
    try:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        os.execv(sys.executable, sys.orig_argv)  # nothing has run yet, so the interpreter can report the error itself
    module.__file__ = path
    module.__dict__["__cached__"] = None
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    return code


def _print_exception(command: PythonCommand, error: BaseException) -> int:
    """Report an uncaught exception as the interpreter does, without the frames of this module."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    if command.kind == "code" and trace is not None and trace.tb_frame.f_code is _compile.__code__:
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


def read_error_file(path: str) -> tuple[str, float] | None:
    """Return the traceback that a forked rank has written, and when (s); None if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            written = json.load(file)
        return str(written["traceback"]), float(written["at_ns"]) / 1e9
    except (OSError, ValueError, KeyError, TypeError):
        return None
