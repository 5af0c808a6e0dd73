"""Arrow values through COPY into PostgreSQL: what comes out is what went in."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.outside.table.copy_text import copy_text

HARD = ["", "\\", "\\N", "\\.", "a\tb", "a\nb\r\n", "\n\\.\n", '"', "{}", "NULL", "é😀", None]
UTC = dt.UTC

COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "text": (pa.string(), HARD),
    "varchar": (pa.large_string(), HARD),
    "bytea": (pa.binary(), [b"", b"\x00\xff\\\n", None]),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "smallint": (pa.int16(), [-(2**15), 0, None]),
    "numeric": (
        pa.decimal128(38, 18),
        [Decimal("1E-18"), Decimal("-12345678901234567890.123456789012345678"), None],
    ),
    "float8": (pa.float64(), [0.1, -1e300, 5e-324, float("inf"), float("-inf"), None]),
    "float4": (pa.float32(), [0.5, -1.25e30, None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "timestamp": (
        pa.timestamp("us"),
        [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None],  # noqa: DTZ001
    ),
    "timestamptz": (
        pa.timestamp("us", "America/New_York"),
        [dt.datetime(1900, 1, 1, tzinfo=UTC), dt.datetime(2026, 3, 8, 7, 0, 0, 1, UTC), None],
    ),
    "int[]": (pa.list_(pa.int32()), [[1, None, -3], [], None]),
    "text[]": (pa.list_(pa.string()), [HARD, ["a,b", "{x}", " "], [], None]),
    "bytea[]": (pa.list_(pa.binary()), [[b"\x00\\", b"", None], [], None]),
    "timestamptz[]": (
        pa.list_(pa.timestamp("us", "UTC")),
        [[dt.datetime(2026, 1, 1, tzinfo=UTC), None], None],
    ),
    "boolean[]": (pa.list_(pa.bool_()), [[True, None], None]),
    "float8[]": (pa.list_(pa.float64()), [[0.1, None], None]),
}


@pytest.fixture
def connection(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as found:
        yield found


def round_trip(connection: Any, kind: str, array: Any) -> list[Any]:
    connection.execute("DROP TABLE IF EXISTS copied")
    connection.execute(f"CREATE TABLE copied (place serial, found {kind}, attempt bigint)")
    with connection.cursor().copy("COPY copied (found, attempt) FROM STDIN") as copy:
        copy.write(copy_text([array], 7))
    rows = connection.execute("SELECT found, attempt FROM copied ORDER BY place").fetchall()
    assert {attempt for _, attempt in rows} <= {7}
    return [found for found, _ in rows]


def test_every_type_keeps_its_values_also_in_a_slice(connection: Any) -> None:
    for kind, (arrow, values) in COLUMNS.items():
        array = pa.array(values, arrow)
        assert round_trip(connection, kind, array) == values, kind
        assert round_trip(connection, kind, array.slice(1)) == values[1:], kind
        assert round_trip(connection, kind, array.slice(0, 0)) == [], kind


def test_a_column_of_nulls_is_null_in_any_type(connection: Any) -> None:
    nulls = pa.array([None, None], pa.null())
    for kind in COLUMNS:
        assert round_trip(connection, kind, nulls) == [None, None]


def test_columns_stay_beside_each_other() -> None:
    columns = [pa.array([1, None]), pa.array(["a\tb", None]), pa.array([[None], []])]
    assert copy_text(columns, 3) == b"1\ta\\tb\t{NULL}\t3\n\\N\t\\N\t{}\t3\n"


def test_any_text_comes_back(connection: Any) -> None:
    # PostgreSQL has no text with the character zero.
    texts = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"))

    @settings(max_examples=40)
    @given(st.lists(texts), st.lists(st.none() | st.lists(texts)))
    def holds(plain: list[str | None], lists: list[list[str | None] | None]) -> None:
        assert round_trip(connection, "text", pa.array(plain, pa.string())) == plain
        array = pa.array(lists, pa.list_(pa.string()))
        assert round_trip(connection, "text[]", array) == lists

    holds()
