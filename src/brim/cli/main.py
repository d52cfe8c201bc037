"""The ``brim`` command: verbs, one file each, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from brim.cli import policy, sim, trace
from brim.cli.demo import demo
from brim.cli.profile import profile
from brim.errors import BrimError

app = typer.Typer(
    name="brim",
    help="Keep shared GPU clusters full: replay a trace under any policy, and run the same decisions live.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(sim.app)
app.add_typer(trace.app)
app.add_typer(policy.app)
app.command("demo")(demo)
app.command("profile", context_settings={"allow_interspersed_args": False})(profile)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells use it (128 + SIGINT)."""


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
    """Run the command line; exit codes: 0 ok, 1 failed, 2 usage or bad input, 3 not found, 4 refused."""
    try:
        app()
    except BrimError as error:
        print(f"brim: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("brim: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has enough, as in `brim ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
