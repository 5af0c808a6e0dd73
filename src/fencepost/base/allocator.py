"""Memory that was freed, given back to the system.

The C library keeps what it once got: a quarter of a gigabyte of replies in pieces of 60 KB stays
resident after the last of them is gone. glibc has a call that lets go of it; where there is none,
nothing happens here.
"""

from __future__ import annotations

import contextlib
import sys


def return_freed_memory() -> None:
    """Takes some 10 ms per 100 MB, in which nobody else in this process can allocate much."""
    if sys.platform == "linux":
        import ctypes  # A broker that never held much starts without it.

        with contextlib.suppress(OSError, AttributeError):  # Another C library than glibc.
            ctypes.CDLL(None).malloc_trim(0)
