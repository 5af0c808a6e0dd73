"""`.fencepost-session`: whether writes may have been lost since the last completed start.

It has two lines: the boot id of the last completed start, and `fsync` if all data was synced before
it was acknowledged. The same boot id after a crash means that no write was lost: the page cache
survived.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.base.seams import Disk

SESSION: Final = ".fencepost-session"
SYNCED: Final = "fsync"
UNSYNCED: Final = "os"


class Session(NamedTuple):
    """The content of the file."""

    boot_id: str
    is_synced: bool


def read_session(disk: Disk, folder: str) -> Session:
    """The session of the last completed start; an empty one if there was none."""
    try:
        text = disk.read_file(f"{folder}/{SESSION}").decode("ascii", "replace")
    except FileNotFoundError:
        return Session("", is_synced=False)
    boot_id, _, durability = text.partition("\n")
    return Session(boot_id, durability == SYNCED)


def write_session(disk: Disk, folder: str, boot_id: str, durability: str, *, sync: bool) -> None:
    """Replaces the file; `durability` is SYNCED or UNSYNCED."""
    data = f"{boot_id}\n{durability}".encode("ascii", "replace")
    disk.write_file(f"{folder}/{SESSION}", data, sync=sync)


def is_same_session(disk: Disk, folder: str) -> bool:
    """Whether no write was lost since the last completed start."""
    return read_session(disk, folder).boot_id == (disk.session() or None)
