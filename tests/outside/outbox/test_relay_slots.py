"""A slot that is ahead of what was sent has lost rows: every way to get there is refused.

`confirmed_flush_lsn` is where the slot is. The relay tells it only what a start can compare it
with: the end of the position in Kafka, or what the row in the database says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from fencepost.base.failures import ConfigError
from fencepost.outside.connection import Database
from fencepost.outside.failures import DatabaseRefused
from fencepost.outside.outbox import log_source
from fencepost.outside.outbox import relay as relay_module
from fencepost.outside.outbox.database import Outbox, OutboxDatabase
from fencepost.outside.outbox.log_source import LogSource
from fencepost.outside.outbox.relay import RelaySettings
from fencepost.outside.outbox.rows import USUAL
from fencepost.outside.outbox.rules import Cursor, Limits, Reason, StartRefused, StreamBroken
from fencepost.outside.outbox.setup import init
from tests.outside.outbox.stage import SMALL, OutboxStage, kill_at
from tests.outside.outbox.test_relay import StopHereError, stop_here
from tests.outside.postgres import PostgresServer


def create(outbox: OutboxStage) -> None:
    outbox.execute(f"SELECT pg_create_logical_replication_slot('{outbox.outbox.slot}', 'pgoutput')")


def by_hand(outbox: OutboxStage) -> None:
    outbox.drop_slot()
    outbox.insert(2)
    create(outbox)


def by_init(outbox: OutboxStage) -> None:
    outbox.drop_slot()
    outbox.insert(2)
    init(Database(outbox.dsn), outbox.outbox)


def advanced(outbox: OutboxStage) -> None:
    outbox.insert(2)
    outbox.advance_slot()


def read_by_another(outbox: OutboxStage) -> None:
    outbox.insert(2)
    slot, publication = outbox.outbox.slot, outbox.outbox.publication
    outbox.execute(
        f"SELECT count(*) FROM pg_logical_slot_get_binary_changes('{slot}', NULL, NULL, "
        f"'proto_version', '1', 'publication_names', '{publication}')"
    )


@pytest.mark.parametrize("relayed", [True, False], ids=["after a run", "before the first"])
@pytest.mark.parametrize("move", [by_hand, by_init, advanced, read_by_another])
def test_a_slot_that_is_ahead_of_what_was_sent_is_refused(
    outbox: OutboxStage, move: Callable[[OutboxStage], None], relayed: bool
) -> None:
    outbox.insert(3)
    if relayed:
        outbox.relay()
    move(outbox)
    outbox.insert(2)
    before = outbox.records()
    for _ in range(2):
        with pytest.raises(StartRefused, match="--accept new-slot"):
            outbox.relay()
    assert outbox.records() == before


def test_a_schema_that_left_the_publication_and_came_back_is_noticed(dsn: str, kafka: str) -> None:
    outbox = OutboxStage(dsn, kafka, prepared=False)
    with outbox.connect() as connection:
        if connection.info.server_version < 150_000:
            pytest.skip("schemas in publications came with PostgreSQL 15")
    name = outbox.outbox.publication
    outbox.execute(f"CREATE PUBLICATION {name} FOR TABLES IN SCHEMA public")
    init(Database(dsn), outbox.outbox)
    outbox.insert(2)
    outbox.relay()
    outbox.execute(f"ALTER PUBLICATION {name} DROP TABLES IN SCHEMA public")
    outbox.insert(2)
    outbox.execute(f"ALTER PUBLICATION {name} ADD TABLES IN SCHEMA public")
    outbox.insert(2)
    with pytest.raises(StartRefused, match="--accept new-publication"):
        outbox.relay()


def test_a_parent_that_left_the_publication_and_came_back_is_noticed(dsn: str, kafka: str) -> None:
    outbox = OutboxStage(dsn, kafka, prepared=False)
    name = outbox.outbox.publication
    outbox.execute(
        "CREATE TABLE events (aggregatetype text, aggregateid text, payload text) "
        "PARTITION BY LIST (aggregateid); CREATE TABLE outbox PARTITION OF events DEFAULT"
    )
    outbox.execute(f"CREATE PUBLICATION {name} FOR TABLE events")
    init(Database(dsn), outbox.outbox)
    outbox.insert(2)
    outbox.relay()
    outbox.audit()
    outbox.execute(f"ALTER PUBLICATION {name} DROP TABLE events")
    outbox.insert(2)
    outbox.execute(f"ALTER PUBLICATION {name} ADD TABLE events")
    assert refused(outbox) == {Reason.NEW_PUBLICATION}


@pytest.mark.parametrize("accepted", [Reason.NEW_SLOT, "new-slot", {"new-slot"}, None])
def test_what_is_accepted_is_a_collection_of_reasons(outbox: OutboxStage, accepted: object) -> None:
    with pytest.raises(ConfigError, match="write a collection of Reason"):
        outbox.relay(RelaySettings(accept=accepted))  # type: ignore[arg-type]


def accept(*reasons: Reason) -> RelaySettings:
    return SMALL._replace(accept=set(reasons))


@pytest.mark.parametrize("move", [by_hand, by_init, advanced, read_by_another])
def test_what_is_left_in_the_slot_is_sent_once_when_that_is_accepted(
    outbox: OutboxStage, move: Callable[[OutboxStage], None]
) -> None:
    outbox.insert(9)
    outbox.relay()
    move(outbox)
    lost = [outbox.written.pop() for _ in range(2)]
    outbox.insert(9)
    for step in ("begun", "streaming", "rows collected", "committed"):
        with pytest.raises(StopHereError):
            outbox.relay(accept(Reason.NEW_SLOT), on_step=kill_at(step, 1, stop_here))
    outbox.relay()
    outbox.insert(2)
    outbox.relay()
    outbox.audit()
    assert lost


def test_a_reason_that_is_accepted_hides_no_other(outbox: OutboxStage) -> None:
    name = outbox.outbox.publication
    outbox.insert(2)
    outbox.relay()
    advanced(outbox)
    del outbox.written[2:]
    outbox.execute(f"ALTER PUBLICATION {name} DROP TABLE outbox")
    outbox.execute(f"ALTER PUBLICATION {name} ADD TABLE outbox")
    both = {Reason.NEW_SLOT, Reason.NEW_PUBLICATION}
    assert refused(outbox) == both
    for reason in both:
        assert refused(outbox, reason) == both - {reason}
    assert refused(outbox, *set(Reason) - both) == both
    outbox.relay(accept(*both))
    outbox.insert(2)
    outbox.relay()
    outbox.audit()


def refused(outbox: OutboxStage, *accepted: Reason) -> frozenset[Reason]:
    with pytest.raises(StartRefused) as caught:
        outbox.relay(accept(*accepted))
    return caught.value.reasons


def test_a_failover_with_a_slot_that_was_made_by_hand_has_two_reasons(kafka: str) -> None:
    """Base backups have no slots, nor have standbys before PostgreSQL 17."""
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka)
        outbox.insert(3)
        outbox.relay()
        outbox.insert(1)
        outbox.drop_slot()
        server.stop()
        server.start(as_standby=True)
        outbox.execute("SELECT pg_promote()")
        create(outbox)
        outbox.insert(2)
        assert refused(outbox) == {Reason.FAILED_OVER, Reason.NEW_SLOT}
        assert refused(outbox, Reason.FAILED_OVER) == {Reason.NEW_SLOT}
        assert len(outbox.records()) == 3


def test_a_failover_with_the_slot_has_one_reason(kafka: str) -> None:
    """The slot was told more than the position, and the row that says so was copied."""
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka)
        outbox.insert(3)
        outbox.relay()
        outbox.execute(BUSY)
        outbox.relay()
        server.stop()
        server.start(as_standby=True)
        outbox.execute("SELECT pg_promote()")
        outbox.insert(2)
        assert refused(outbox) == {Reason.FAILED_OVER}
        outbox.relay(accept(Reason.FAILED_OVER))
        assert outbox.relay().rows == 0
        outbox.audit()


def test_a_restored_database_with_a_new_slot_has_two_reasons(kafka: str) -> None:
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka)
        outbox.insert(2)
        outbox.relay()
        server.stop()
        snapshot = server.snapshot()
        server.start()
        outbox.insert(2)
        outbox.relay()
        server.stop()
        server.restore(snapshot)
        server.start()
        by_init(outbox)
        del outbox.written[4:]
        outbox.insert(1)
        assert refused(outbox) == {Reason.RESTORED, Reason.NEW_SLOT}
        assert refused(outbox, Reason.RESTORED) == {Reason.NEW_SLOT}
        outbox.relay(accept(Reason.RESTORED, Reason.NEW_SLOT))
        assert outbox.relay().rows == 0
        outbox.audit()


@pytest.mark.parametrize("kills", [1, 2, 3])
def test_a_slot_that_falls_back_in_a_crash_is_no_reason(kafka: str, kills: int) -> None:
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka)
        for _ in range(kills):
            outbox.insert(3)
            outbox.relay()
            outbox.execute(BUSY)
            outbox.relay()
            server.kill()
            server.start()
        assert outbox.relay().rows == 0
        outbox.audit()


BUSY = "DROP TABLE IF EXISTS busy; CREATE TABLE busy AS SELECT generate_series(1, 300000)"
"""More than 16 MB of the log."""


def test_an_idle_database_is_not_written_to(
    outbox: OutboxStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute passes on a clock of ours, with a foreign commit in each second."""
    monkeypatch.setattr(log_source, "POLL_SECONDS", 0.05)
    outbox.execute("CREATE TABLE not_ours (i int)")
    with OutboxDatabase(Database(outbox.dsn), outbox.outbox) as database:
        clock = [100.0]
        source = LogSource(
            database, database.check(), Limits(), USUAL, outbox.topic, None, lambda: clock[0]
        )
        with closing(source):
            source.begin(Cursor(source.find().confirmed_flush_lsn))
            row = outbox.execute(ROW)
            at_first = database.confirmed_flush_lsn()

            def live(seconds: int, statement: str) -> list[float]:
                """Returns when the row was written."""
                noted = []
                for _ in range(seconds):
                    clock[0] += 1
                    outbox.execute(statement)
                    end = database.identify()[2]
                    while source._plan.confirmable < end:
                        source.advance(lambda _: None)
                    if source.note_confirmed():
                        noted.append(clock[0])
                    source.confirm()
                return noted

            assert live(60, "INSERT INTO not_ours VALUES (1)") == []
            assert outbox.execute(ROW) == row
            assert database.confirmed_flush_lsn() == at_first
            times = live(12, BUSY)
            assert times == [161.0, 171.0]
            assert outbox.execute(ROW) != row


ROW = "SELECT xmin::text, confirmed FROM fencepost_outbox_chunk"


def test_the_row_says_it_before_the_slot_is_told(outbox: OutboxStage) -> None:
    outbox.insert(1)
    outbox.relay()
    outbox.execute(BUSY)
    seen: list[tuple[object, ...]] = []

    def look() -> None:
        seen.extend(
            outbox.execute(
                "SELECT confirmed_flush_lsn < confirmed, pg_current_wal_lsn() > confirmed "
                "FROM fencepost_outbox_chunk JOIN pg_replication_slots ON slot_name = "
                f"'{outbox.outbox.slot}'"
            )
        )

    outbox.relay(on_step=kill_at("noted", 1, look))
    assert seen == [(True, True)]


def test_a_limit_is_asked_only_of_what_cannot_be_released(
    outbox: OutboxStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay does not end because of log that it has not released yet."""
    monkeypatch.setattr(relay_module, "LOOK_SECONDS", 0.0)
    outbox.insert(1)
    outbox.relay()
    stop = threading.Event()
    outbox.execute("CREATE TABLE small AS SELECT generate_series(1, 1000)")
    outbox.relay(
        RelaySettings(max_held_wal_bytes=1), stop=stop, on_step=kill_at("noted", 1, stop.set)
    )
    assert outbox.execute(
        "SELECT confirmed > end_lsn AND confirmed = confirmed_flush_lsn FROM "
        "fencepost_outbox_chunk JOIN pg_replication_slots ON slot_name = "
        f"'{outbox.outbox.slot}'"
    ) == [(True,)]


def test_a_slot_that_moves_while_a_relay_starts_is_noticed(outbox: OutboxStage) -> None:
    """Its position was judged, and it did not stream yet."""
    outbox.insert(2)
    outbox.relay()
    outbox.insert(2)
    begin = LogSource.begin

    def moved(source: LogSource, cursor: Cursor) -> None:
        advanced(outbox)
        begin(source, cursor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogSource, "begin", moved)
        with pytest.raises(StreamBroken, match="while the relay started"):
            outbox.relay()
    assert refused(outbox) == {Reason.NEW_SLOT}


def test_two_relays_of_one_slot_do_not_lose_what_the_other_read(outbox: OutboxStage) -> None:
    outbox.insert(2)
    outbox.relay()
    other = Outbox.of(f"{outbox.topic}-2")
    init(Database(outbox.dsn), other)
    outbox.insert(2)
    outbox.relay(outbox=other._replace(slot=outbox.outbox.slot))
    assert refused(outbox) == {Reason.NEW_SLOT}


# An installation of the version before.


@pytest.fixture
def before(outbox: OutboxStage) -> OutboxStage:
    """Its table had no such column, and the slot was told what keepalives said."""
    outbox.insert(3)
    outbox.relay()
    outbox.execute("CREATE TABLE not_ours (i int)")
    outbox.advance_slot()
    outbox.execute("ALTER TABLE fencepost_outbox_chunk DROP COLUMN confirmed")
    outbox.insert(2)
    return outbox


def test_an_earlier_table_is_completed_by_init_and_accepted_once(before: OutboxStage) -> None:
    with pytest.raises(DatabaseRefused, match="run `fencepost outbox init` again"):
        before.relay()
    gap = init(Database(before.dsn), before.outbox).gap
    assert gap is not None
    assert "an earlier version" in gap
    with pytest.raises(StartRefused, match=r"earlier version.* --accept new-slot"):
        before.relay()
    before.relay(accept(Reason.NEW_SLOT))
    assert init(Database(before.dsn), before.outbox).gap is None
    before.execute(BUSY)
    assert before.relay().rows == 0
    before.insert(2)
    before.relay()
    before.audit()
    advanced(before)
    assert refused(before) == {Reason.NEW_SLOT}


def test_an_earlier_slot_that_was_not_ahead_needs_no_decision(outbox: OutboxStage) -> None:
    outbox.insert(3)
    outbox.relay()
    outbox.execute("ALTER TABLE fencepost_outbox_chunk DROP COLUMN confirmed")
    assert init(Database(outbox.dsn), outbox.outbox).gap is None
    outbox.insert(2)
    assert outbox.relay().rows == 2
    outbox.audit()


def test_a_part_of_a_transaction_from_an_earlier_version_is_not_repeated(
    outbox: OutboxStage,
) -> None:
    outbox.insert(1)
    outbox.relay()
    outbox.execute("CREATE TABLE not_ours (i int)")
    outbox.advance_slot()
    outbox.execute("ALTER TABLE fencepost_outbox_chunk DROP COLUMN confirmed")
    init(Database(outbox.dsn), outbox.outbox)
    outbox.insert(20)
    with pytest.raises(StopHereError):
        hook = kill_at("committed", 2, stop_here)
        outbox.relay(accept(Reason.NEW_SLOT), on_step=hook)
    outbox.execute("UPDATE fencepost_outbox_chunk SET confirmed = NULL")
    outbox.relay()
    outbox.audit()


def test_a_table_mode_installation_needs_no_column(dsn: str, kafka: str) -> None:
    outbox = OutboxStage(dsn, kafka, mode="table")
    outbox.execute("ALTER TABLE fencepost_outbox_chunk DROP COLUMN confirmed")
    outbox.insert(3)
    outbox.relay()
    outbox.audit()
