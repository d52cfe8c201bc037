"""The ``brim`` command: verbs, one file each, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Annotated

import typer

from brim.cli.options import INTERRUPTED
from brim.cli.verbs import Verbs
from brim.errors import BrimError

app = typer.Typer(
    name="brim",
    cls=Verbs,
    help="Run jobs on a shared GPU machine; replay the jobs of a cluster under other policies; measure training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: half the start-up time, and it reads well in a pipe
    context_settings={"help_option_names": ["-h", "--help"]},
)

CLOSED = "standard output was closed while the command ran: a policy file must not close sys.stdout"


def _version(wanted: bool) -> None:
    if wanted:
        from brim import __version__

        print(f"brim {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; exit codes: 0 success, 1 failure, 2 invalid arguments or input, 3 not found, 4 refused."""
    _prepare_streams()
    code = _run()
    try:
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):  # ValueError: a policy file closed it, after what was written before
        pass
    except OSError as error:
        code = code or _fail(f"cannot write to standard output: {error.strerror}")
    if code == INTERRUPTED:  # a thread of Arrow that still reads aborts the process while Python clears its modules
        sys.stderr.flush()
        os._exit(code)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # text left in a buffer, or printed at exit, is not a result
    sys.exit(code)


def _run() -> int:
    """Run a command and return its exit code."""
    try:
        app(prog_name="brim")
    except SystemExit as end:
        return _ended(end)
    except BrimError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt as error:
        return _interrupted(error)
    except BrokenPipeError:  # the program that reads the output has ended, as in `brim ... | head`
        return 0
    except MemoryError as error:
        return _fail(f"out of memory: {error}" if str(error) else "out of memory")
    except ValueError:
        if not sys.stdout.closed:
            raise
        return _fail(CLOSED)
    except OSError as error:
        return _fail(f"{error.filename or 'cannot write the result'}: {error.strerror or error}")
    return 0


def _ended(end: SystemExit) -> int:
    """The exit code of a command that ended; a SystemExit from elsewhere, such as a policy file, is a failure."""
    cause = end.__context__ and end.__context__.__cause__
    if isinstance(cause, KeyboardInterrupt):  # typer turns it into an exit
        return _interrupted(cause)
    if isinstance(end.__context__, BrokenPipeError):  # rich and typer turn it into an exit
        return 0
    trace = end.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    if trace is not None and raised_in.partition(".")[0] not in ("brim", "typer", "click"):
        return _fail(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}: SystemExit: {end.code}")
    return end.code if isinstance(end.code, int) else 0


def _interrupted(error: KeyboardInterrupt) -> int:
    """Say so; an interrupt that arrives while a part of a policy decides names that part."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends now; one more Ctrl-C would add a traceback
    print(f"brim: interrupted ({error})" if error.args else "brim: interrupted", file=sys.stderr)
    return INTERRUPTED


def _fail(reason: str, code: int = 1) -> int:
    print(f"brim: error: {reason}", file=sys.stderr)
    return code


def _prepare_streams() -> None:
    """Give streams that the caller has closed (`brim ... >&-`) a place to go; escape what an encoding lacks."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # stderr does so by itself
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
