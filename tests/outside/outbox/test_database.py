"""What is wrong with a database is one sentence with the next step, before anything is written."""

from __future__ import annotations

import psycopg
import pytest

from fencepost.outside.connection import Database
from fencepost.outside.failures import DatabaseRefused, OutsideError
from fencepost.outside.outbox.database import CHUNK_TABLE, Outbox, OutboxDatabase
from fencepost.outside.outbox.relay import RelaySettings
from fencepost.outside.outbox.replication import ReplicationStream, SlotInUse
from fencepost.outside.outbox.rules import Cursor, Reason, StartRefused
from fencepost.outside.outbox.setup import FAILOVER_VERSION, init, statements
from tests.outside.outbox.stage import Mode, OutboxStage
from tests.outside.postgres import PostgresServer


def refusal(outbox: OutboxStage, dsn: str | None = None) -> str:
    """What a start says; neither Kafka nor the database has changed."""
    with pytest.raises(OutsideError) as caught:
        outbox.relay(dsn=dsn)
    assert "\n" not in str(caught.value)
    with outbox.cluster() as cluster:
        assert cluster.find_topic(f"fencepost-outbox-{outbox.outbox.transactional_id}") is None
        name = outbox.outbox.transactional_id
        assert cluster.describe_transactions([name])[name] is None
    return str(caught.value)


UNLOGGED_PARTITION = (
    "DROP TABLE outbox; CREATE TABLE outbox (i int) PARTITION BY LIST (i); "
    "CREATE UNLOGGED TABLE one PARTITION OF outbox DEFAULT"
)
SPOILT = {
    "no table": ("DROP TABLE outbox", "create it with `fencepost outbox init`"),
    "no column": ("ALTER TABLE outbox DROP COLUMN payload", "no column 'value' or 'payload'"),
    "unlogged": (
        "CREATE UNLOGGED TABLE u (LIKE outbox); DROP TABLE outbox; ALTER TABLE u RENAME TO outbox",
        "SET LOGGED",
    ),
    "an unlogged partition": (UNLOGGED_PARTITION, "SET LOGGED"),
    "a child table": ("CREATE TABLE one () INHERITS (outbox)", "PARTITION BY"),
    "a generated key": (
        "ALTER TABLE outbox ADD key text GENERATED ALWAYS AS ('k' || aggregateid) STORED",
        "column 'key' of outbox is not in the log",
    ),
    "no chunk table": (f"DROP TABLE {CHUNK_TABLE}", "run `fencepost outbox init`"),
    "no row": (f"DELETE FROM {CHUNK_TABLE}", "run `fencepost outbox init`"),
    "no slot": ("SELECT pg_drop_replication_slot('SLOT')", "run `fencepost outbox init`"),
    "no publication": ('DROP PUBLICATION "SLOT"', "run `fencepost outbox init`"),
    "not published": ('ALTER PUBLICATION "SLOT" DROP TABLE outbox', "ADD TABLE"),
    "no inserts": ("ALTER PUBLICATION \"SLOT\" SET (publish = 'delete')", "without inserts"),
    "init died": (
        f"UPDATE {CHUNK_TABLE} SET slot_lsn = 'FFFFFFFF/FFFFFFFF'",
        "run `fencepost outbox init`",
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_what_is_missing_is_named_with_the_next_step(outbox: OutboxStage, case: str) -> None:
    statement, words = SPOILT[case]
    for each in statement.replace("SLOT", outbox.outbox.slot).split("; "):
        outbox.execute(each)
    assert words in refusal(outbox)


@pytest.mark.parametrize("case", ["no row", "init died"])
def test_init_again_creates_what_is_missing(outbox: OutboxStage, case: str) -> None:
    outbox.execute(SPOILT[case][0])
    assert init(Database(outbox.dsn), outbox.outbox).gap is None
    outbox.insert(2)
    outbox.relay()
    outbox.audit()


@pytest.mark.parametrize("case", ["no table", "no publication", "not published"])
@pytest.mark.parametrize("relayed", [False, True])
def test_what_was_not_published_is_not_hidden_by_init(
    outbox: OutboxStage, case: str, relayed: bool
) -> None:
    """Rows may have been committed before it ran again."""
    if relayed:
        outbox.relay()
    outbox.execute(SPOILT[case][0].replace("SLOT", outbox.outbox.slot))
    if case == "no table":
        # The publication lost its table too.
        outbox.execute(f'DROP PUBLICATION "{outbox.outbox.publication}"')
    if case == "not published":
        outbox.execute(f'ALTER PUBLICATION "{outbox.outbox.publication}" ADD TABLE outbox')
    for _ in range(2):
        if not relayed:
            assert "Not ready" in (init(Database(outbox.dsn), outbox.outbox).gap or "")
    init(Database(outbox.dsn), outbox.outbox)
    outbox.insert(2)
    with pytest.raises(StartRefused, match="--accept new-publication"):
        outbox.relay()
    outbox.relay(RelaySettings(accept={Reason.NEW_PUBLICATION}))
    outbox.relay()
    outbox.audit()


def test_init_changes_nothing_that_is_there(outbox: OutboxStage) -> None:
    outbox.insert(2)
    outbox.relay()
    outbox.insert(2)
    init(Database(outbox.dsn), outbox.outbox)
    assert outbox.relay().rows == 2
    outbox.audit()


def test_init_prints_what_it_would_run(dsn: str) -> None:
    outbox = Outbox.of("it's-mine", table="outbox")
    with psycopg.connect(dsn, autocommit=True) as connection:
        for each in statements(outbox, "postgres"):
            assert each.right
            connection.execute(each.sql.encode())
    with OutboxDatabase(Database(dsn), outbox) as database:
        database.check()
        assert database.read_row().slot_lsn > 0


def test_a_slot_can_be_made_to_survive_a_failover(dsn: str) -> None:
    outbox = Outbox.of("survivor")
    with psycopg.connect(dsn, autocommit=True) as connection:
        version = connection.info.server_version
        if version < FAILOVER_VERSION:
            with pytest.raises(DatabaseRefused, match="PostgreSQL 17"):
                init(Database(dsn), outbox, survives_failover=True)
            return
        init(Database(dsn), outbox, survives_failover=True)
        found = connection.execute(
            "SELECT failover FROM pg_replication_slots WHERE slot_name = %s", [outbox.slot]
        ).fetchone()
        assert found == (True,)


def test_a_user_without_rights_is_told_which(outbox: OutboxStage) -> None:
    name = outbox.outbox.slot
    outbox.execute(f"CREATE ROLE {name} LOGIN")
    dsn = f"{outbox.dsn} user={name}"
    try:
        assert f'ALTER ROLE "{name}" REPLICATION' in refusal(outbox, dsn)
        outbox.execute(f"ALTER ROLE {name} REPLICATION")
        assert "GRANT SELECT, UPDATE" in refusal(outbox, dsn)
        with pytest.raises(DatabaseRefused, match="it takes: CREATE on the schema"):
            init(Database(dsn), Outbox.of(outbox.topic, table="other"))
        init(Database(outbox.dsn), outbox.outbox, relay_user=name)
        outbox.insert(2)
        outbox.relay(dsn=dsn)
        outbox.audit()
    finally:
        outbox.execute(f"DROP OWNED BY {name}")
        outbox.execute(f"DROP ROLE {name}")


def test_the_role_of_amazon_rds_stands_for_the_right_to_replicate(outbox: OutboxStage) -> None:
    name = outbox.outbox.slot
    outbox.execute(f"CREATE ROLE {name} LOGIN; CREATE ROLE rds_replication")
    dsn = f"{outbox.dsn} user={name}"
    try:
        assert "REPLICATION" in refusal(outbox, dsn)
        outbox.execute(f"GRANT rds_replication TO {name}")
        assert "GRANT SELECT, UPDATE" in refusal(outbox, dsn)
    finally:
        outbox.execute(f"DROP OWNED BY {name}; DROP ROLE {name}, rds_replication")


def test_a_slot_in_another_database_is_refused(
    outbox: OutboxStage, postgres: PostgresServer
) -> None:
    other = Outbox.of("other", slot=outbox.outbox.slot)
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute("DROP TABLE IF EXISTS outbox")
        with pytest.raises(DatabaseRefused, match="name another one with --slot"):
            init(Database(postgres.dsn()), other)
        with (
            OutboxDatabase(Database(postgres.dsn()), other) as database,
            pytest.raises(DatabaseRefused, match="name another one with --slot"),
        ):
            database.check()
        admin.execute("DROP PUBLICATION fencepost_other")


def test_a_slot_that_is_in_use_says_so(outbox: OutboxStage) -> None:
    names = outbox.outbox
    with ReplicationStream(Database(outbox.dsn)) as one:
        one.start(names.slot, names.publication)
        with ReplicationStream(Database(outbox.dsn)) as other, pytest.raises(SlotInUse):
            other.start(names.slot, names.publication)


def test_a_deleted_row_ends_a_running_relay_before_its_commit(outbox: OutboxStage) -> None:
    with OutboxDatabase(Database(outbox.dsn), outbox.outbox) as database:
        outbox.execute(f"DELETE FROM {CHUNK_TABLE}")
        with pytest.raises(DatabaseRefused, match="was deleted"):
            database.write_row(1, Cursor(7))


def test_the_lock_of_a_machine_that_is_gone_does_not_stay_for_hours(outbox: OutboxStage) -> None:
    """The server asks whether its client is there; over TCP, as here."""
    with OutboxDatabase(Database(outbox.dsn), outbox.outbox) as database:
        database.check()
        assert database.try_lock()
        ((pid,),) = outbox.execute("SELECT pid FROM pg_locks WHERE locktype = 'advisory'")
        connection = database._connection
        assert connection.info.backend_pid == pid
        found = [
            int(str(row[0]))
            for name in ("idle", "interval", "count")
            for row in connection.execute(f"SHOW tcp_keepalives_{name}".encode())
        ]
        assert found[0] + found[1] * found[2] <= 60


def test_timeouts_of_the_database_end_no_relay_that_waits(outbox: OutboxStage) -> None:
    options = " options='-cstatement_timeout=5s -cidle_session_timeout=5s'"
    with (
        OutboxDatabase(Database(outbox.dsn + options), outbox.outbox) as database,
        database.connect_reader() as reader,
    ):
        for connection in (database._connection, reader):
            for name in ("statement_timeout", "idle_session_timeout"):
                found = connection.execute(f"SHOW {name}".encode()).fetchone()
                assert found == ("0",)


@pytest.mark.parametrize("name", ["", "a;b", "a.b.c", "a b", '"a', "1a"])
def test_a_name_that_is_no_table_is_refused(name: str) -> None:
    with pytest.raises(DatabaseRefused, match="write it as in SQL"):
        Outbox.of("x", table=name)


def test_names_that_postgresql_does_not_take_are_refused() -> None:
    with pytest.raises(DatabaseRefused, match="transactional id"):
        Outbox.of("")
    with pytest.raises(DatabaseRefused, match="no name of a slot"):
        Outbox.of("x", slot="Has Capitals")
    with pytest.raises(DatabaseRefused, match="no name of a publication"):
        Outbox.of("x", publication='"')
    assert Outbox.of("My.Relay!" + "x" * 80).slot == ("fencepost_my_relay_" + "x" * 80)[:63]


def test_two_ids_do_not_share_a_slot(outbox: OutboxStage) -> None:
    """Each relay would confirm what the other one has not read."""
    name = outbox.outbox.transactional_id
    other = Outbox.of(name.replace("-", "."))
    assert other.slot == outbox.outbox.slot
    with pytest.raises(DatabaseRefused, match=f"that of relay '{name}'"):
        init(Database(outbox.dsn), other)
    assert outbox.execute(f"SELECT count(*) FROM {CHUNK_TABLE}") == [(1,)]
    init(Database(outbox.dsn), outbox.outbox)
    init(Database(outbox.dsn), Outbox.of(other.transactional_id, slot="other"))
    outbox.execute(f"SELECT pg_drop_replication_slot('{other.slot}')")
    third = Outbox.of(name.replace("-", "+"))
    assert third.slot == other.slot
    init(Database(outbox.dsn), third)


@pytest.mark.parametrize("mode", ["wal", "table"])
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_in_another_encoding_is_relayed_as_utf8(
    postgres: PostgresServer, kafka: str, encoding: str, mode: Mode
) -> None:
    name = f"{encoding}_{mode}".lower()
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0".encode()
        )
    outbox = OutboxStage(postgres.dsn(database=name), kafka, mode=mode)
    with psycopg.connect(outbox.dsn, client_encoding="UTF8", autocommit=True) as connection:
        connection.execute(
            "INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES (%s, 'é', 'ü')",
            [outbox.topic],
        )
    outbox.relay()
    assert [(r.key, r.value) for r in outbox.records()] == [("é".encode(), "ü".encode())]
    if mode == "wal":
        outbox.drop_slot()


# Other servers.


def test_a_log_without_logical_decoding_is_refused(kafka: str) -> None:
    with PostgresServer(wal_level="replica") as server:
        outbox = OutboxStage(server.dsn(), kafka, prepared=False)
        for dsn in (server.dsn(),):
            assert "SET wal_level = 'logical'" in refusal(outbox, dsn)
            with pytest.raises(DatabaseRefused, match="wal_level"):
                init(Database(dsn), outbox.outbox)


def test_a_slot_whose_log_is_gone_is_refused_and_can_be_created_again(kafka: str) -> None:
    with PostgresServer(max_slot_wal_keep_size="1MB", max_wal_size="2MB") as server:
        outbox = OutboxStage(server.dsn(), kafka)
        for _ in range(3):
            outbox.execute("SELECT pg_switch_wal()")
            outbox.execute("CREATE TABLE busy AS SELECT generate_series(1, 50000)")
            outbox.execute("DROP TABLE busy")
            outbox.execute("CHECKPOINT")
        drop = f"SELECT pg_drop_replication_slot('{outbox.outbox.slot}')"
        assert drop in refusal(outbox)
        with pytest.raises(DatabaseRefused, match="has lost the log"):
            init(Database(outbox.dsn), outbox.outbox)
        outbox.execute(drop)
        # It does not know whether the outbox was used in the time between.
        assert "Not ready" in (init(Database(outbox.dsn), outbox.outbox).gap or "")
        outbox.insert(2)
        with pytest.raises(StartRefused, match="--accept new-slot"):
            outbox.relay()
        outbox.relay(RelaySettings(accept={Reason.NEW_SLOT}))
        outbox.audit()


def test_a_read_only_database_and_a_standby_are_refused(kafka: str) -> None:
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka)
        read_only = server.dsn() + " options=-cdefault_transaction_read_only=on"
        assert "read-only" in refusal(outbox, read_only)
        server.stop()
        server.start(as_standby=True)
        assert "connect to the primary" in refusal(outbox)


def test_a_stopped_database_is_one_sentence(kafka: str) -> None:
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka)
        server.stop()
        assert "start the server" in refusal(outbox)
