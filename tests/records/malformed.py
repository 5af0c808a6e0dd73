"""Batches whose header is valid and whose records are not, by what is wrong with them.

Each has a matching CRC, so that only a broker that reads the records can refuse it. The records are
written field by field: any of their lengths, counts and deltas can lie.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import cramjam

from fencepost.records.batch import read_header
from fencepost.records.builder import build_batch, reseal
from fencepost.records.compression import Codec, compress
from fencepost.records.opened import Record
from fencepost.records.varint import write_varint

TOO_LONG: Final = b"\xff" * 5 + b"\x01"
"""A VARINT that does not end after five bytes."""
TOO_LONG_FOR_A_TIME: Final = b"\xff" * 10 + b"\x01"

Field = int | bytes
"""A number to encode, or the bytes to use instead."""


def field(value: Field) -> bytes:
    return value if isinstance(value, bytes) else write_varint(value)


def record(
    delta: Field = 0,
    *,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    headers: bytes = b"",
    time: Field = 0,
    attributes: int = 0,
    length: Field | None = None,
    off_by: int = 0,
    key_length: Field | None = None,
    value_length: Field | None = None,
    header_count: Field = 0,
    after: bytes = b"",
) -> bytes:
    """One record; every length may be replaced."""
    if key_length is None:
        key_length = -1 if key is None else len(key)
    if value_length is None:
        value_length = -1 if value is None else len(value)
    body = b"".join(
        (
            bytes([attributes]),
            field(time),
            field(delta),
            field(key_length),
            key or b"",
            field(value_length),
            value or b"",
            field(header_count),
            headers,
            after,
        )
    )
    return field(len(body) + off_by if length is None else length) + body


def header(
    name: bytes = b"name",
    value: bytes = b"v",
    *,
    name_length: Field | None = None,
    value_length: Field | None = None,
) -> bytes:
    """One header of a record; both lengths may be replaced."""
    return b"".join(
        (
            field(len(name) if name_length is None else name_length),
            name,
            field(len(value) if value_length is None else value_length),
            value,
        )
    )


def batch(
    payload: bytes,
    count: int,
    *,
    codec: int = Codec.NONE,
    packed: bytes | None = None,
    timestamp_ms: int = 0,
    **identity: Any,
) -> bytearray:
    """A batch that claims `count` records; `packed` replaces the compressed payload."""
    like = read_header(build_batch([Record()] * count, timestamp_ms=timestamp_ms, **identity))
    if packed is None:
        packed = compress(codec, payload)
    sealed = reseal(like, Codec.NONE, packed)
    assert isinstance(sealed.data, bytearray)
    sealed.data[21:23] = struct.pack(">h", like.attributes | codec)
    return resealed(sealed.data)


def resealed(raw: bytearray) -> bytearray:
    """The batch with a CRC that matches."""
    from crc32c import crc32c

    raw[17:21] = crc32c(memoryview(raw)[21:]).to_bytes(4, "big")
    return raw


# -- records that lie
# --------------------------------------------------------------------------------------------

LYING: Final[Mapping[str, tuple[bytes, int]]] = {
    "a record one byte too long": (record(off_by=1) + record(1), 2),
    "a last record one byte too long": (record() + record(1, off_by=1), 2),
    "a record one byte too short": (record(off_by=-1) + record(1), 2),
    "a last record one byte too short": (record() + record(1, off_by=-1), 2),
    "a record of 0 bytes": (record(length=0) + record(1), 2),
    "a record of 5 bytes": (record(length=5) + record(1), 2),
    "a record of -1 bytes": (record(length=-1) + record(1), 2),
    "a record of -2^31 bytes": (record(length=-(2**31)) + record(1), 2),
    "a record of 2^31-1 bytes": (record(length=2**31 - 1) + record(1), 2),
    "a record as long as the rest": (record(length=len(record(1)) + 14) + record(1), 2),
    "a record with an endless length": (record(length=TOO_LONG), 1),
    "a record with a byte after its headers": (record(after=b"\0") + record(1), 2),
    "a time that does not end": (record(time=TOO_LONG_FOR_A_TIME) + record(1), 2),
    "an offset delta that does not end": (record(TOO_LONG) + record(1), 2),
    "a key length that does not end": (record(key_length=TOO_LONG), 1),
    "a key as long as the batch": (record(key_length=100) + record(1), 2),
    "a key of 2^31-1 bytes": (record(key_length=2**31 - 1), 1),
    "a key over the end of its record": (record(value=None, key_length=6) + record(1), 2),
    "a value as long as the batch": (record(value_length=100) + record(1), 2),
    "a value of 2^31-1 bytes": (record(value_length=2**31 - 1), 1),
    "a value over the end of its record": (record(value_length=7) + record(1), 2),
    "a value that swallows the next record": (
        record(value_length=5 + len(record(1)) + 1, value=b"value") + record(1),
        2,
    ),
    "-1 headers": (record(header_count=-1) + record(1), 2),
    "2^31-1 headers": (record(header_count=2**31 - 1), 1),
    "a header count that does not end": (record(header_count=TOO_LONG), 1),
    "one header more than there are": (record(header_count=2, headers=header()) + record(1), 2),
    "one header fewer than there are": (
        record(header_count=1, headers=header() + header()) + record(1),
        2,
    ),
    "a header without a name": (
        record(header_count=1, headers=header(b"", name_length=-1)) + record(1),
        2,
    ),
    "a header name over the end": (
        record(header_count=1, headers=header(name_length=50)) + record(1),
        2,
    ),
    "a header value over the end": (
        record(header_count=1, headers=header(value_length=50)) + record(1),
        2,
    ),
    "a header name of 2^31-1 bytes": (
        record(header_count=1, headers=header(name_length=2**31 - 1)),
        1,
    ),
    "a thousand records over one": (record(value=bytes(10_000)), 1000),
    "one record fewer than counted": (record() + record(1), 3),
    "one record more than counted": (record() + record(1), 1),
    "a byte after the last record": (record() + record(1) + b"\0", 2),
    "zeros after the last record": (record() + record(1) + bytes(100), 2),
    "nothing but zeros": (bytes(100), 2),
    "no bytes": (b"", 1),
    "half a record": (record()[:6], 1),
    "a payload of text": (b"this is not a record" * 5, 1),
    "random bytes": (bytes((n * n * 7 + 3) % 251 for n in range(200)), 2),
    "a batch in a batch": (bytes(build_batch([Record(value=b"v")], timestamp_ms=0)), 1),
}
"""Records that no reader can read."""

ODD: Final[Mapping[str, tuple[bytes, int]]] = {
    "offset deltas 0, 0": (record() + record(), 2),
    "offset deltas 1, 0": (record(1) + record(), 2),
    "offset deltas 0, 2": (record() + record(2), 2),
    "offset deltas 1, 2": (record(1) + record(2), 2),
    "offset deltas 0, -1": (record() + record(-1), 2),
    "offset delta 2^31-1": (record(2**31 - 1), 1),
    "offset delta -2^31": (record(-(2**31)), 1),
    "a key of -2 bytes": (record(key=None, key_length=-2) + record(1), 2),
    "a value of -2 bytes": (record(value=None, value_length=-2) + record(1), 2),
    "a value of -2^31 bytes": (record(value=None, value_length=-(2**31)) + record(1), 2),
    "a header value of -2 bytes": (
        record(header_count=1, headers=header(value=b"", value_length=-2)) + record(1),
        2,
    ),
    "a header name that is not UTF-8": (
        record(header_count=1, headers=header(b"\xff\xfe")) + record(1),
        2,
    ),
    "a length in more bytes than it needs": (
        record(length=bytes([len(record()) - 1 << 1 | 0x80, 0x80, 0])) + record(1),
        2,
    ),
    "record attributes 1": (record(attributes=1) + record(1), 2),
    "record attributes 255": (record(attributes=255) + record(1), 2),
    "a time before 1970": (record(time=-(2**40)) + record(1), 2),
    "the largest time": (record(time=2**63 - 1) + record(1), 2),
}
"""Records that some readers can read."""


# -- bytes that their codec cannot read
# --------------------------------------------------------------------------

GOOD: Final = record() + record(1)
SKIPPED: Final = b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"skip"
"""A frame without content, in zstd and lz4."""
LONG: Final = record(value=bytes(range(256)) * 400) + record(1)


def lz4(data: bytes, *, linked: bool = False, checksum: bool = False) -> bytes:
    compressor = cramjam.lz4.Compressor(level=9, content_checksum=checksum, block_linked=linked)
    compressor.compress(data)
    return bytes(compressor.finish())


def plain_lz4(data: bytes, *, stored: bool = False) -> bytes:
    """A frame of 64 KB blocks without checksums, as Java and librdkafka send it."""
    parts = [bytes.fromhex("04224d18604082")]
    for start in range(0, len(data), 1 << 16):
        block = data[start : start + (1 << 16)]
        if stored:
            parts += (struct.pack("<I", len(block) | 1 << 31), block)
        else:
            packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
            parts += (struct.pack("<I", len(packed)), packed)
    return b"".join(parts) + bytes(4)


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 0x55
    return bytes(changed)


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def damaged_streams() -> dict[str, tuple[int, bytes]]:
    """Bytes that are no stream of their codec."""
    found: dict[str, tuple[int, bytes]] = {}
    for codec in sorted(set(Codec) - {Codec.NONE}):
        name, packed = codec.name.lower(), compress(codec, GOOD)
        long = compress(codec, LONG)
        found |= {
            f"text as {name}": (codec, b"this is not compressed at all" * 4),
            f"zeros as {name}": (codec, bytes(100)),
            f"nothing as {name}": (codec, b""),
            f"plain records as {name}": (codec, GOOD),
            f"{name} cut in the middle": (codec, packed[: len(packed) // 2]),
            f"long {name} cut in the middle": (codec, long[: len(long) // 2]),
            f"{name} with a changed beginning": (codec, flipped(packed, 1)),
            f"long {name} with a changed middle": (codec, flipped(long, len(long) // 2)),
        }
    plain = plain_lz4(LONG)
    return found | {
        "plain lz4 cut in the middle": (Codec.LZ4, plain[: len(plain) // 2]),
        "plain lz4 with a changed beginning": (Codec.LZ4, flipped(plain, 5)),
        "plain lz4 with a changed size": (Codec.LZ4, flipped(plain, 7)),
        "plain lz4 without blocks": (Codec.LZ4, plain[:7] + bytes(4)),
        "a plain lz4 block of 2^31-1 bytes": (Codec.LZ4, plain[:7] + b"\xff\xff\xff\x7fxx"),
        "a stored lz4 block of 2^31-1 bytes": (Codec.LZ4, plain[:7] + b"\xff\xff\xff\xffxx"),
        "an lz4 block larger than 64 KB": (
            Codec.LZ4,
            plain[:7]
            + struct.pack("<I", 70_000 | 1 << 31)
            + record(value=bytes(69_950), delta=0)[:70_000].ljust(70_000, b"\0")
            + bytes(4),
        ),
        "a snappy block of -1 bytes": (
            Codec.SNAPPY,
            compress(Codec.SNAPPY, GOOD)[:16] + struct.pack(">i", -1) + b"xxxx",
        ),
        "a snappy block past the end": (
            Codec.SNAPPY,
            compress(Codec.SNAPPY, GOOD)[:16] + struct.pack(">i", 1000) + b"xxxx",
        ),
    }


def odd_streams() -> dict[str, tuple[int, bytes]]:
    """Streams that some readers can read."""
    found: dict[str, tuple[int, bytes]] = {}
    for codec in sorted(set(Codec) - {Codec.NONE}):
        name, packed = codec.name.lower(), compress(codec, GOOD)
        halves = compress(codec, record()), compress(codec, record(1))
        found |= {
            f"{name} without its last byte": (codec, packed[:-1]),
            f"{name} without its last 4 bytes": (codec, packed[:-4]),
            f"{name} and a byte": (codec, packed + b"\0"),
            f"{name} and text": (codec, packed + b"what is this"),
            f"{name} twice": (codec, packed + packed),
            f"{name} in two streams": (codec, b"".join(halves)),
        }
    checked = lz4(GOOD, checksum=True)
    zipped = gzip.compress(GOOD)
    plain = plain_lz4(GOOD)
    return found | {
        "plain lz4": (Codec.LZ4, plain),
        "plain lz4, stored": (Codec.LZ4, plain_lz4(GOOD, stored=True)),
        "plain lz4 without its last byte": (Codec.LZ4, plain[:-1]),
        "plain lz4 with an empty block": (Codec.LZ4, plain[:7] + b"\0\0\0\x80" + plain[7:]),
        "plain lz4 with a block of nothing": (Codec.LZ4, plain[:7] + b"\1\0\0\0\0" + plain[7:]),
        "plain lz4 with a block of nothing at its end": (
            Codec.LZ4,
            plain[:-4] + b"\1\0\0\0\0" + plain[-4:],
        ),
        "snappy with a block of nothing": (
            Codec.SNAPPY,
            compress(Codec.SNAPPY, b"") + b"\0\0\0\1\0" + compress(Codec.SNAPPY, GOOD)[16:],
        ),
        "snappy with a block of nothing at its end": (
            Codec.SNAPPY,
            compress(Codec.SNAPPY, GOOD) + b"\0\0\0\1\0",
        ),
        "snappy with a block of no bytes": (
            Codec.SNAPPY,
            compress(Codec.SNAPPY, b"") + bytes(4) + compress(Codec.SNAPPY, GOOD)[16:],
        ),
        "gzip with a member of nothing": (Codec.GZIP, gzip.compress(b"") + gzip.compress(GOOD)),
        "gzip with a member of nothing at its end": (
            Codec.GZIP,
            gzip.compress(GOOD) + gzip.compress(b""),
        ),
        "zstd with a frame of nothing": (
            Codec.ZSTD,
            compress(Codec.ZSTD, b"") + compress(Codec.ZSTD, GOOD),
        ),
        "zstd with a frame of nothing at its end": (
            Codec.ZSTD,
            compress(Codec.ZSTD, GOOD) + compress(Codec.ZSTD, b""),
        ),
        "plain lz4 after a frame to skip": (Codec.LZ4, SKIPPED + plain),
        "plain lz4 before a frame to skip": (Codec.LZ4, plain + SKIPPED),
        "plain lz4 and a byte": (Codec.LZ4, plain + b"\0"),
        "plain lz4 in two streams": (Codec.LZ4, plain_lz4(record()) + plain_lz4(record(1))),
        "lz4 with linked blocks": (Codec.LZ4, lz4(LONG * 3, linked=True)),
        "lz4 with a content checksum": (Codec.LZ4, checked),
        "lz4 with a wrong content checksum": (Codec.LZ4, flipped(checked, len(checked) - 1)),
        "gzip with a wrong checksum": (Codec.GZIP, flipped(zipped, len(zipped) - 6)),
        "gzip with a wrong size": (Codec.GZIP, flipped(zipped, len(zipped) - 1)),
        "zlib as gzip": (Codec.GZIP, zlib.compress(GOOD)),
        "raw snappy": (Codec.SNAPPY, raw_snappy(GOOD)),
        "gzip split inside a record": (
            Codec.GZIP,
            gzip.compress(GOOD[:5]) + gzip.compress(GOOD[5:]),
        ),
        **{
            f"snappy with a header of version {version} and {oldest}": (
                Codec.SNAPPY,
                packed[:8] + struct.pack(">ii", version, oldest) + packed[16:],
            )
            for packed in (compress(Codec.SNAPPY, GOOD),)
            for version, oldest in ((2, 1), (1, 2), (0, 0), (1 << 24, 1 << 24))
        },
        "zstd around a frame to skip": (
            Codec.ZSTD,
            compress(Codec.ZSTD, record()) + SKIPPED + compress(Codec.ZSTD, record(1)),
        ),
        "zstd after a frame to skip": (
            Codec.ZSTD,
            SKIPPED + compress(Codec.ZSTD, GOOD),
        ),
    }


# -- bombs
# -------------------------------------------------------------------------------------------------


def zeros_in(codec: int, size: int, head: bytes = b"", tail: bytes = b"") -> bytes:
    """A stream with `size` zeros, made without holding them all at once."""
    piece = bytes(1 << 20)
    pieces: Iterable[bytes] = (head, *[piece] * (size >> 20), bytes(size & (1 << 20) - 1), tail)
    if codec == Codec.GZIP:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        return b"".join(map(packer.compress, pieces)) + packer.flush()
    if codec == Codec.ZSTD:
        squeezer = cramjam.zstd.Compressor(level=3)
        for each in pieces:
            squeezer.compress(each)
        return bytes(squeezer.finish())
    return compress(codec, b"".join(pieces))


def bomb(codec: int, size: int) -> bytes:
    """One valid record with a value of `size` zeros, compressed."""
    start = record(value=b"", value_length=size)
    _, body = start[:1], start[1:]
    whole = write_varint(len(body) + size) + body[:-1]
    return zeros_in(codec, size, whole, body[-1:])
