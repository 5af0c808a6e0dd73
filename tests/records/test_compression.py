"""Codecs: the output of other libraries, damage, and decompression bombs."""

from __future__ import annotations

import contextlib
import gzip
import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.errors import ErrorCode
from fencepost.records.batch import BatchError
from fencepost.records.compression import (
    CODECS,
    Codec,
    TooLargeError,
    compress,
    decompress,
    decompress_produced,
)
from tests.records.malformed import GOOD, damaged_streams, odd_streams, plain_lz4

COMPRESSING = sorted(CODECS - {Codec.NONE})
DAMAGED_STREAMS = {
    name: stream
    for name, stream in damaged_streams().items()
    # Without a checksum, other bytes are other content.
    if name != "long zstd with a changed middle"
}
ODD_STREAMS = odd_streams()
EMPTY = {"plain lz4 without blocks"}
"""Streams of nothing, which the count of records contradicts."""
BOMB_BYTES = 64 * 1024 * 1024


@given(st.sampled_from(sorted(CODECS)), st.binary(max_size=2000), st.integers(1, 300))
def test_every_codec_round_trips(codec: Codec, data: bytes, repetitions: int) -> None:
    data *= repetitions
    assert bytes(decompress(codec, compress(codec, data))) == data


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_codec_accepts_any_buffer(codec: Codec, kind: type) -> None:
    assert bytes(decompress(codec, compress(codec, kind(b"abc" * 100)))) == b"abc" * 100


def bomb(codec: Codec) -> bytes:
    zeros = bytes(BOMB_BYTES)
    return {
        Codec.GZIP: lambda: gzip.compress(zeros, 1),
        Codec.SNAPPY: lambda: bytes(cramjam.snappy.compress_raw(zeros)),
        Codec.LZ4: lambda: compress(Codec.LZ4, zeros),
        Codec.ZSTD: lambda: compress(Codec.ZSTD, zeros),
    }[codec]()


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_decompression_bomb_is_refused_at_the_limit(codec: Codec) -> None:
    packed = bomb(codec)
    with pytest.raises(BatchError) as refused:
        decompress(codec, packed, max_bytes=BOMB_BYTES - 1)
    assert refused.value.error_code is ErrorCode.INVALID_RECORD
    assert len(decompress(codec, packed, max_bytes=BOMB_BYTES)) == BOMB_BYTES


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_batch_that_does_not_fit_into_the_callers_buffer_is_too_large(codec: Codec) -> None:
    data = bytes(range(256)) * 8
    scratch = bytearray(len(data))
    assert bytes(decompress(codec, compress(codec, data), len(data), scratch)) == data
    with pytest.raises(TooLargeError):
        decompress(codec, compress(codec, data), len(data) - 1, scratch)


def many_pieces(codec: Codec, count: int) -> bytes:
    """Nothing, in `count` pieces."""
    if codec is Codec.GZIP:
        return gzip.compress(b"") * count
    if codec is Codec.SNAPPY:
        return compress(Codec.SNAPPY, b"") + b"\0\0\0\1\0" * count
    # With wrong checksums: no reader gets as far as checking them.
    empty = compress(Codec.LZ4, b"")
    assert empty[-4:] == bytes(4), "the end mark"
    assert empty[4] & 0x10, "a checksum follows each block"
    return empty[:-4] + b"\1\0\0\x80xsums" * count + empty[-4:]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_a_batch_of_very_many_pieces_is_not_opened_at_once(codec: Codec) -> None:
    """Each piece takes a microsecond, however small it is."""
    packed = many_pieces(codec, 2000)
    with pytest.raises(TooLargeError):
        decompress(codec, packed, 1 << 20, bytearray(1 << 20))
    if codec is not Codec.LZ4:
        assert not decompress(codec, packed)


def test_the_limit_covers_all_gzip_members_together() -> None:
    members = gzip.compress(b"abc") + gzip.compress(b"def")
    assert bytes(decompress(Codec.GZIP, members)) == b"abcdef"
    with pytest.raises(BatchError):
        decompress(Codec.GZIP, members, max_bytes=5)


def test_the_limit_covers_all_snappy_blocks_together() -> None:
    packed = compress(Codec.SNAPPY, bytes(100_000))
    with pytest.raises(BatchError):
        decompress(Codec.SNAPPY, packed, max_bytes=99_999)


def test_snappy_uses_the_java_framing() -> None:
    packed = compress(Codec.SNAPPY, b"x" * 40_000)
    assert packed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    (first_block,) = struct.unpack_from(">i", packed, 16)
    first = cramjam.snappy.decompress_raw(packed[20 : 20 + first_block])
    assert len(bytes(first)) == 32 * 1024


def test_a_raw_snappy_block_without_framing_is_also_read() -> None:
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"plain")))) == b"plain"


def test_lz4_frames_have_independent_blocks_as_kafka_requires() -> None:
    packed = compress(Codec.LZ4, bytes(300_000))
    assert packed[:4] == bytes.fromhex("04224d18")
    assert packed[4] & 0x20, "the block independence flag"
    assert packed[4] >> 6 == 1, "the frame version"


@pytest.mark.parametrize("name", DAMAGED_STREAMS)
def test_what_is_no_stream_of_its_codec_is_refused(name: str) -> None:
    codec, packed = DAMAGED_STREAMS[name]
    if packed and name not in EMPTY:
        for scratch in (None, bytearray(1 << 20)):
            with pytest.raises(BatchError):
                decompress(codec, packed, 1 << 20, scratch)


READ_BY_ALL = {
    "zstd in two streams",
    "plain lz4",
    "plain lz4, stored",
    "lz4 with a content checksum",
    "raw snappy",
    "zstd after a frame to skip",
    "zstd around a frame to skip",
    *(name for name in ODD_STREAMS if " of nothing" in name and name[:4] in ("snap", "zstd")),
}
READ_BY_US = {
    "gzip in two streams",
    "gzip split inside a record",
    *(name for name in ODD_STREAMS if name.startswith("gzip with a member of nothing")),
    *(name for name in ODD_STREAMS if name.startswith("snappy with a header of version")),
}
"""librdkafka loses the second member of gzip; aiokafka cannot read these headers of snappy."""
TWICE = {"gzip twice", "zstd twice"}
"""All readers but librdkafka's of gzip take the two streams for one."""


@pytest.mark.parametrize("name", ODD_STREAMS)
def test_a_stream_that_some_clients_cannot_read_is_refused(name: str) -> None:
    codec, packed = ODD_STREAMS[name]
    for scratch in (None, bytearray(1 << 20)):
        if name in READ_BY_ALL | READ_BY_US | TWICE:
            content = bytes(decompress(codec, packed, 1 << 20, scratch))
            assert content == GOOD * (1 + (name in TWICE))
        else:
            with pytest.raises(BatchError):
                decompress(codec, packed, 1 << 20, scratch)


@pytest.mark.parametrize("name", ODD_STREAMS)
def test_of_a_producer_only_those_streams_are_accepted_that_all_clients_read_alike(
    name: str,
) -> None:
    codec, packed = ODD_STREAMS[name]
    for scratch in (None, bytearray(1 << 20)):
        if name in READ_BY_ALL or name == "zstd twice":
            content = bytes(decompress_produced(codec, packed, 1 << 20, scratch))
            assert content == GOOD * (1 + (name == "zstd twice"))
        else:
            with pytest.raises(BatchError) as refused:
                decompress_produced(codec, packed, 1 << 20, scratch)
            assert refused.value.error_code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_what_we_compress_is_accepted_of_a_producer(codec: Codec) -> None:
    data = bytes(range(256)) * 400
    for scratch in (None, bytearray(1 << 20)):
        for content in (b"", data):
            packed = compress(codec, content)
            assert bytes(decompress_produced(codec, packed, 1 << 20, scratch)) == content


@given(
    data=st.binary(max_size=300),
    repetitions=st.integers(1, 600),
    stored=st.booleans(),
    places=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=2),
)
def test_reading_lz4_block_by_block_gives_the_same_result_as_reading_the_frame(
    data: bytes, repetitions: int, stored: bool, places: list[tuple[int, int]]
) -> None:
    data *= repetitions
    packed = bytearray(plain_lz4(data, stored=stored))
    for place, value in places:
        packed[place % len(packed)] = value
    try:
        content = bytes(decompress(Codec.LZ4, packed, 1 << 20, bytearray(1 << 20)))
    except TooLargeError:  # Left to the other reader.
        assert places
    except BatchError:
        with pytest.raises(BatchError):
            decompress(Codec.LZ4, packed)
    else:
        assert bytes(decompress(Codec.LZ4, packed)) == content
        assert places or content == data


@pytest.mark.parametrize("codec", COMPRESSING)
@given(data=st.binary(max_size=100))
def test_garbage_is_a_batch_error(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(BatchError):
        decompress(codec, data)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_truncated_stream_never_yields_the_whole_content(codec: Codec) -> None:
    data = bytes(range(256)) * 40
    packed = compress(codec, data)
    for size in range(0, len(packed), 7):
        try:
            found = bytes(decompress(codec, packed[:size]))
        except BatchError:
            continue
        assert found != data


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(BatchError) as refused:
        decompress(5, b"x")
    assert refused.value.error_code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("size", [-1, 2**31 - 1, 1000])
def test_a_snappy_block_with_a_wrong_size_is_refused(size: int) -> None:
    packed = bytearray(compress(Codec.SNAPPY, b"abc"))
    struct.pack_into(">i", packed, 16, size)
    with pytest.raises(BatchError):
        decompress(Codec.SNAPPY, packed)
