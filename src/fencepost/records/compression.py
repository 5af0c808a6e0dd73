"""The five codecs of a batch, with bounded memory.

Decompression writes into a buffer of known size, and repeats with a larger one if that is full, up
to `limits.MAX_DECOMPRESSED_BYTES`: a few bytes of zstd can unpack to terabytes.

- gzip: one or more members, as in Kafka.
- snappy: the stream of snappy-java, a header of 16 bytes and blocks of [i32 size][raw snappy]. Some
  clients send one raw block instead; Kafka reads it too.
- lz4: the LZ4 frame with independent blocks (Kafka's reader refuses linked ones, KIP-57).
- zstd: one frame.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam

from fencepost.base.errors import ErrorCode
from fencepost.base.limits import MAX_DECOMPRESSED_BYTES
from fencepost.base.seams import Buffer
from fencepost.records.batch import BatchError


class Codec(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODECS: Final = frozenset(Codec)

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024  # snappy-java's default
_BLOCK_SIZE: Final = struct.Struct(">i")
_LZ4_LEVEL: Final = 9  # Kafka's compression.lz4.level
_GZIP_HEADER_WBITS: Final = 31
_FIRST_GUESS_BYTES: Final = 64 * 1024


def compress(codec: int, data: Buffer) -> bytes:
    """Compresses the records of a batch so that Kafka's Java client can read them."""
    return _COMPRESS[codec](data)


def decompress(codec: int, data: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """Decompresses; BatchError for damage, an unknown codec, or more than `max_bytes`."""
    reader = _DECOMPRESS.get(codec)
    if reader is None:
        raise BatchError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"the compression codec {codec} is unknown"
        )
    return reader(data, max_bytes)


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: Buffer) -> bytes:
    compressor = cramjam.lz4.Compressor(
        level=_LZ4_LEVEL, content_checksum=False, block_linked=False
    )
    # It accepts only bytes; bytes() of bytes is no copy.
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


_COMPRESS: Final[dict[int, Callable[[Buffer], bytes]]] = {
    Codec.NONE: bytes,
    Codec.GZIP: lambda data: bytes(cramjam.gzip.compress(data)),
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: lambda data: bytes(cramjam.zstd.compress(data, level=3)),
}


def _damaged(codec: str, problem: object) -> BatchError:
    return BatchError(ErrorCode.CORRUPT_MESSAGE, f"a {codec} batch cannot be opened: {problem}")


def _too_large(codec: str, max_bytes: int) -> BatchError:
    return BatchError(
        ErrorCode.CORRUPT_MESSAGE, f"a {codec} batch holds more than {max_bytes} bytes"
    )


def _decompress_none(data: Buffer, max_bytes: int) -> Buffer:
    return data


def _decompress_gzip(data: Buffer, max_bytes: int) -> Buffer:
    parts: list[bytes] = []
    room = max_bytes
    rest: Buffer = data
    try:
        while rest:
            member = zlib.decompressobj(_GZIP_HEADER_WBITS)
            parts.append(member.decompress(rest, room + 1))
            room -= len(parts[-1])
            if room < 0:
                raise _too_large("gzip", max_bytes)
            if not member.eof:
                raise _damaged("gzip", "it ends too early")
            rest = member.unused_data
    except zlib.error as problem:
        raise _damaged("gzip", problem) from None
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_bytes: int) -> Buffer:
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return _decompress_raw_snappy(view, max_bytes)
    parts: list[Buffer] = []
    room = max_bytes
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if position + 4 > len(view):
            raise _damaged("snappy", "it ends inside the size of a block")
        (size,) = _BLOCK_SIZE.unpack_from(view, position)
        position += 4
        if size < 0 or position + size > len(view):
            raise _damaged("snappy", f"a block claims {size} bytes")
        parts.append(_decompress_raw_snappy(view[position : position + size], room))
        room -= len(parts[-1])
        position += size
    return b"".join(parts)


def _decompress_raw_snappy(data: memoryview, max_bytes: int) -> Buffer:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > max_bytes:
            raise _too_large("snappy", max_bytes)
        out = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(data, out)
    except cramjam.DecompressionError as problem:
        raise _damaged("snappy", problem) from None
    return out if written == size else out[:written]


def _bounded(
    codec: str, decompress_into: Callable[[Buffer, bytearray | mmap.mmap], int]
) -> _Reader:
    """A reader that retries with larger buffers: cramjam only reports that one was too small."""

    def read(data: Buffer, max_bytes: int) -> Buffer:
        size = min(max_bytes, max(_FIRST_GUESS_BYTES, 4 * len(data)))
        while True:
            # A large bytearray takes a tenth of a second to fill with zeros.
            out = bytearray(size) if size <= _FIRST_GUESS_BYTES else mmap.mmap(-1, size)
            try:
                written = decompress_into(data, out)
                return memoryview(out)[:written]
            except cramjam.DecompressionError as problem:
                if "whole buffer" not in str(problem):
                    raise _damaged(codec, problem) from None
            if size >= max_bytes:
                raise _too_large(codec, max_bytes)
            size = min(max_bytes, size * 4)

    return read


_Reader = Callable[[Buffer, int], Buffer]
_DECOMPRESS: Final[dict[int, _Reader]] = {
    Codec.NONE: _decompress_none,
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _bounded("lz4", cramjam.lz4.decompress_into),
    Codec.ZSTD: _bounded("zstd", cramjam.zstd.decompress_into),
}
