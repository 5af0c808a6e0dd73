"""An even start for every round: no pending write-back, and memory that the host has assigned.

Rounds that write hundreds of megabytes can differ by a factor of four, for two reasons that do not
depend on the broker:

- **Write-back.** The data of the previous round are written to the disk while the next one runs.
  So a round waits for them, and writes less than the amount that starts write-back.
- **First touch.** The host of a virtual machine assigns memory at the first touch, and may reclaim
  free memory. A megabyte written by a broker took 0.5 to 0.7 ms of processor time in memory that
  had just been in use, and up to 2.7 ms in new memory. So the memory that a round will fill is
  touched and released right before it; and a round waits until the files of a deleted topic are
  gone (`client.delete_topic`), or rounds would fill ever more memory.

Without /proc, both are skipped.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Final

CALM_BYTES: Final = 32 * 1024 * 1024
"""Dirty bytes that do not disturb: other programs write logs too."""
PATIENCE_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.05
LARGEST_SHARE: Final = 4
"""The largest part of the free memory that is touched."""
_MEMINFO: Final = Path("/proc/meminfo")
_BACKGROUND_RATIO: Final = Path("/proc/sys/vm/dirty_background_ratio")


def write_back() -> None:
    """Waits until written data are on the disk, for at most `PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    os.sync()
    while _unwritten() > CALM_BYTES and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        os.sync()


def touch(room_bytes: int) -> None:
    """Touches and releases memory, so that the next process fills it at full speed."""
    size = min(room_bytes, _memory().get("MemAvailable", 0) // LARGEST_SHARE)
    if size >= mmap.PAGESIZE:
        # The kernel touches every page before the call returns.
        touched = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mmap.mmap(-1, size, flags=touched).close()


def most_bytes(wanted: int) -> int:
    """The bytes that a round may write: half of what starts write-back, at most `wanted`."""
    available = _memory().get("MemAvailable")
    if available is None or not _BACKGROUND_RATIO.exists():
        return wanted
    # A ratio of 0 means that a limit in bytes is set instead, which is rare.
    ratio = int(_BACKGROUND_RATIO.read_text()) or 100
    return min(wanted, available * ratio // 100 // 2)


def _unwritten() -> int:
    memory = _memory()
    return memory.get("Dirty", 0) + memory.get("Writeback", 0)


def _memory() -> dict[str, int]:
    """Memory figures of Linux in bytes; empty on other systems."""
    if not _MEMINFO.exists():
        return {}
    cells = (line.split() for line in _MEMINFO.read_text().splitlines())
    return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, *_ in cells}
