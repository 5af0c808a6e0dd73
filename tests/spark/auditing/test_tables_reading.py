"""How a table is read, without Spark: its keys, which rows are due, one moment, refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from fencepost.base.failures import FencepostError
from fencepost.spark.auditing.question import read_question
from tests.outside.conftest import dsn, postgres
from tests.outside.postgres import PostgresServer
from tests.spark.auditing.sql import run

if TYPE_CHECKING:
    from fencepost.spark.auditing.question import Asked
    from fencepost.spark.auditing.tables import Rows

__all__ = ["dsn", "postgres"]


def read_rows(dsn: str, table: str, key: str, *compare: str, is_input: bool = False) -> Rows:
    """A table as the audit reads it, without Spark."""
    from fencepost.spark.auditing.tables import TableReader

    side = {"input_table": table, "output": "out"} if is_input else {"input": "in", "table": table}
    asked = {"postgres": dsn, "table_key": key, "compare": compare, **side}
    reader = TableReader(read_question(**cast("Asked", asked)), seed=1)
    reader.begin()
    (found,) = reader.read(is_input=is_input)
    return found


@pytest.mark.parametrize(
    ("sql", "column", "key"),
    [
        ("17::int", "k", b"17"),
        ("10.50::numeric", "k", b"10.50"),
        ("true", "k", b"true"),
        ("'a\"b'::text", "k", b'a"b'),
        ("'\\xff00'::bytea", "k", b"\xff\x00"),
        (
            "'6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid",
            "k",
            b"6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        ),
        ("'2026-01-02 03:04:05+02'::timestamptz", "k", b"2026-01-02T01:04:05+00:00"),
        ('\'{"a": {"b": 7}}\'::jsonb', "k:a.b", b"7"),
        ('\'{"a": {"b": 7}}\'::text', "k:a.b", b"7"),
        ('\'{"b": 1, "a": 2}\'::json', "k", b'{"a":"2","b":"1"}'),
        ("ARRAY[1, 2]", "k", b'["1","2"]'),
        ("NULL::int", "k", None),
        ("'{}'::jsonb", "k:a", None),
    ],
)
def test_a_column_is_what_it_would_be_in_json(
    dsn: str, sql: str, column: str, key: bytes | None
) -> None:
    run(dsn, f"CREATE TABLE t AS SELECT {sql} AS k")
    found = read_rows(dsn, "t", column)
    assert found.keys_at([0]) == {0: key}
    assert (found.size, found.unkeyed) == (1, int(key is None))


def test_a_large_table_is_read_in_parts_and_its_keys_are_found_again(dsn: str) -> None:
    run(dsn, "CREATE TABLE t AS SELECT n, n % 7 AS v FROM generate_series(1, 120000) AS n")
    found = read_rows(dsn, "t", "n", "v", is_input=True)
    assert (found.size, found.due, len(found.hashes)) == (120_000, 120_000, 120_000)
    assert len({tuple(row) for row in found.hashes[:, :2].tolist()}) == 120_000
    assert len(set(found.hashes[:, 3].tolist())) == 7
    assert found.keys_at([0, 49_999, 50_000, 119_999]) == {
        0: b"1",
        49_999: b"50000",
        50_000: b"50001",
        119_999: b"120000",
    }


@pytest.mark.parametrize("is_input", [True, False])
def test_names_may_have_a_percent_sign(dsn: str, is_input: bool) -> None:
    run(dsn, 'CREATE TABLE "100%" AS SELECT 7 AS "margin%", 8 AS "a%s"')
    found = read_rows(dsn, '"100%"', "margin%", "a%s", is_input=is_input)
    assert found.keys_at([0]) == {0: b"7"}


def test_all_tables_of_a_side_are_read_at_one_moment(dsn: str, monkeypatch: Any) -> None:
    from fencepost.spark.auditing.tables import TableReader

    run(dsn, "CREATE TABLE a (id int)", "CREATE TABLE b (id int)", "INSERT INTO a VALUES (1)")
    asked = {"input": "in", "table": ["a", "b"], "postgres": dsn, "table_key": "id"}
    reader = TableReader(read_question(**cast("Asked", asked)), seed=1)
    reader.begin()
    reads = TableReader._read

    def and_then_commit(self: Any, connection: Any, table: str, *, is_input: bool) -> Any:
        found = reads(self, connection, table, is_input=is_input)
        run(dsn, "INSERT INTO b VALUES (1)")
        return found

    monkeypatch.setattr(TableReader, "_read", and_then_commit)
    assert [rows.size for rows in reader.read(is_input=False)] == [1, 0]


def test_rows_of_transactions_that_were_running_are_not_due(dsn: str) -> None:
    run(dsn, "CREATE TABLE t (id int)", "INSERT INTO t VALUES (1), (2)")
    with psycopg.connect(dsn) as running:
        running.execute("INSERT INTO t VALUES (3)")
        run(dsn, "INSERT INTO t VALUES (4)")
        found = read_rows(dsn, "t", "id", is_input=True)
        assert (found.size, found.due) == (3, 2)
        assert sorted(found.keys_at([0, 1]).values(), key=str) == [b"1", b"2"]
    assert read_rows(dsn, "t", "id", is_input=True).due == 4


@pytest.fixture(scope="module")
def refusing(postgres: PostgresServer) -> str:
    """A database with what cannot be audited, or not by everybody."""
    run(
        postgres.dsn(),
        "CREATE TABLE payments (id serial, refund_id text, amount bigint)",
        "CREATE TABLE low (refund_id text)",
        "CREATE VIEW seen AS SELECT * FROM payments",
        "ALTER TABLE payments ENABLE ROW LEVEL SECURITY",
        "CREATE ROLE nobody LOGIN",
        "CREATE ROLE guest LOGIN",
        "GRANT SELECT ON payments, low TO guest",
    )
    return postgres.dsn()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"postgres": "host=127.0.0.1 port=1"}, "start the server, or correct host and port"),
        ({"postgres": "nonsense"}, "connection string of PostgreSQL cannot be read"),
        ({"postgres": None}, "say with postgres which database has the table low"),
        ({"table": "paymnts"}, 'relation "paymnts" does not exist; create it first, or correct'),
        ({"table": "payments_id_seq"}, "payments_id_seq is neither a table nor a view"),
        ({"table_key": "refund"}, "table low has no column 'refund'; did you mean refund_id?"),
        ({"table_key": None}, "say with table_key which column of low has the key"),
        ({"table_key": "a:"}, "'a:' is not a key of rows"),
        ({"compare": "amont"}, "table low has no column 'amont'"),
        ({"compare": "a..b"}, "'a..b' cannot be compared"),
        ({"input_table": "payments", "input": ()}, "payments is an input and an output"),
        ({"input_table": "seen", "input": ()}, "seen is a view, whose rows do not say"),
        ({"input_table": "low", "input": (), "until_ms": 1}, "rows of low have no time"),
        ({"input_table": "low", "input": (), "group": "g"}, "say nothing of the rows of low"),
        ({"as_user": "nobody"}, "permission denied for table low; grant this right"),
        ({"as_user": "guest"}, "row-level security"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_sentence(
    refusing: str, asked: dict[str, Any], sentence: str
) -> None:
    from fencepost.spark.auditing.run import prepare_audit

    given: dict[str, Any] = {
        "input_table": "low",
        "table": "payments",
        "postgres": refusing,
        "table_key": "refund_id",
        **asked,
    }
    if user := given.pop("as_user", None):
        given["postgres"] = refusing.replace("user=postgres", f"user={user}")
    if "input" in asked:
        given.pop("input")
    with pytest.raises(FencepostError) as refused:
        prepare_audit("127.0.0.1:1", {}, read_question(**cast("Asked", given)))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
