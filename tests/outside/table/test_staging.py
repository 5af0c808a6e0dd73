"""Staging: which rows are merged, which are not, and what is dropped when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from fencepost.outside.connection import Database
from fencepost.outside.failures import DatabaseRefused, DatabaseUnavailable
from fencepost.outside.table.staging import Staging, copy_rows, differing, drop_all
from fencepost.outside.table.target import read_target, shape_of
from fencepost.outside.table.types import Kind, Value

VALUES = {"id": Value(Kind.INTEGER), "name": Value(Kind.TEXT)}
ORDERED = {**VALUES, "at": Value(Kind.INTEGER)}


@pytest.fixture
def connection(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as found:
        found.execute("CREATE TABLE orders (id int PRIMARY KEY, name text, place serial)")
        yield found


def staging(
    connection: Any, key: Sequence[str] | None = None, order: Sequence[str] = ()
) -> Staging:
    target = read_target(connection, "orders")
    shape = shape_of(target, ORDERED if order else VALUES, key, order)
    found = Staging.of(shape, "ledger orders", 5)
    found.create(connection)
    return found


def batch(*rows: tuple[Any, ...]) -> Any:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values) for values in columns], names=list(ORDERED)[: len(rows[0])]
    )


def orders(connection: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = connection.execute(
        "SELECT id, name FROM orders ORDER BY place"
    ).fetchall()
    return found


def stages(connection: Any) -> int:
    found = connection.execute(
        "SELECT count(*) FROM pg_class WHERE relname LIKE 'fencepost\\_stage\\_%'"
    ).fetchone()
    return int(found[0])


def test_only_rows_of_the_reported_attempts_are_merged(dsn: str, connection: Any) -> None:
    found = staging(connection)
    assert copy_rows(Database(dsn), found, 11, [batch((1, "a")), batch((2, "b"))]) == 2
    assert copy_rows(Database(dsn), found, 12, [batch((1, "again"))]) == 1
    assert copy_rows(Database(dsn), found, 13, []) == 0
    assert found.count(connection) == {11: 2, 12: 1}
    found.merge(connection, [11, 13])
    assert orders(connection) == [(1, "a"), (2, "b")]


def test_a_batch_without_partitions_merges_nothing(connection: Any) -> None:
    found = staging(connection)
    found.merge(connection, [])
    assert orders(connection) == []


def test_a_copy_that_is_given_up_leaves_nothing(dsn: str, connection: Any) -> None:
    found = staging(connection)

    def rows() -> Iterator[Any]:
        yield batch((1, "a"))
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        copy_rows(Database(dsn), found, 11, rows())
    assert found.count(connection) == {}


def test_a_value_that_does_not_fit_is_one_sentence(dsn: str, connection: Any) -> None:
    found = staging(connection)
    with pytest.raises(DatabaseRefused, match=r"COPY failed: value .+ is out of range"):
        copy_rows(Database(dsn), found, 11, [batch((2**40, "a"))])
    with pytest.raises(DatabaseRefused, match="COPY failed: invalid byte sequence"):
        copy_rows(Database(dsn), found, 11, [batch((1, "a\x00b"))])


def test_the_counts_of_the_reported_attempts_are_compared_and_no_others() -> None:
    assert differing({1: 10, 2: 0}, {1: 10, 7: 3}) is None
    for found in ({1: 9}, {1: 11}, {}, {1: 10, 2: 1}):
        assert differing({1: 10, 2: 0}, found) is not None


def test_what_a_crash_takes_from_staging_is_noticed(postgres: Any, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, name text, place serial)")
        found = staging(connection)
        copied = copy_rows(Database(dsn), found, 11, [batch((1, "a"))])
    postgres.kill()
    postgres.start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert differing({11: copied}, found.count(connection)) is not None


def test_append_inserts_in_the_order_of_a_column_that_the_table_lacks(
    dsn: str, connection: Any
) -> None:
    found = staging(connection, order=["at"])
    copy_rows(Database(dsn), found, 11, [batch((1, "late", 9), (2, "early", 1), (3, "none", None))])
    found.merge(connection, [11])
    assert [name for _, name in orders(connection)] == ["none", "early", "late"]


def test_an_upsert_replaces_by_key_and_keeps_the_columns_that_the_rows_lack(
    dsn: str, connection: Any
) -> None:
    connection.execute("INSERT INTO orders VALUES (1, 'old', 100)")
    found = staging(connection, key=["id"])
    copy_rows(Database(dsn), found, 11, [batch((1, "new"), (2, "first"))])
    found.merge(connection, [11])
    assert connection.execute("SELECT * FROM orders ORDER BY id").fetchall()[0] == (1, "new", 100)
    assert len(orders(connection)) == 2


def test_the_newest_row_of_a_key_wins_by_order_and_null_is_the_oldest(
    dsn: str, connection: Any
) -> None:
    found = staging(connection, key=["id"], order=["at"])
    rows = [(1, "b", 2), (1, "c", 3), (1, "a", 1), (2, "y", None), (2, "x", 0)]
    for attempt, row in enumerate(rows):
        copy_rows(Database(dsn), found, attempt, [batch(row)])
    copy_rows(Database(dsn), found, 99, [batch((1, "nobody reported it", 4))])
    found.merge(connection, range(len(rows)))
    assert sorted(orders(connection)) == [(1, "c"), (2, "x")]


@pytest.mark.parametrize(
    ("order", "sentence"), [((), "pass order="), (("at",), "add a column to order=")]
)
def test_two_rows_of_a_key_without_a_last_one_are_refused(
    dsn: str, connection: Any, order: tuple[str, ...], sentence: str
) -> None:
    found = staging(connection, key=["id"], order=order)
    rows = [(1, "a", 5), (1, "b", 5)] if order else [(1, "a"), (1, "b")]
    copy_rows(Database(dsn), found, 11, [batch(*rows)])
    with pytest.raises(DatabaseRefused, match="two rows of one batch have the same key") as problem:
        found.merge(connection, [11])
    assert sentence in str(problem.value)
    assert orders(connection) == []


def test_rows_of_nothing_but_the_key_are_upserted_too(dsn: str, connection: Any) -> None:
    connection.execute("INSERT INTO orders (id) VALUES (1)")
    shape = shape_of(read_target(connection, "orders"), {"id": Value(Kind.INTEGER)}, ["id"], ())
    found = Staging.of(shape, "ledger orders", 5)
    found.create(connection)
    copy_rows(Database(dsn), found, 11, [batch((1,), (2,))])
    found.merge(connection, [11])
    assert len(orders(connection)) == 2


@pytest.mark.parametrize("key", [None, ["id%"]])
@pytest.mark.parametrize("order", [(), ("at%s",)])
def test_names_of_columns_need_no_care(
    dsn: str, connection: Any, key: Sequence[str] | None, order: Sequence[str]
) -> None:
    connection.execute('CREATE TABLE "100%" ("id%" int PRIMARY KEY, "a%sb" int, "{}" int)')
    names = dict.fromkeys(("id%", "a%sb", "{}", "at%s")[: 4 if order else 3], Value(Kind.INTEGER))
    shape = shape_of(read_target(connection, "100%"), names, key, order)
    found = Staging.of(shape, "ledger orders", 5)
    found.create(connection)
    rows = pa.RecordBatch.from_arrays([pa.array([n]) for n in range(len(names))], [*names])
    assert copy_rows(Database(dsn), found, 11, [rows]) == 1
    found.merge(connection, [11])
    assert connection.execute('SELECT * FROM "100%"').fetchall() == [(0, 1, 2)]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_text_is_the_same_in_a_database_of_another_encoding(postgres: Any, encoding: str) -> None:
    name = f"in_{encoding}".lower()
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
    # The client's own setting must not matter either.
    database = Database(postgres.dsn(database=name, client_encoding="latin9"))
    with database.connect(autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, name text, place serial)")
        found = staging(connection)
        copy_rows(database, found, 11, [batch((1, "Zoë"))])
        found.merge(connection, [11])
        assert orders(connection) == [(1, "Zoë")]


def test_orphans_are_dropped_by_name_and_one_in_use_is_left(dsn: str, connection: Any) -> None:
    database = Database(dsn)
    in_use = staging(connection)
    staging(connection)
    other = Staging.of(in_use.shape, "ledger another", 5)
    other.create(connection)
    with psycopg.connect(dsn) as writer, writer.cursor().copy(in_use.copying()):
        drop_all(connection, database, "ledger orders")
        assert stages(connection) == 2
    drop_all(connection, database, "ledger orders")
    assert stages(connection) == 1


def test_a_staging_table_that_another_driver_has_dropped_is_worth_another_attempt(
    dsn: str, connection: Any
) -> None:
    found = staging(connection)
    found.drop(connection, Database(dsn))
    assert stages(connection) == 0
    with pytest.raises(DatabaseUnavailable, match="another driver"):
        copy_rows(Database(dsn), found, 11, [batch((1, "a"))])
    with pytest.raises(DatabaseUnavailable, match="another driver"):
        found.count(connection)


def test_a_failure_to_drop_is_no_failure(dsn: str, connection: Any) -> None:
    connection.close()
    drop_all(connection, Database(dsn), "ledger orders")
