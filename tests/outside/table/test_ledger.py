"""The ledger's row: who comes second waits, and reads what the first has committed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from fencepost.outside.failures import DatabaseRefused
from fencepost.outside.table.ledger import LedgerTable

LEDGER = LedgerTable("fencepost_ledger", "orders")


@pytest.fixture
def connection(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn) as found:
        LEDGER.ensure(found)
        found.commit()
        yield found


def test_a_row_that_nobody_wrote_has_no_entry(connection: Any) -> None:
    assert LEDGER.read(connection) is None
    assert LEDGER.lock(connection) is None


def test_the_table_is_created_once(connection: Any) -> None:
    LEDGER.ensure(connection)
    LEDGER.lock(connection)
    LEDGER.write(connection, "q", 3, "three")
    LEDGER.ensure(connection)
    assert LEDGER.read(connection) == "three"


def test_ledgers_of_one_name_in_two_schemas_have_sinks_of_their_own(connection: Any) -> None:
    """As those of tenants, who differ in their search path only."""
    here = LEDGER.owner(connection)
    assert here == LEDGER.owner(connection) != LedgerTable(LEDGER.table, "x").owner(connection)
    connection.execute("CREATE SCHEMA tenant; SET search_path = tenant")
    LEDGER.ensure(connection)
    assert LEDGER.owner(connection) != here


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("is_new", [True, False])
def test_the_second_session_waits_for_the_first_also_at_the_very_first_batch(
    dsn: str, connection: Any, ends: str, is_new: bool
) -> None:
    if not is_new:
        LEDGER.lock(connection)
        LEDGER.write(connection, "q", 0, "zero")
        connection.commit()
    LEDGER.lock(connection)
    found = []

    def second() -> None:
        with psycopg.connect(dsn) as other:
            found.append(LEDGER.lock(other))

    thread = threading.Thread(target=second)
    thread.start()
    with psycopg.connect(dsn, autocommit=True) as observer:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while not found and observer.execute(waiting).fetchone() == (0,):
            pass
    assert found == []
    LEDGER.write(connection, "q", 1, "one")
    getattr(connection, ends)()
    thread.join()
    assert found == ["one" if ends == "commit" else None if is_new else "zero"]


def test_a_session_that_freezes_before_its_commit_is_ended_by_the_server(connection: Any) -> None:
    LEDGER.lock(connection)
    found = connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
    assert found == ("10s",)


def test_a_commit_is_durable_whatever_the_database_is_set_to(dsn: str, connection: Any) -> None:
    with psycopg.connect(dsn, options="-c synchronous_commit=off") as careless:
        LEDGER.lock(careless)
        assert careless.execute("SHOW synchronous_commit").fetchone() == ("on",)
    with psycopg.connect(dsn, options="-c synchronous_commit=remote_apply") as careful:
        LEDGER.lock(careful)
        assert careful.execute("SHOW synchronous_commit").fetchone() == ("remote_apply",)


def test_who_may_not_create_the_table_is_given_the_statement(postgres: Any, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            "DO $$ BEGIN CREATE ROLE nobody_here LOGIN; EXCEPTION WHEN others THEN END $$"
        )
        name = admin.info.dbname
    with (
        psycopg.connect(postgres.dsn("nobody_here", name), autocommit=True) as connection,
        pytest.raises(DatabaseRefused) as problem,
    ):
        LEDGER.ensure(connection)
    assert LEDGER.creation() in str(problem.value)
