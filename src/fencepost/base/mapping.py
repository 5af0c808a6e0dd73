"""Parts of files as memory, counted."""

from __future__ import annotations

import mmap
from typing import Any, Self


class Mapping(mmap.mmap):
    """A part of a file as memory, until the last view of it is gone.

    Python keeps a file descriptor of its own for each, so they are counted: clients that do not
    read what was sent to them must not use up the descriptors of the process.
    """

    alive = 0
    limit = 128
    """Then views are copies: that many are on their way only to clients that are slow anyway."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        mapping = super().__new__(cls, *args, **kwargs)
        Mapping.alive += 1
        return mapping

    def __del__(self) -> None:
        Mapping.alive -= 1
