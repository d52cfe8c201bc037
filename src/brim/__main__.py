"""``python -m brim``: the ``brim`` command."""

from brim.cli.main import main

if __name__ == "__main__":
    main()
