"""Memory-mapped parts of files, with a bound on their number."""

from __future__ import annotations

import mmap
from typing import Any, Self


class Mapping(mmap.mmap):
    """A mapped part of a file, which lives until its last view is gone.

    Python keeps a file descriptor per mapping, so mappings are counted: clients that do not read
    their replies must not use up the descriptors of the process.
    """

    alive = 0
    limit = 128
    """Beyond it views are copies; this happens only when clients read slowly."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        mapping = super().__new__(cls, *args, **kwargs)
        Mapping.alive += 1
        return mapping

    def __del__(self) -> None:
        Mapping.alive -= 1
