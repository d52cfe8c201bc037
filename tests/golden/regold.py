"""Write the golden tables and the listing of the presets: ``python -m tests.golden.regold``.

Say in the commit message why they changed.
"""

from __future__ import annotations

import json
import sys

from brim.cli.options import LISTING
from brim.cli.policy import listed
from brim.policies.presets import PARTS, PRESETS

from .cases import CLUSTERS, TABLES, load, names, path_of, table


def main() -> None:
    """Write the listing and all tables, and say which tables changed."""
    LISTING.write_text(json.dumps(listed(list(PRESETS.values()), PARTS), indent=1) + "\n", encoding="utf-8")
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
