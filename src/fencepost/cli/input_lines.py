"""Lines from a file or a pipe, and the moments when none is there.

A record that a person types, or that `tail -f` prints, must not wait for a full batch. So the
reader says when the input pauses, and the writer sends what it has.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES: Final = 1 << 16
_PAUSE_SECONDS: Final = 0.005
"""A pause is longer than this; Kafka's producers linger as long."""


def read_lines(descriptor: int) -> Iterator[bytes | None]:
    """Yields lines without their end, and None whenever the input pauses.

    The last line need not have an end.
    """
    unfinished: list[bytes] = []
    while True:
        if not select.select([descriptor], [], [], _PAUSE_SECONDS)[0]:
            yield None
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            break
        head, *rest = chunk.split(b"\n")
        unfinished.append(head)
        if rest:
            yield b"".join(unfinished)
            yield from rest[:-1]
            unfinished = [rest[-1]]
    if last := b"".join(unfinished):
        yield last
