"""Readers and writers by form and version, generated at first use and kept.

The codec uses `reader` and `writer`. `encode` and `decode` are for standalone values, such as the
records of the internal topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from fencepost.base.seams import Buffer
from fencepost.wire.plan import plan_of
from fencepost.wire.reading import ReaderSource, refuse_version
from fencepost.wire.schema import versions_of
from fencepost.wire.writing import Writer, WriterSource

F = TypeVar("F")

_READERS: Final[dict[tuple[type[Any], int, bool], Callable[[Buffer, int], tuple[Any, int]]]] = {}
_WRITERS: Final[dict[tuple[type[Any], int], Writer]] = {}


def reader(
    form: type[F], version: int, *, is_request: bool = False
) -> Callable[[Buffer, int], tuple[F, int]]:
    """The function (data, position) -> (form, next position); it raises only WireError.

    `is_request`: it has at most as many items as a broker accepts.
    """
    found = _READERS.get((form, version, is_request))
    if found is None:
        if version not in versions_of(form):
            refuse_version(form, version)
        source = ReaderSource(plan_of(form, version), is_request=is_request)
        found = _READERS[form, version, is_request] = source.function()
    return found


def writer(form: type[F], version: int) -> Writer:
    """The function (form, bytearray, chunks or None) -> the bytearray in which the message ends."""
    found = _WRITERS.get((form, version))
    if found is None:
        found = _WRITERS[form, version] = WriterSource(plan_of(form, version)).function()
    return found


def encode(form: object, version: int) -> bytes:
    """The bytes of one message, without any header."""
    return bytes(writer(type(form), version)(form, bytearray(), None))


def decode(form: type[F], version: int, data: Buffer) -> F:
    """Decode the message in `data`; bytes after its end are ignored."""
    return reader(form, version)(data, 0)[0]
