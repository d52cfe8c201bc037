"""Write the golden tables anew: ``python -m tests.golden.regold``. Say in the commit message why they changed."""

from __future__ import annotations

import sys

from .cases import CLUSTERS, TABLES, load, names, path_of, table


def main() -> None:
    """Write all tables and say which changed."""
    for old in TABLES.rglob("*.txt"):
        if (old.parent.name, old.stem) not in set(names()):
            old.unlink()
    for trace, policy in names():
        path = path_of(trace, policy)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = table(load(trace), CLUSTERS[trace], policy)
        if not path.exists() or path.read_text(encoding="ascii") != text:
            path.write_text(text, encoding="ascii", newline="\n")
            sys.stderr.write(f"changed: {path.relative_to(TABLES)}\n")


if __name__ == "__main__":
    main()
