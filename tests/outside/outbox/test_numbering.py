"""The triggers that number rows at COMMIT: names, and what a column default would lose instead."""

from __future__ import annotations

import psycopg
import pytest

from fencepost.outside.connection import Database
from fencepost.outside.failures import DatabaseRefused
from fencepost.outside.outbox.database import Outbox
from fencepost.outside.outbox.numbering import MAX_SHARDS, structure
from fencepost.outside.outbox.setup import init

TABLES = ("outbox", "Sales.Outbox", '"Out""box"', '"a"."B $$"', '"it\'s 100%"', "a_b", "o$1")


def make(dsn: str, table: str, shards: int = 8) -> None:
    init(Database(dsn), Outbox.of("numbering", table=table, mode="table"), shards=shards)


@pytest.mark.parametrize("table", [name for name in TABLES if '""' not in name])
def test_any_name_of_a_table_works(dsn: str, table: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA sales; CREATE SCHEMA "a"')
        make(dsn, table)
        make(dsn, table)
        for _ in range(2):
            connection.execute(
                f"INSERT INTO {table} (aggregatetype, aggregateid) VALUES ('t', 'k')".encode()
            )
        found = connection.execute(f"SELECT fencepost_number FROM {table}".encode()).fetchall()
        assert sorted(found) == [(2,), (4,)]


def test_a_name_that_leaves_no_room_for_ours_is_refused() -> None:
    with pytest.raises(DatabaseRefused, match="longer than 46"):
        Outbox.of("x", table="t" * 47, mode="table")
    Outbox.of("x", table="schema_" * 8 + "." + "t" * 46, mode="table")


def test_tables_have_shards_of_their_own(dsn: str) -> None:
    """One transaction writes to two outboxes; each has its own locks and settings."""
    make(dsn, "one", 1)
    make(dsn, "two", MAX_SHARDS)
    with psycopg.connect(dsn) as connection:
        for number in range(400):
            for table in ("one", "two"):
                connection.execute(
                    f"INSERT INTO {table} (aggregatetype, aggregateid) "
                    f"VALUES ('t', 'k{number}')".encode()
                )
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        locks = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert locks.fetchone() == (1 + MAX_SHARDS,)
        shards = connection.execute(
            "SELECT count(DISTINCT fencepost_shard), min(fencepost_number) > 0 FROM two"
        )
        assert shards.fetchone() == (MAX_SHARDS, True)


def test_a_rolled_back_transaction_holds_no_shard(dsn: str) -> None:
    make(dsn, "outbox", 1)
    insert = b"INSERT INTO outbox (aggregatetype) VALUES ('t')"
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:
        one.execute(insert)
        one.execute("SET CONSTRAINTS ALL IMMEDIATE")
        one.rollback()
        other.execute("SET lock_timeout = '10s'")
        other.execute(insert)
        other.commit()


def test_what_init_creates_is_the_same_whatever_runs_it() -> None:
    for sql, right in structure("sales.outbox", 4, 'a"key'):
        assert right
        assert "outbox" in sql
    assert 'NEW."a""key"' in structure("outbox", 4, 'a"key')[3][0]
