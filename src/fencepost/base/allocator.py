"""Return freed memory to the operating system.

The C library keeps freed memory: 256 MB of replies in pieces of 60 KB stay resident after the last
one is gone. glibc has a call to release it; on other C libraries nothing happens.
"""

from __future__ import annotations

import contextlib
import sys


def return_freed_memory() -> None:
    """Releases free heap memory; about 10 ms per 100 MB, during which allocation is blocked."""
    if sys.platform == "linux":
        import ctypes  # Imported late: most brokers never need it.

        with contextlib.suppress(OSError, AttributeError):  # Another C library than glibc.
            ctypes.CDLL(None).malloc_trim(0)
