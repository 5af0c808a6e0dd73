"""The five codecs of a batch, with bounded memory and work.

Decompression writes into a buffer of known size, and repeats with a larger one if that is full, up
to `limits.MAX_DECOMPRESSED_BYTES`: a few bytes of zstd can unpack to terabytes. A caller that must
not take long passes its own buffer, `scratch`: then nothing larger is unpacked, and nothing that is
split into thousands of pieces.

What one client can read, every client must be able to read. So a stream ends where its data does,
and everything that Kafka's Java client refuses is refused:

- gzip: one or more members, as in Kafka. From a producer one only: librdkafka reads the first and
  skips the rest in silence, and an empty first member aborts its process.
- snappy: the stream of snappy-java, a header of 16 bytes and blocks of [i32 size][raw snappy]. Some
  clients send one raw block instead; Kafka reads it too. From a producer only version 1 of the
  header: aiokafka takes any other for a raw block.
- lz4: one LZ4 frame with independent blocks (Kafka's reader refuses linked ones, KIP-57, and reads
  only the first frame).
- zstd: one or more frames.

What only a producer's batch is refused for (`decompress_produced`) stays readable in the logs: a
repair must not remove a batch that was acknowledged.
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
_PIECE_BYTES: Final = 64 * 1024
_MAPPED_BYTES: Final = 1024 * 1024
"""A larger buffer is mapped: filling it with zeros would hold the interpreter for up to 0.1 s."""
_PIECES_AT_ONCE: Final = 1000
"""Members or blocks to read without a thread: about a millisecond."""

# https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md
_LZ4_START: Final = struct.Struct("<IBB")
"""Magic, FLG and BD."""
_LZ4_MAGIC: Final = 0x184D2204
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_BLOCK_CHECKSUM: Final = 0x10
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_CONTENT_CHECKSUM: Final = 0x04
_LZ4_DICTIONARY: Final = 0x01
_LZ4_SIZE: Final = struct.Struct("<I")
_LZ4_UNCOMPRESSED: Final = 0x80000000
_LZ4_EMPTY: Final = (_LZ4_UNCOMPRESSED, 1)
"""Blocks without content: no bytes uncompressed, or one compressed byte. Kafka's reader ends at the
first, and some of its callers fail at the second."""
_LZ4_PLAIN: Final = {
    bytes.fromhex("04224d18604082"): 64 * 1024,
    bytes.fromhex("04224d186050fb"): 256 * 1024,
    bytes.fromhex("04224d18606051"): 1024 * 1024,
    bytes.fromhex("04224d18607073"): 4 * 1024 * 1024,
}
"""Frames of independent blocks without any checksums, as most clients send them, by their first
bytes; and the size of their largest block."""
_LZ4_PLAIN_BYTES: Final = 7


def compress(codec: int, data: Buffer) -> bytes:
    """Compresses the records of a batch so that Kafka's Java client can read them."""
    return _COMPRESS[codec](data)


def decompress(
    codec: int,
    data: Buffer,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
    scratch: bytearray | None = None,
) -> Buffer:
    """Decompresses; BatchError for damage, an unknown codec, or more than `max_bytes`.

    With `scratch`, of at least `max_bytes`, the result may be a view of it, and TooLargeError may
    also mean that there are too many pieces.
    """
    reader = _DECOMPRESS.get(codec)
    if not data:
        return b""
    if reader is None:
        raise BatchError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"the compression codec {codec} is unknown"
        )
    return reader(data, max_bytes, scratch)


def decompress_produced(
    codec: int, data: Buffer, max_bytes: int, scratch: bytearray | None
) -> Buffer:
    """As `decompress`; BatchError also for a stream that some client reads differently."""
    if codec == Codec.GZIP and data:
        return _decompress_gzip(data, max_bytes, scratch, max_members=1)
    if codec == Codec.SNAPPY:
        start = bytes(memoryview(data)[: len(_XERIAL_HEADER)])
        if start.startswith(_XERIAL_MAGIC) and start != _XERIAL_HEADER:
            raise _damaged("snappy", "its header is not of version 1")
    return decompress(codec, data, max_bytes, scratch)


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
    # It accepts only bytes; bytes() of bytes does not copy.
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


_COMPRESS: Final[dict[int, Callable[[Buffer], bytes]]] = {
    Codec.NONE: bytes,
    Codec.GZIP: lambda data: bytes(cramjam.gzip.compress(data)),
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: lambda data: bytes(cramjam.zstd.compress(data, level=3)),
}


class TooLargeError(BatchError):
    """More than the caller wants to unpack."""

    def __init__(self, codec: str, max_bytes: int) -> None:
        super().__init__(
            ErrorCode.INVALID_RECORD, f"a {codec} batch holds more than {max_bytes} bytes"
        )


def _damaged(codec: str, problem: object) -> BatchError:
    return BatchError(ErrorCode.INVALID_RECORD, f"a {codec} batch cannot be opened: {problem}")


def _buffer(size: int) -> bytearray | mmap.mmap:
    return bytearray(size) if size <= _MAPPED_BYTES else mmap.mmap(-1, size)


def _decompress_none(data: Buffer, max_bytes: int, scratch: bytearray | None) -> Buffer:
    return data


def _decompress_gzip(
    data: Buffer, max_bytes: int, scratch: bytearray | None, max_members: int = 0
) -> Buffer:
    """Reads the members in pieces: what follows a member is copied each time."""
    view = memoryview(data)
    out = bytearray()
    position = members = 0
    member = None
    rest: Buffer = b""
    try:
        while rest or position < len(view):
            if not rest:
                rest = view[position : position + _PIECE_BYTES]
                position += len(rest)
            if member is None:
                members += 1
                if members > max_members > 0:
                    raise _damaged("gzip", "bytes follow its first member")
                if scratch is not None and members > _PIECES_AT_ONCE:
                    raise TooLargeError("gzip", max_bytes)
                member = zlib.decompressobj(_GZIP_HEADER_WBITS)
            out += member.decompress(rest, min(_MAPPED_BYTES, max_bytes + 1 - len(out)))
            if len(out) > max_bytes:
                raise TooLargeError("gzip", max_bytes)
            rest = member.unconsumed_tail
            if member.eof:
                rest = member.unused_data
                member = None
    except zlib.error as problem:
        raise _damaged("gzip", problem) from None
    if member is not None:
        raise _damaged("gzip", "it ends too early")
    return out


def _decompress_snappy(data: Buffer, max_bytes: int, scratch: bytearray | None) -> Buffer:
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return _decompress_raw_snappy(view, max_bytes, max_bytes)
    out = bytearray()
    position = len(_XERIAL_HEADER)
    blocks = 0
    while position < len(view):
        if position + 4 > len(view):
            raise _damaged("snappy", "it ends inside the size of a block")
        (size,) = _BLOCK_SIZE.unpack_from(view, position)
        position += 4
        if size < 0 or position + size > len(view):
            raise _damaged("snappy", f"a block claims {size} bytes")
        blocks += 1
        if scratch is not None and blocks > _PIECES_AT_ONCE:
            raise TooLargeError("snappy", max_bytes)
        block = view[position : position + size]
        out += _decompress_raw_snappy(block, max_bytes - len(out), max_bytes)
        position += size
    return out


def _decompress_raw_snappy(data: memoryview, room: int, max_bytes: int) -> Buffer:
    """Decompresses one block into the `room` that is left of `max_bytes`."""
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > room:
            raise TooLargeError("snappy", max_bytes)
        out = _buffer(size)
        written = cramjam.snappy.decompress_raw_into(data, out)
    except cramjam.DecompressionError as problem:
        raise _damaged("snappy", problem) from None
    return memoryview(out)[:written]


def _decompress_lz4(data: Buffer, max_bytes: int, scratch: bytearray | None) -> Buffer:
    if scratch is not None:
        view = memoryview(data)
        block_bytes = _LZ4_PLAIN.get(bytes(view[:_LZ4_PLAIN_BYTES]))
        if block_bytes is not None:
            return _decompress_lz4_blocks(view, block_bytes, max_bytes, memoryview(scratch))
    _check_lz4_frame(data, _PIECES_AT_ONCE if scratch is not None else len(data), max_bytes)
    return _bounded("lz4", cramjam.lz4.decompress_into, data, max_bytes, scratch)


def _decompress_lz4_blocks(
    view: memoryview, block_bytes: int, max_bytes: int, out: memoryview
) -> Buffer:
    """Decompresses block by block; TooLargeError for what the reader of frames must judge.

    That reader clears a few hundred kilobytes for each frame, and with them the processor's cache:
    for a short batch this takes longer than all the rest of the request.
    """
    size = len(view)
    position, written = _LZ4_PLAIN_BYTES, 0
    for _ in range(_PIECES_AT_ONCE):
        if position + 4 > size:
            break
        (block,) = _LZ4_SIZE.unpack_from(view, position)
        position += 4
        if not block:
            if position != size:
                break
            return out[:written]
        if block in _LZ4_EMPTY:
            break
        end = position + (block & ~_LZ4_UNCOMPRESSED)
        room = min(block_bytes, max_bytes - written)
        if block & _LZ4_UNCOMPRESSED:
            if end > min(size, position + room):
                break
            out[written : written + end - position] = view[position:end]
            written += end - position
        else:
            try:
                written += cramjam.lz4.decompress_block_into(
                    view[position:end], out[written : written + room], output_len=room
                )
            except cramjam.DecompressionError:
                break
        position = end
    raise TooLargeError("lz4", max_bytes)


def _check_lz4_frame(data: Buffer, max_blocks: int, max_bytes: int) -> None:
    """Checks that the bytes are one frame of independent blocks; not what is in the blocks."""
    size = len(data)
    try:
        magic, flags, _ = _LZ4_START.unpack_from(data)
        if magic != _LZ4_MAGIC:
            raise _damaged("lz4", "it does not begin with a frame")
        if not flags & _LZ4_INDEPENDENT:
            raise _damaged("lz4", "its blocks depend on each other")
        if flags & _LZ4_DICTIONARY:
            raise _damaged("lz4", "it needs a dictionary")
        position = _LZ4_START.size + (8 if flags & _LZ4_CONTENT_SIZE else 0) + 1
        after_block = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
        for _ in range(max_blocks):
            (block,) = _LZ4_SIZE.unpack_from(data, position)
            position += 4
            if not block:
                break
            if block in _LZ4_EMPTY:
                raise _damaged("lz4", "a block is empty")
            position += (block & ~_LZ4_UNCOMPRESSED) + after_block
        else:
            raise TooLargeError("lz4", max_bytes)
    except struct.error:
        raise _damaged("lz4", "it ends too early") from None
    position += 4 if flags & _LZ4_CONTENT_CHECKSUM else 0
    if position != size:
        what = "ends too early" if position > size else f"has {size - position} bytes after it"
        raise _damaged("lz4", f"its frame {what}")


def _decompress_zstd(data: Buffer, max_bytes: int, scratch: bytearray | None) -> Buffer:
    return _bounded("zstd", cramjam.zstd.decompress_into, data, max_bytes, scratch)


def _bounded(
    codec: str,
    decompress_into: Callable[[Buffer, Buffer], int],
    data: Buffer,
    max_bytes: int,
    scratch: bytearray | None,
) -> Buffer:
    """Tries larger and larger buffers: cramjam only reports that one was too small."""
    size = max_bytes
    if scratch is None:
        size = min(max_bytes, max(_FIRST_GUESS_BYTES, 4 * len(data)))
    while True:
        out = memoryview(_buffer(size) if scratch is None else scratch)[:size]
        try:
            written = decompress_into(data, out)
            return out[:written]
        except cramjam.DecompressionError as problem:
            if "whole buffer" not in str(problem):
                raise _damaged(codec, problem) from None
        if size >= max_bytes:
            raise TooLargeError(codec, max_bytes)
        size = min(max_bytes, size * 4)


_Reader = Callable[[Buffer, int, bytearray | None], Buffer]
_DECOMPRESS: Final[dict[int, _Reader]] = {
    Codec.NONE: _decompress_none,
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
