"""Goal: no hostile bytes crash the reader or become a wrong row, compiled or not.

Method: batches with a valid header (so that they are opened) and false contents: lengths, counts,
deltas, endless varints, compression. The plain reader, in which Python checks every index, is the
reference: the compiled one must return the same rows or refuse the same batches.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the spark extra is not installed")
pytest.importorskip("numba", reason="the spark extra is not installed")

import cramjam  # noqa: E402
from crc32c import crc32c  # noqa: E402
from hypothesis import example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from fencepost.base.failures import FencepostError  # noqa: E402
from fencepost.base.ids import TopicPartition  # noqa: E402
from fencepost.base.limits import MAX_DECOMPRESSED_BYTES  # noqa: E402
from fencepost.client.fetched import visible_batches, whole_batches  # noqa: E402
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch, read_header  # noqa: E402
from fencepost.records.builder import build_batch  # noqa: E402
from fencepost.records.compression import Codec, compress  # noqa: E402
from fencepost.records.opened import Record  # noqa: E402
from fencepost.records.varint import write_varint  # noqa: E402
from fencepost.spark.failures import RowRefused  # noqa: E402
from fencepost.spark.schemas import schema_of  # noqa: E402
from fencepost.spark.source.columns import COLUMNS, plain_columns  # noqa: E402
from fencepost.spark.source.compiled_columns import decoded_columns  # noqa: E402

PLACE = TopicPartition("t", 3)
ALL = tuple(COLUMNS)
BEGIN, END = -(2**63), 2**63 - 1

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def sealed(
    payload: bytes,
    *,
    count: int = 1,
    last_delta: int = 0,
    attributes: int = 0,
    base_timestamp: int = 0,
    base_offset: int = 0,
) -> SealedBatch:
    """A batch with these contents and a correct size and CRC, whatever else it claims."""
    data = bytearray(build_batch([Record()], timestamp_ms=0)[:HEADER_BYTES]) + payload
    struct.pack_into(">q", data, 0, base_offset)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">hiqq", data, 21, attributes, last_delta, base_timestamp, base_timestamp)
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return read_header(data)


def plainly(batch: SealedBatch, columns: tuple[str, ...] = ALL) -> Any:
    rows = plain_columns(PLACE, batch, columns, BEGIN, END)
    return pa.Table.from_batches([] if rows is None else [rows], schema_of(COLUMNS, columns))


def compiled(batch: SealedBatch, columns: tuple[str, ...] = ALL) -> Any:
    found = decoded_columns(PLACE, [batch], columns, BEGIN, END)
    return pa.Table.from_batches(found, schema_of(COLUMNS, columns))


def outcome(read: Any) -> list[dict[str, Any]] | None:
    """Rows, or None for a clean refusal."""
    try:
        # Times as numbers: some are far outside of what a datetime can be.
        table = read()
    except FencepostError:
        return None
    index = table.schema.get_field_index("timestamp")
    numbers = table.column(index).cast(pa.int64())
    rows: list[dict[str, Any]] = table.set_column(index, "timestamp", numbers).to_pylist()
    return rows


def agree(batch: SealedBatch) -> list[dict[str, Any]] | None:
    plain = outcome(lambda: plainly(batch))
    assert outcome(lambda: compiled(batch)) == plain
    return plain


def rarely(lie: st.SearchStrategy[Any], truth: Any) -> st.SearchStrategy[Any]:
    """Mostly correct: a batch that is wrong everywhere is refused at its first error."""
    return st.integers(0, 15).flatmap(lambda rng: lie if rng == 15 else st.just(truth))


@st.composite
def a_lie(draw: st.DrawFn, truth: int) -> bytes:
    """A varint that is mostly correct."""
    kind = draw(st.integers(0, 99))
    if kind == 0:
        return write_varint(draw(INT32))
    if kind == 1:
        return write_varint(draw(INT64))
    if kind == 2:
        return draw(
            st.sampled_from([b"\xff" * 5, b"\xff" * 11, b"\x80" * 4 + b"\x7f", b"\x80\x00"])
        )
    return write_varint(truth)


@st.composite
def a_field(draw: st.DrawFn) -> bytes:
    value = draw(st.none() | st.binary(max_size=12))
    return write_varint(-1) if value is None else draw(a_lie(len(value))) + value


@st.composite
def a_record(draw: st.DrawFn, index: int) -> bytes:
    headers = draw(st.lists(st.tuples(a_field(), a_field()), max_size=3))
    body = b"".join(
        [
            b"\x00",
            write_varint(draw(rarely(INT64, 3))),
            draw(a_lie(index)),
            draw(a_field()),
            draw(a_field()),
            draw(a_lie(len(headers))),
            *(part for header in headers for part in header),
        ]
    )
    body = body[: draw(rarely(st.integers(0, len(body)), len(body)))]
    return draw(a_lie(len(body))) + body


@st.composite
def a_hostile_batch(draw: st.DrawFn) -> SealedBatch:
    count = draw(st.integers(1, 5))
    payload = b"".join(draw(a_record(index)) for index in range(count))
    payload += draw(rarely(st.binary(max_size=4), b""))
    payload = payload[: draw(rarely(st.integers(0, len(payload)), len(payload)))]
    codec = draw(st.sampled_from(sorted(Codec)))
    return sealed(
        compress(codec, payload),
        count=draw(rarely(INT32, count)),
        last_delta=draw(rarely(INT32, count - 1)),
        attributes=codec | draw(st.sampled_from([0, 8])),
        base_timestamp=draw(rarely(INT64, 5)),
        base_offset=draw(st.integers(0, 2**40)),
    )


@settings(max_examples=200)
@given(a_hostile_batch())
def test_both_readers_agree_on_batches_with_false_contents(batch: SealedBatch) -> None:
    agree(batch)


@settings(max_examples=300)
@given(st.binary(max_size=80), INT32, INT32)
@example(b"\x0c\x00\x00\x00\x01\x01\x00", 1, 0)
@example(b"\x0c\x00\x00\x00\x01\x01\x00", 2**31 - 1, 2**31 - 1)
@example(b"", 0, 0)
def test_both_readers_agree_on_random_bytes(payload: bytes, count: int, last_delta: int) -> None:
    agree(sealed(payload, count=count, last_delta=last_delta))


@settings(max_examples=150)
@given(st.sampled_from(sorted(Codec)), st.data())
def test_both_readers_agree_on_damaged_compression(codec: Codec, data: st.DataObject) -> None:
    whole = build_batch([Record(key=b"k" * 9, value=b"v" * 90)] * 3, timestamp_ms=1)[HEADER_BYTES:]
    packed = bytearray(compress(codec, bytes(whole)))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.just(len(packed)) | st.integers(0, len(packed)))
    agree(sealed(bytes(packed[:cut]), count=3, last_delta=2, attributes=codec))


def test_a_valid_batch_is_read_by_both() -> None:
    """So that the tests above cannot pass by refusing everything."""
    headers = (("h", b"1"), ("h", None), ("é", b""))
    records = [
        Record(timestamp_ms=5, key=b"k", value=None, headers=headers),
        Record(timestamp_ms=3, key=None, value=b"v"),
    ]
    rows = agree(read_header(build_batch(records, timestamp_ms=0, base_offset=7)))
    assert rows is not None
    assert [(r["key"], r["value"], r["offset"], r["timestamp"]) for r in rows] == [
        (b"k", None, 7, 5000),
        (None, b"v", 8, 3000),
    ]
    assert rows[0]["headers"] == [{"key": name, "value": value} for name, value in headers]
    assert rows[1]["headers"] is None
    assert (rows[0]["topic"], rows[0]["partition"], rows[0]["timestampType"]) == ("t", 3, 0)


def test_invalid_utf_8_in_a_header_name_is_replaced_as_in_java() -> None:
    payload = b"".join([b"\x14\x00\x00\x00\x01\x01", b"\x02", b"\x04a\xff", b"\x01"])
    payload = write_varint(len(payload) - 1) + payload[1:]
    rows = agree(sealed(payload))
    assert rows is not None
    assert rows[0]["headers"] == [{"key": "a�", "value": None}]


@pytest.mark.parametrize("timestamp_ms", [2**62, -(2**62), 2**63 - 1])
def test_a_timestamp_out_of_sparks_range_is_refused_unless_its_column_is_left_out(
    timestamp_ms: int,
) -> None:
    batch = sealed(b"\x0c\x00\x00\x00\x01\x01\x00", base_timestamp=timestamp_ms, base_offset=4)
    for read in (plainly, compiled):
        with pytest.raises(RowRefused, match=f"offset 4 of t-3 has the timestamp {timestamp_ms}"):
            read(batch)
        assert read(batch, ("value", "offset")).num_rows == 1


@pytest.mark.parametrize("read", [plainly, compiled])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_a_decompression_bomb_is_refused(read: Any, codec: Codec) -> None:
    megabyte, megabytes = bytes(2**20), MAX_DECOMPRESSED_BYTES // 2**20 + 8
    if codec is Codec.GZIP:
        press = zlib.compressobj(wbits=31)
        packed = b"".join(press.compress(megabyte) for _ in range(megabytes)) + press.flush()
    else:
        frame = cramjam.zstd.Compressor()
        for _ in range(megabytes):
            frame.compress(megabyte)
        packed = bytes(frame.finish())
    assert len(packed) < 2**20
    batch = sealed(packed, count=1000, last_delta=999, attributes=codec)
    with pytest.raises(BatchError, match="more than"):
        read(batch)


def test_many_small_bombs_are_not_in_memory_at_once() -> None:
    """Each is within the limit, and all of them together are not in memory at once."""
    value = bytes(4 * 2**20)
    bomb = bytes(build_batch([Record(value=value)] * 2, timestamp_ms=1, codec=Codec.ZSTD))
    assert len(bomb) < 2000
    batches = [read_header(bytearray(bomb)) for _ in range(20)]
    groups = decoded_columns(PLACE, batches, ("value",), BEGIN, END, group_bytes=2**24)
    assert [rows.num_rows for rows in groups] == [4] * 10


@settings(max_examples=100)
@given(st.data())
def test_bytes_from_a_broker_are_refused_unless_their_crc_is_right(data: st.DataObject) -> None:
    sent = bytearray(build_batch([Record(key=b"k", value=b"v" * 20)] * 2, timestamp_ms=1))
    sent += build_batch([Record(value=b"w")], timestamp_ms=1, base_offset=2)
    position = data.draw(st.integers(0, len(sent) - 1))
    sent[position] ^= data.draw(st.integers(1, 255))
    try:
        batches = list(visible_batches(whole_batches(sent), ()))
    except BatchError:
        return
    # The CRC does not cover base offset and leader epoch, and a larger length truncates the rest;
    # no value changes.
    values = [value for batch in batches for value in compiled(batch).column("value").to_pylist()]
    assert values == [b"v" * 20, b"v" * 20, b"w"][: len(values)]
