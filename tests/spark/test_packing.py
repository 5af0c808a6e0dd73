from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the spark extra is not installed")
pytest.importorskip("numba", reason="the spark extra is not installed")

import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from fencepost.base.ids import TopicPartition  # noqa: E402
from fencepost.client.options import read_options  # noqa: E402
from fencepost.client.partitioner import murmur2  # noqa: E402
from fencepost.client.transactions import ProducerIdentity  # noqa: E402
from fencepost.records.batch import (  # noqa: E402
    HEADER_BYTES,
    BatchError,
    read_header,
    seal_check,
)
from fencepost.records.builder import build_batch  # noqa: E402
from fencepost.records.columns import column_of, decode_batches, encode_lane, hash_keys  # noqa: E402
from fencepost.records.opened import Record, open_batch  # noqa: E402
from fencepost.spark.accounts import settle_accounts  # noqa: E402
from fencepost.spark.columnwise import pack_columnwise  # noqa: E402
from fencepost.spark.delivering import split_batch, stamp_producer  # noqa: E402
from fencepost.spark.failures import CountsDisagree, RowRefused  # noqa: E402
from fencepost.spark.packing import PackedBatch, PackingPlan, pack, slot_of  # noqa: E402
from fencepost.spark.placement import Placement  # noqa: E402
from fencepost.spark.plain import pack_plain  # noqa: E402

FIELD = st.none() | st.binary(max_size=40)
ROWS = st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=60)
OPTIONS = read_options("localhost:9092")


def plan(**changes: Any) -> PackingPlan:
    fields: dict[str, Any] = {
        "batch_id": 0,
        "slots": 2,
        "topic": None,
        "partition_counts": {"a": 3, "b": 5},
        "codec": 0,
        "batch_bytes": 400,
        "max_record_bytes": 1000,
        "options": OPTIONS,
    }
    return PackingPlan(**fields | changes)


def records_of(packed: Sequence[PackedBatch]) -> dict[TopicPartition, list[tuple[Any, Any]]]:
    found: dict[TopicPartition, list[tuple[Any, Any]]] = {}
    for part in packed:
        batch = read_header(part.data)
        seal_check(batch)
        records = open_batch(batch)
        assert len(records) == part.record_count
        found.setdefault(part.place, []).extend((r.key, r.value) for r in records)
    return found


@settings(max_examples=50)
@given(ROWS, st.integers(0, 4), st.integers(60, 600))
def test_columns_become_batches_that_open_to_the_same_columns(
    rows: list[tuple[Any, Any]], codec: int, batch_bytes: int
) -> None:
    keys = column_of(pa.array([k for k, _ in rows], pa.binary()), len(rows))
    values = column_of(pa.array([v for _, v in rows], pa.large_binary()), len(rows))
    order = np.arange(len(rows))[::-1]
    batches = []
    offset = 0
    for encoded in encode_lane(
        keys, values, order, timestamp_ms=7, codec=codec, batch_bytes=batch_bytes
    ):
        batch = read_header(encoded.data)
        seal_check(batch)
        batch.assign(offset, 0)
        offset += encoded.record_count
        batches.append(batch)
    expected = rows[::-1]
    assert [(r.key, r.value) for batch in batches for r in open_batch(batch)] == expected
    decoded = decode_batches(batches, 1, offset)
    assert decoded.keys is not None
    assert decoded.values is not None
    assert (
        list(zip(decoded.keys.to_pylist(), decoded.values.to_pylist(), strict=True)) == expected[1:]
    )
    assert decoded.offsets.tolist() == list(range(1, offset))
    assert set(decoded.timestamps_ms.tolist()) <= {7}


@settings(max_examples=200)
@given(st.data())
def test_both_readers_refuse_the_same_damage(data: st.DataObject) -> None:
    records = [
        Record(key=b"k" * n, value=b"v" * n, headers=(("h", b"x"), ("i", None))) for n in range(4)
    ]
    damaged = build_batch(records, timestamp_ms=1)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(HEADER_BYTES, len(damaged) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    batch = read_header(damaged)
    plain: Any
    try:
        plain = open_batch(batch)
    except BatchError:
        plain = None
    try:
        decoded = decode_batches([batch], 0, 10, headers=True)
    except BatchError:
        assert plain is None
        return
    assert plain is not None
    assert decoded.keys is not None
    assert decoded.keys.to_pylist() == [record.key for record in plain]
    assert decoded.headers == [
        [{"key": n, "value": v} for n, v in record.headers] or None for record in plain
    ]


@given(st.lists(FIELD, min_size=1, max_size=30))
def test_the_compiled_hash_is_kafkas(keys: list[bytes | None]) -> None:
    found = hash_keys(column_of(pa.array(keys, pa.binary()), len(keys)))
    assert found.tolist() == [-1 if key is None else murmur2(key) & 0x7FFFFFFF for key in keys]


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(FIELD, FIELD, st.sampled_from(["a", "b"]), st.none() | st.integers(0, 2)),
        min_size=1,
        max_size=60,
    )
)
def test_both_ways_of_packing_put_the_same_records_to_the_same_places(rows: list[Any]) -> None:
    table = pa.table(
        {
            "key": pa.array([r[0] for r in rows], pa.binary()),
            "value": pa.array([r[1] for r in rows], pa.binary()),
            "topic": pa.array([r[2] for r in rows], pa.string()),
            "partition": pa.array([r[3] for r in rows], pa.int32()),
        }
    )
    one, other = plan(), plan()
    plain = records_of(list(pack_plain(one, Placement(one, 0), table)))
    fast = records_of(list(pack_columnwise(other, Placement(other, 0), table)))
    assert plain == fast
    assert sum(map(len, plain.values())) == len(rows)


@pytest.mark.parametrize("way", [pack_plain, pack_columnwise])
@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"value": [b"x" * 2000], "topic": ["a"]}, "kafka.max.request.size"),
        ({"value": [b"x"], "topic": [None]}, "no topic"),
        ({"value": [b"x"], "topic": ["a"], "partition": [3]}, "wants partition 3 of topic 'a'"),
        ({"value": [b"x"], "topic": ["b"], "partition": [-1]}, "wants partition -1"),
    ],
)
def test_a_row_that_cannot_be_written_is_refused_with_a_sentence(
    way: Any, columns: dict[str, list[Any]], named: str
) -> None:
    types = {"value": pa.binary(), "topic": pa.string(), "partition": pa.int32()}
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    chosen = plan()
    with pytest.raises(RowRefused, match=named):
        list(way(chosen, Placement(chosen, 0), table))


def test_a_task_ends_with_a_manifest_of_all_it_packed() -> None:
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"x"] * 10, pa.binary())})
    rows = [row for out in pack(plan(topic="a"), 4, iter([batch])) for row in out.to_pylist()]
    manifest = rows[-1]
    assert manifest["topic"] is None
    assert b'"map": 4, "rows": 10' in manifest["payload"]
    assert [row["ordinal"] for row in rows] == list(range(len(rows)))
    assert all(
        row["slot"] == slot_of(TopicPartition("a", row["partition"]), 2) for row in rows[:-1]
    )


def test_the_first_batch_is_split_at_the_length_of_the_attempt() -> None:
    batch = build_batch(
        [Record(value=bytes([n])) for n in range(10)], timestamp_ms=1, transactional=True
    )
    parts = split_batch(batch, 3)
    identity = ProducerIdentity("t", 7, 2, 2)
    sequence = 0
    for part in parts:
        stamp_producer(part, identity, sequence)
        header = read_header(part)
        seal_check(header)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, sequence)
        assert header.is_transactional
        sequence += header.record_count
    assert [read_header(part).record_count for part in parts] == [3, 7]
    assert len(split_batch(batch, 10)) == 1


def report(topic: str | None, partition: int, records: int, **changes: Any) -> dict[str, Any]:
    fields = {
        "task_attempt_id": 1,
        "topic": topic,
        "partition": partition,
        "records": records,
        "batches": 1,
        "size_bytes": 10,
        "base_offset": 0,
        "last_offset": records - 1,
        "last_sequence": records - 1,
        "opened_ms": 5,
        "manifest": None,
    }
    return fields | changes


def manifest(number: int, rows: int, lanes: str) -> dict[str, Any]:
    return {"manifest": f'{{"map": {number}, "rows": {rows}, "lanes": {lanes}}}'}


def test_accounts_that_add_up_are_settled() -> None:
    account = settle_accounts(
        [
            report("a", 0, 3),
            report("a", 1, 2),
            manifest(0, 4, '[["a",0,3],["a",1,1]]'),
            manifest(1, 1, '[["a",1,1]]'),
        ]
    )
    assert (account.rows, account.records) == (5, 5)


@pytest.mark.parametrize(
    "reports",
    [
        [report("a", 0, 3), report("a", 0, 3), manifest(0, 6, '[["a",0,6]]')],
        [report("a", 0, 3), manifest(0, 4, '[["a",0,4]]')],
        [report("a", 0, 3), manifest(0, 4, '[["a",0,3]]')],
        [manifest(0, 3, '[["a",0,3]]')],
        [report("a", 0, 3)],
        [report("a", 0, 3), manifest(0, 3, '[["a",0,3]]'), manifest(0, 0, "[]")],
        [report("a", 0, 3, last_sequence=5), manifest(0, 3, '[["a",0,3]]')],
    ],
)
def test_accounts_that_do_not_add_up_are_refused(reports: list[dict[str, Any]]) -> None:
    with pytest.raises(CountsDisagree):
        settle_accounts(reports)
