"""Which volume a path is on, and whether SQLite can be trusted on it.

SQLite's locks and its shared memory do not work across machines: on a network file system a database is damaged sooner
or later, without an error (https://www.sqlite.org/wal.html, "all processes must be on the same host").
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from brim.agent.mounts import Mount, mounts
from brim.errors import RefusedError

NETWORK: Final = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "9p", "ceph", "fuse.ceph", "fuse.ceph-fuse",
    "fuse.sshfs", "afs", "glusterfs", "fuse.glusterfs", "pvfs2", "orangefs", "panfs", "wekafs", "fuse.juicefs",
    "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse",
})  # fmt: skip
"""Types of file systems that another machine may write to at the same time, as ``mount`` names them; ours."""


def mount_of(path: Path, table: str | None = None) -> Mount:
    """Return the mount that a path is on. Of several on one point the last is the one to be seen.

    Args:
        path: Any path; links in it are followed, and what does not exist yet counts as on the volume of its folder.
        table: Text of ``/proc/self/mountinfo``; None: as it is now.
    """
    real = os.path.realpath(path)
    best = Mount("/", "/", "unknown", "unknown")
    for mount in mounts(table):
        is_above = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if is_above and len(mount.point) >= len(best.point):
            best = mount
    return best


def refuse_network(path: Path, table: str | None = None) -> None:
    """Check that a folder is on a volume of this machine.

    Raises:
        RefusedError: it is on a network file system.
    """
    mount = mount_of(path, table)
    if mount.kind in NETWORK:
        raise RefusedError(
            f"{path} is on the network file system {mount} of {mount.source}, where SQLite loses data: set BRIM_STATE "
            "to a folder on a disk of this machine"
        )
