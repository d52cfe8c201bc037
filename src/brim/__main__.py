"""The ``brim`` command, also as ``python -m brim``: Ctrl-C ends it in silence until its modules are there to say so."""

import sys


def main() -> None:
    """Import the command line and run it; see ``brim.cli.main``."""
    try:
        from brim.cli.main import main as run  # noqa: PLC0415 - it takes a tenth of a second, and Ctrl-C may come

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
