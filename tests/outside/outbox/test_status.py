"""The status of a relay, without touching it."""

from __future__ import annotations

from fencepost.outside.connection import Database
from fencepost.outside.outbox.database import OutboxDatabase
from fencepost.outside.outbox.replication import ReplicationStream
from fencepost.outside.outbox.rules import HeldWal
from fencepost.outside.outbox.setup import init
from fencepost.outside.outbox.status import RelayStatus, read_status
from tests.outside.outbox.stage import OutboxStage


def status(outbox: OutboxStage) -> RelayStatus:
    with outbox.cluster() as cluster:
        return read_status(Database(outbox.dsn), cluster, outbox.outbox)


def test_a_new_relay_has_no_position(outbox: OutboxStage) -> None:
    found = status(outbox)
    assert found.row is not None
    assert (found.position, found.row.chunk, found.is_active) == (None, 0, False)
    assert found.refusal is None


def test_position_and_row_agree_after_a_run(outbox: OutboxStage) -> None:
    outbox.workload()
    outbox.relay()
    found = status(outbox)
    assert found.position is not None
    assert found.row is not None
    assert found.position.chunk == found.row.chunk > 3
    assert found.position.cursor == found.row.cursor
    assert found.held is not None
    assert found.rows_left is None
    assert found.refusal is None


def test_a_numbered_table_has_rows_that_are_left_instead_of_a_slot(dsn: str, kafka: str) -> None:
    outbox = OutboxStage(dsn, kafka, mode="table")
    outbox.insert(3)
    assert status(outbox).rows_left == 3
    outbox.relay()
    for trigger in ("fencepost_shard", "fencepost_number"):
        outbox.execute(f"DROP TRIGGER {trigger} ON outbox")
    init(Database(dsn), outbox.outbox, shards=32)
    outbox.insert(2)
    found = status(outbox)
    assert (found.rows_left, found.held, found.is_active, found.refusal) == (2, None, False, None)
    with OutboxDatabase(Database(dsn), outbox.outbox) as database:
        assert database.try_lock()
        assert status(outbox).is_active


def test_a_relay_that_is_connected_is_running(outbox: OutboxStage) -> None:
    with ReplicationStream(Database(outbox.dsn)) as stream:
        stream.start(outbox.outbox.slot, outbox.outbox.publication)
        assert status(outbox).is_active


def test_what_a_start_would_refuse_is_said(outbox: OutboxStage) -> None:
    outbox.insert(1)
    outbox.relay()
    outbox.execute("UPDATE fencepost_outbox_chunk SET chunk = 0")
    assert "--accept restored" in str(status(outbox).refusal)


def test_all_that_a_start_would_refuse_is_said(outbox: OutboxStage) -> None:
    outbox.insert(1)
    outbox.relay()
    name = outbox.outbox.publication
    outbox.advance_slot()
    outbox.execute(f"ALTER PUBLICATION {name} DROP TABLE outbox")
    outbox.execute(f"ALTER PUBLICATION {name} ADD TABLE outbox")
    assert "--accept new-slot --accept new-publication" in str(status(outbox).refusal)


def test_without_a_slot_the_rest_is_shown_beside_what_to_do(outbox: OutboxStage) -> None:
    outbox.insert(1)
    outbox.relay()
    outbox.drop_slot()
    found = status(outbox)
    assert "run `fencepost outbox init`" in str(found.refusal)
    assert found.row is not None
    assert found.position is not None
    assert found.row.chunk == found.position.chunk == 1
    assert (found.confirmed_lsn, found.held) == (None, HeldWal(0, 0))
    outbox.execute("DROP TABLE fencepost_outbox_chunk")
    assert status(outbox).row is None
