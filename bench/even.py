"""An even start for every round: nothing left to write back, and memory that the machine really has.

Rounds that write hundreds of megabytes can differ by a factor of four for two reasons that are no
broker's:

- **Write-back.** What the round before has left is written to the disk while the next one runs. So
  it is waited for, and a round writes less than what makes the system begin with write-back by
  itself.
- **First touch.** The host of a virtual machine hands out memory when it is touched first, and may
  take back what is free. A megabyte written by a broker took 0.5 to 0.7 ms of processor time where
  the memory had been in use just before, and up to 2.7 ms where it was new. So as much memory as
  the round will fill is touched right before it, and given back; and the files of a deleted topic
  are waited for (`client.delete_topic`), or rounds would fill ever more memory.

Where the system does not tell (there is no /proc), both are left out.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Final

CALM_BYTES: Final = 32 * 1024 * 1024
"""So much waiting for the disk does not disturb: others write their logs too."""
PATIENCE_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.05
LARGEST_SHARE: Final = 4
"""No more than this part of the free memory is touched."""
_MEMINFO: Final = Path("/proc/meminfo")
_BACKGROUND_RATIO: Final = Path("/proc/sys/vm/dirty_background_ratio")


def write_back() -> None:
    """Returns when what was written is on the disk; others may write on, so not later than `PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    os.sync()
    while _unwritten() > CALM_BYTES and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        os.sync()


def touch(room_bytes: int) -> None:
    """Makes sure that so much memory can be filled at full speed, by whoever comes next: call it right before the clock runs."""
    size = min(room_bytes, _memory().get("MemAvailable", 0) // LARGEST_SHARE)
    if size >= mmap.PAGESIZE:
        # The kernel touches every page before it answers.
        touched = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mmap.mmap(-1, size, flags=touched).close()


def most_bytes(wanted: int) -> int:
    """What a round may write, at most `wanted`: half of what makes the system write back by itself."""
    available = _memory().get("MemAvailable")
    if available is None or not _BACKGROUND_RATIO.exists():
        return wanted
    # A ratio of 0 says that a limit in bytes holds instead, which nobody sets by accident.
    ratio = int(_BACKGROUND_RATIO.read_text()) or 100
    return min(wanted, available * ratio // 100 // 2)


def _unwritten() -> int:
    memory = _memory()
    return memory.get("Dirty", 0) + memory.get("Writeback", 0)


def _memory() -> dict[str, int]:
    """What Linux tells about its memory, in bytes; nothing elsewhere."""
    if not _MEMINFO.exists():
        return {}
    cells = (line.split() for line in _MEMINFO.read_text().splitlines())
    return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, *_ in cells}
