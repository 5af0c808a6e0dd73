"""Why the relay reads the log: how two queries that are used instead lose rows or their order."""

from __future__ import annotations

import psycopg
import pytest

from tests.outside.outbox.stage import OutboxStage

INSERT = "INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES ('{}', 'k', '{}')"


@pytest.fixture
def numbered(outbox: OutboxStage) -> OutboxStage:
    """With the columns of the two recipes."""
    outbox.execute("ALTER TABLE outbox ADD number bigserial")
    outbox.execute("ALTER TABLE outbox ADD xid xid8 DEFAULT pg_current_xact_id()")
    return outbox


def read(outbox: OutboxStage, condition: str) -> list[object]:
    query = f"SELECT payload FROM outbox WHERE {condition} ORDER BY xid, number"
    return [payload for (payload,) in outbox.execute(query)]


def test_reading_above_the_last_number_loses_a_row_that_commits_later(
    numbered: OutboxStage,
) -> None:
    with psycopg.connect(numbered.dsn) as slow:
        slow.execute(INSERT.format(numbered.topic, "first number").encode())
        numbered.execute(INSERT.format(numbered.topic, "second number"))
        assert read(numbered, "number > 0") == ["second number"]
    assert read(numbered, "number > 2") == [], "the first number is never read"
    numbered.relay()
    assert [record.value for record in numbered.records()] == [b"second number", b"first number"]


def test_reading_below_the_oldest_transaction_breaks_the_order_of_a_key(
    numbered: OutboxStage,
) -> None:
    """B gets its transaction id early, and inserts after A has committed."""
    visible = "xid < pg_snapshot_xmin(pg_current_snapshot())"
    with psycopg.connect(numbered.dsn) as b, psycopg.connect(numbered.dsn) as c:
        b.execute("CREATE TABLE any_first_write (i int)")
        c.execute("CREATE TABLE stays_open (i int)")
        numbered.execute(INSERT.format(numbered.topic, "A, first"))
        b.execute(INSERT.format(numbered.topic, "B, after A").encode())
        b.commit()
        assert read(numbered, visible) == ["B, after A"], "A follows when C has ended"
    assert read(numbered, visible) == ["B, after A", "A, first"]
    numbered.relay()
    assert [record.value for record in numbered.records()] == [b"A, first", b"B, after A"]
