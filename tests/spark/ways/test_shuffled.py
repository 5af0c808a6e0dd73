"""Goal: a writer sends the batches of each packing task in order, in whatever order they come."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

import pyarrow as pa

from fencepost.spark.failures import CountsDisagree, SinkRefused
from fencepost.spark.ways.packing.rows import select_columns
from fencepost.spark.ways.shuffled import PACKED_COLUMNS, _rows_in_order


def packed(*places: tuple[int, int]) -> object:
    rows = [(0, map_id, 7, ordinal, "t", 0, b"x") for map_id, ordinal in places]
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, t) for c, t in zip(columns, PACKED_COLUMNS.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PACKED_COLUMNS)


def in_order(*batches: object) -> list[tuple[int, int]]:
    return [(row.map_id, row.ordinal) for row in _rows_in_order(iter(batches))]


def test_rows_that_are_in_order_pass_as_they_come() -> None:
    assert in_order(packed((3, 0), (1, 0)), packed((3, 1), (1, 1))) == [
        (3, 0),
        (1, 0),
        (3, 1),
        (1, 1),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_rows_out_of_order_wait_for_those_before(seed: int) -> None:
    places = [(map_id, ordinal) for map_id in range(3) for ordinal in range(4)]
    random.Random(seed).shuffle(places)
    found = in_order(*(packed(place) for place in places))
    for map_id in range(3):
        assert [o for m, o in found if m == map_id] == [0, 1, 2, 3]


@pytest.mark.parametrize("places", [[(0, 0), (0, 2)], [(0, 0), (0, 0)], [(1, 1)]])
def test_a_row_that_is_missing_or_comes_twice_fails_the_task(places: list[tuple[int, int]]) -> None:
    with pytest.raises(CountsDisagree, match="was due"):
        in_order(packed(*places))


def test_columns_are_checked_and_cast_in_the_task() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"KEY": ["a"], "value": pa.array(["v"], pa.large_string()), "topic": ["t"], "more": [1]}
    )
    assert select_columns(batch, None).to_pylist() == [{"key": b"a", "value": b"v", "topic": "t"}]
    assert select_columns(batch, "fixed").schema.names == ["key", "value"]
    with pytest.raises(SinkRefused, match="has no column 'value'"):
        select_columns(batch.select(["KEY"]), "fixed")
    numbers = pa.RecordBatch.from_pydict({"value": [1]})
    with pytest.raises(SinkRefused, match="the column 'value' is bigint"):
        select_columns(numbers, "fixed")
