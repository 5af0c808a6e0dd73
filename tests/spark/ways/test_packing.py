from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain
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
    SealedBatch,
    read_header,
    seal_check,
)
from fencepost.records.builder import build_batch  # noqa: E402
from fencepost.records.columns import column_of, decode_batches  # noqa: E402
from fencepost.records.filling import NOT_CHOSEN, OpenBatches, place_rows  # noqa: E402
from fencepost.records.opened import Record, open_batch  # noqa: E402
from fencepost.spark import compiled as fast  # noqa: E402
from fencepost.spark.failures import CountsDisagree, RowRefused  # noqa: E402
from fencepost.spark.ways.delivery import stamp_producer  # noqa: E402
from fencepost.spark.ways.packing import packer as packing  # noqa: E402
from fencepost.spark.ways.packing.by_column import ColumnPacker  # noqa: E402
from fencepost.spark.ways.packing.by_record import (  # noqa: E402
    RUN_BYTES,
    PackedBatch,
    PackingPlan,
    Placement,
    pack_plain,
    slot_of,
)
from fencepost.spark.ways.packing.packer import Packer  # noqa: E402
from fencepost.spark.ways.shuffled import pack, split_batch  # noqa: E402
from tests.spark.ways.packed import columnwise, plainly  # noqa: E402

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FIELD = st.none() | st.binary(max_size=40)
ROWS = st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=60)
OPTIONS = read_options("localhost:9092")
IDENTITY = ProducerIdentity("t", 7, 2, 2)


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


def sealed(data: bytearray | memoryview) -> SealedBatch:
    """The batch as its writer would send it."""
    stamp_producer(data, IDENTITY, 0)
    batch = read_header(data)
    seal_check(batch)
    return batch


def records_of(packed: Sequence[PackedBatch]) -> dict[TopicPartition, list[tuple[Any, Any]]]:
    found: dict[TopicPartition, list[tuple[Any, Any]]] = {}
    for part in packed:
        records = open_batch(sealed(part.data))
        assert len(records) == part.record_count
        found.setdefault(part.place, []).extend((r.key, r.value) for r in records)
    return found


@settings(max_examples=50)
@given(ROWS, st.integers(0, 4), st.integers(60, 600))
def test_columns_survive_packing_into_batches(
    rows: list[tuple[Any, Any]], codec: int, batch_bytes: int
) -> None:
    columns = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([k for k, _ in rows], pa.binary()),
            "value": pa.array([v for _, v in rows], pa.large_binary()),
            "partition": pa.array([0] * len(rows), pa.int32()),
        }
    )
    batches = []
    offset = 0
    for packed in columnwise(plan(topic="a", codec=codec, batch_bytes=batch_bytes), columns):
        batch = sealed(packed.data)
        batch.assign(offset, 0)
        offset += packed.record_count
        batches.append(batch)
    expected = rows
    assert [(r.key, r.value) for batch in batches for r in open_batch(batch)] == expected
    (decoded,) = decode_batches(batches, 1, offset, group_bytes=2**30)
    assert decoded.keys is not None
    assert decoded.values is not None
    assert (
        list(zip(decoded.keys.to_pylist(), decoded.values.to_pylist(), strict=True)) == expected[1:]
    )
    assert decoded.offsets.tolist() == list(range(1, offset))


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
        plain = open_batch(batch, name_errors="replace")
    except BatchError:
        plain = None
    try:
        (decoded,) = decode_batches([batch], 0, 10, group_bytes=1, headers=True)
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
def test_the_compiled_hash_matches_kafkas(keys: list[bytes | None]) -> None:
    column = column_of(pa.array(keys, pa.binary()), len(keys))
    none, one = np.zeros(0, np.int64), np.zeros(1, np.int64)
    placed = place_rows(
        column,
        column,
        none,
        none,
        np.array([2**31 - 1]),
        one,
        first_turn=3,
        keyless_bytes=0,
        run_bytes=RUN_BYTES,
    )
    assert placed.wrong_row == -1
    hashes = [3 if key is None else (murmur2(key) & 0x7FFFFFFF) % (2**31 - 1) for key in keys]
    assert placed.lanes.tolist() == hashes


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(FIELD, FIELD, st.sampled_from(["a", "b"]), st.none() | st.integers(0, 2)),
        min_size=1,
        max_size=60,
    )
)
def test_both_packers_put_the_same_records_in_the_same_partitions(rows: list[Any]) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([r[0] for r in rows], pa.binary()),
            "value": pa.array([r[1] for r in rows], pa.binary()),
            "topic": pa.array([r[2] for r in rows], pa.string()),
            "partition": pa.array([r[3] for r in rows], pa.int32()),
        }
    )
    plain = records_of(list(plainly(plan(), batch)))
    fast = records_of(list(columnwise(plan(), batch)))
    assert plain == fast
    assert sum(map(len, plain.values())) == len(rows)


@pytest.mark.parametrize("way", [plainly, columnwise])
@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"value": [b"x" * 2000], "topic": ["a"]}, "kafka.max.request.size"),
        ({"value": [b"x"], "topic": [None]}, "no topic"),
        ({"value": [b"x"], "topic": ["a"], "partition": [3]}, "wants partition 3 of topic 'a'"),
        ({"value": [b"x"], "topic": ["b"], "partition": [-1]}, "wants partition -1"),
    ],
)
def test_a_row_that_cannot_be_written_is_refused_with_a_clear_message(
    way: Any, columns: dict[str, list[Any]], named: str
) -> None:
    types = {"value": pa.binary(), "topic": pa.string(), "partition": pa.int32()}
    arrays = {name: pa.array(values, types[name]) for name, values in columns.items()}
    with pytest.raises(RowRefused, match=named):
        list(way(plan(), pa.RecordBatch.from_pydict(arrays)))


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"1"}])
def test_a_header_without_a_name_is_refused_with_a_clear_message(header: Any) -> None:
    rows = [{"key": b"k", "value": b"v", "headers": [{"key": "h", "value": None}, header]}]
    with pytest.raises(RowRefused, match="key b'k' has a header without a name"):
        list(pack_plain(plan(topic="a"), Placement(plan(topic="a"), 0), rows))
    del rows[0]["headers"][1]  # type: ignore[attr-defined]
    packed = pack_plain(plan(topic="a"), Placement(plan(topic="a"), 0), rows)
    assert [one.record_count for one in packed] == [1]


def keyed(count: int, size: int, partition: int | None = 0) -> Any:
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([str(n).encode() for n in range(count)], pa.binary()),
            "value": pa.array([bytes(size)] * count, pa.binary()),
            "partition": pa.array([partition] * count, pa.int32()),
        }
    )


@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_first_batch_of_a_partition_has_the_length_set_by_its_writer(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "compiled_columns", lambda *_: columnwise if is_compiled else None)
    packer = Packer(plan(topic="a", batch_bytes=10_000), 0, lambda _: 7)
    lengths = [
        packed.record_count
        for batch in (keyed(30, 10), keyed(20, 10), keyed(5, 10, partition=1))
        for packed in packer.pack(batch)
    ]
    lengths += [packed.record_count for packed in packer.finish()]
    assert lengths[0] == 7
    assert sum(lengths) == 55
    assert max(lengths[1:]) > 7


def test_rows_with_headers_keep_their_order_and_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "compiled_columns", lambda *_: columnwise)
    packer = Packer(plan(topic="a", batch_bytes=10_000), 0)
    headers = pa.array([[{"key": "h", "value": b"x"}]], HEADERS)
    later = pa.RecordBatch.from_pydict(
        {"key": pa.array([b"last"]), "partition": pa.array([0], pa.int32()), "value": [b""]}
        | {"headers": headers}
    )
    found = records_of(list(packer.pack_all([keyed(3, 1), later, keyed(1, 1)])))
    assert [key for key, _ in found[TopicPartition("a", 0)]] == [b"0", b"1", b"2", b"last", b"0"]
    assert packer.manifest() == {"map": 0, "rows": 5, "partitions": [(("a", 0), 5)]}


def test_a_record_larger_than_a_batch_is_packed_alone_and_in_order() -> None:
    values = [b"a", b"x" * 900, b"b"]
    rows = pa.RecordBatch.from_pydict(
        {"value": pa.array(values, pa.binary()), "partition": pa.array([1, 1, 1], pa.int32())}
    )
    packed = list(columnwise(plan(topic="a", batch_bytes=100), rows))
    assert [p.record_count for p in packed] == [1, 1, 1]
    assert [v for _, v in records_of(packed)[TopicPartition("a", 1)]] == values


def test_more_partitions_than_memory_regions_can_be_packed() -> None:
    arena, free = np.zeros(4 * 200, np.uint8), [0, 1, 2, 3]
    open_batches = OpenBatches(arena, 200, free.pop, free.append, codec=0, clock=lambda: 5)
    open_batches.add_lanes([2**31 - 1] * 50)
    column = column_of(pa.array([b"%d" % n for n in range(100)]), 100)
    lanes = np.arange(100) % 50
    found: dict[int, list[bytes | None]] = {}
    for batch in chain(open_batches.fill(column, column, lanes), open_batches.close_all()):
        records = open_batch(sealed(bytearray(batch.data)))
        found.setdefault(batch.lane, []).extend(record.value for record in records)
        assert batch.region is not None
        free.append(batch.region)
    assert found == {lane: [b"%d" % lane, b"%d" % (lane + 50)] for lane in range(50)}
    assert sorted(free) == [0, 1, 2, 3]


def test_waiting_for_memory_fails_if_none_will_be_returned() -> None:
    packer = ColumnPacker(plan(topic="a"), Placement(plan(topic="a"), 0), lambda _: 9)
    packer.regions.fail(CountsDisagree("broken"))
    with pytest.raises(CountsDisagree, match="broken"):
        list(packer.pack(keyed(1, 1)))


def test_a_row_need_not_choose_its_partition() -> None:
    column = column_of(pa.array([b"k", None]), 2)
    counts, first = np.array([4]), np.array([0])
    chosen = np.array([NOT_CHOSEN, 2])
    turn = {"first_turn": 0, "keyless_bytes": 0, "run_bytes": RUN_BYTES}
    placed = place_rows(column, column, np.zeros(0, np.int64), chosen, counts, first, **turn)
    assert placed.lanes.tolist() == [(murmur2(b"k") & 0x7FFFFFFF) % 4, 2]


def test_a_task_ends_with_a_manifest_of_what_it_packed() -> None:
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
    sequence = 0
    for part in parts:
        stamp_producer(part, IDENTITY, sequence)
        header = read_header(part)
        seal_check(header)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, sequence)
        assert header.is_transactional
        sequence += header.record_count
    assert [read_header(part).record_count for part in parts] == [3, 7]
    assert len(split_batch(batch, 10)) == 1


def _tasks_until_compiled(value_bytes: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many such tasks a new worker packs record by record; 1,000 if it never stops."""
    monkeypatch.setattr(packing, "_plain_rows", 0)
    # Stands for the module that a new worker has not loaded; any unused one will do.
    monkeypatch.setattr(fast, "_MODULE", "colorsys")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    batch = pa.RecordBatch.from_pydict({"value": pa.array([bytes(value_bytes)] * rows)})
    for number in range(1_000):
        packer = Packer(plan(topic="a", batch_bytes=2**20, max_record_bytes=2**20), 0)
        assert sum(packed.record_count for packed in packer.pack(batch)) <= rows
        if packer._columnwise is not None:
            return number
    return 1_000


@pytest.mark.parametrize(
    ("value_bytes", "rows", "tasks"),
    [
        # About 20,000 small rows, in any number of tasks; large rows count for more.
        (100, 2_000, 10),
        (10_240, 2_000, 4),
        # Tasks below the limit for a loaded numba do not load it.
        (100, 50, 1_000),
    ],
)
def test_a_long_lived_worker_switches_to_the_compiled_path(
    value_bytes: int, rows: int, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _tasks_until_compiled(value_bytes, rows, monkeypatch) == tasks
