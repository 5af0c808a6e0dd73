"""Mode table between a real database and a real broker: every row once, in order per key."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path
from random import Random

import psycopg
import pytest

from fencepost.outside.connection import Database
from fencepost.outside.failures import DatabaseRefused, DatabaseUnavailable, OutsideError
from fencepost.outside.outbox import relay as relay_module
from fencepost.outside.outbox.database import CHUNK_TABLE, Outbox
from fencepost.outside.outbox.outlet import RelayFenced
from fencepost.outside.outbox.refused import OnRefused
from fencepost.outside.outbox.relay import COMMIT_HEADER, STEPS, OutboxRelay, RelaySettings
from fencepost.outside.outbox.rows import Unreadable
from fencepost.outside.outbox.rules import Limits, Reason, StartRefused, StreamBroken
from fencepost.outside.outbox.setup import init
from tests.outside.outbox.stage import SMALL, Mode, OutboxStage, kill_at
from tests.outside.postgres import PostgresServer


class StopHereError(Exception):
    """Ends a relay at a step."""


def stop_here() -> None:
    raise StopHereError


@pytest.fixture
def mode() -> Mode:
    return "table"


def insert(outbox: OutboxStage, key: str, value: str) -> bytes:
    """The statement; keys k0 to k4 are in several shards."""
    return (
        "INSERT INTO outbox (aggregatetype, aggregateid, payload) "
        f"VALUES ('{outbox.topic}', '{key}', '{value}')"
    ).encode()


def values(outbox: OutboxStage) -> list[bytes | None]:
    return sorted((record.value for record in outbox.records()), key=str)


def test_rows_arrive_once_in_the_order_of_their_commits(outbox: OutboxStage) -> None:
    outbox.workload()
    counts = outbox.relay()
    assert counts.rows == len(outbox.written)
    assert counts.chunks > 3
    outbox.audit()
    assert outbox.relay().rows == 0
    outbox.insert(3)
    assert outbox.relay().rows == 3
    outbox.audit()


def test_a_record_has_key_value_and_headers_of_the_row(outbox: OutboxStage) -> None:
    outbox.execute("ALTER TABLE outbox ALTER payload TYPE bytea USING payload::bytea")
    outbox.execute(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, headers) VALUES "
        f"('{outbox.topic}', 'é', 'created', '\\x00ff', '{{\"trace\": \"42\"}}')"
    )
    outbox.execute(f"INSERT INTO outbox (aggregatetype) VALUES ('{outbox.topic}')")
    outbox.relay()
    one, other = sorted(outbox.records(), key=lambda record: record.key is None)
    assert (one.key, one.value) == ("é".encode(), b"\x00\xff")
    assert sorted(dict(one.headers)) == [COMMIT_HEADER, "id", "trace", "type"]
    assert len(dict(one.headers)["id"] or b"") == 36
    assert (other.key, other.value) == (None, None)


def test_commits_that_cross_keep_their_order(outbox: OutboxStage) -> None:
    """The one that inserts first commits last; both have the same key."""
    with psycopg.connect(outbox.dsn) as slow, outbox.connect() as fast:
        slow.execute(insert(outbox, "k", "inserted first"))
        fast.execute(insert(outbox, "k", "committed first"))
        outbox.relay()
        slow.commit()
    outbox.relay()
    assert [record.value for record in outbox.records()] == [b"committed first", b"inserted first"]


def test_a_transaction_between_its_number_and_its_commit_holds_back_its_shard(
    outbox: OutboxStage,
) -> None:
    """Numbers are taken under the lock: the second waits until the first is visible."""
    written = threading.Event()

    def write_second() -> None:
        with outbox.connect() as connection:
            connection.execute(insert(outbox, "k", "second"))
        written.set()

    with psycopg.connect(outbox.dsn) as first:
        first.execute(insert(outbox, "k", "first"))
        first.execute("SET CONSTRAINTS ALL IMMEDIATE")
        second = threading.Thread(target=write_second)
        second.start()
        assert outbox.relay().rows == 0
        assert not written.wait(0.2)
        outbox.execute(insert(outbox, "k0", "another shard").decode())
        assert outbox.relay().rows == 1
        first.commit()
    second.join(20)
    outbox.relay()
    assert [r.value for r in outbox.records() if r.key == b"k"] == [b"first", b"second"]


def test_transactions_that_write_the_same_shards_in_opposite_orders_do_not_deadlock(
    outbox: OutboxStage,
) -> None:
    barrier = threading.Barrier(2)

    def write(keys: list[str]) -> None:
        with psycopg.connect(outbox.dsn) as connection:
            for _ in range(20):
                for key in keys:
                    connection.execute(insert(outbox, key, "v"))
                barrier.wait(20)
                connection.commit()

    keys = [f"k{n}" for n in range(6)]
    threads = [threading.Thread(target=write, args=[each]) for each in (keys, keys[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outbox.relay(RelaySettings()).rows == 2 * 20 * 6
    shards = outbox.execute("SELECT count(DISTINCT fencepost_shard) FROM outbox")
    assert shards > [(2,)], "the test needs keys of several shards"


def test_concurrent_writers_keep_the_order_of_each_key_while_relays_die(
    outbox: OutboxStage,
) -> None:
    """Each transaction takes the next numbers of two keys under locks: they are commit order."""
    keys, writers, commits = 5, 4, 40
    outbox.execute("CREATE TABLE counters AS SELECT k, 0 AS n FROM generate_series(0, 4) k")

    def write(seed: int) -> None:
        random = Random(seed)
        with psycopg.connect(outbox.dsn) as connection:
            for _ in range(commits):
                chosen = sorted(random.sample(range(keys), 2))
                for key in chosen:
                    connection.execute(
                        f"WITH next AS (UPDATE counters SET n = n + 1 WHERE k = {key} RETURNING n) "
                        "INSERT INTO outbox (aggregatetype, aggregateid, payload) "
                        f"SELECT '{outbox.topic}', 'k{key}', n FROM next".encode()
                    )
                connection.rollback() if random.random() < 0.2 else connection.commit()

    threads = [threading.Thread(target=write, args=[seed]) for seed in range(writers)]
    for thread in threads:
        thread.start()
    random = Random(7)
    while any(thread.is_alive() for thread in threads):
        with contextlib.suppress(StopHereError):
            hook = kill_at(random.choice(STEPS), random.randint(1, 3), stop_here)
            outbox.relay(on_step=hook)
    outbox.relay()
    found: dict[bytes | None, list[int]] = {}
    for record in outbox.records():
        found.setdefault(record.key, []).append(int(record.value or b"0"))
    counters = outbox.execute("SELECT 'k' || k, n FROM counters WHERE n > 0")
    assert found == {
        str(key).encode(): list(range(1, int(str(last)) + 1)) for key, last in counters
    }


def test_savepoints_and_early_constraints_number_every_row_once(outbox: OutboxStage) -> None:
    with psycopg.connect(outbox.dsn) as connection:
        connection.execute(insert(outbox, "k0", "1"))
        with contextlib.suppress(psycopg.Error), connection.transaction():
            connection.execute(insert(outbox, "k1", "never"))
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            connection.execute("SELECT 1 / 0")
        connection.execute(insert(outbox, "k2", "2"))
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
        connection.execute(insert(outbox, "k1", "3"))
    with psycopg.connect(outbox.dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        connection.execute(insert(outbox, "k0", "4"))
    outbox.relay()
    assert values(outbox) == [b"1", b"2", b"3", b"4"]


def test_rows_wait_for_no_other_transaction(outbox: OutboxStage) -> None:
    """A long transaction stays open, with an older transaction id and a row of the same key."""
    with psycopg.connect(outbox.dsn) as long:
        long.execute(insert(outbox, "k1", "written long ago"))
        outbox.insert(3)
        assert outbox.relay().rows == 3
        outbox.audit()
    outbox.relay()
    assert b"written long ago" in values(outbox)


def test_a_row_that_is_deleted_in_its_own_transaction_is_refused(outbox: OutboxStage) -> None:
    """It would never be sent: the relay reads the table."""
    with psycopg.connect(outbox.dsn) as connection:
        connection.execute(insert(outbox, "k", "v"))
        connection.execute("DELETE FROM outbox")
        with pytest.raises(psycopg.errors.RaiseException, match="in its own transaction"):
            connection.commit()


def test_a_writer_needs_no_more_than_insert(outbox: OutboxStage) -> None:
    name = f"writer_{outbox.outbox.slot}"[:63]
    outbox.execute(f"CREATE ROLE {name} LOGIN; GRANT INSERT ON outbox TO {name}")
    try:
        with psycopg.connect(f"{outbox.dsn} user={name}") as connection:
            connection.execute(insert(outbox, "k", "v"))
        assert outbox.relay().rows == 1
    finally:
        outbox.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_relay_needs_no_more_than_init_grants(outbox: OutboxStage) -> None:
    name = f"relay_{outbox.outbox.slot}"[:63]
    outbox.execute(f"CREATE ROLE {name} LOGIN")
    dsn = f"{outbox.dsn} user={name}"
    outbox.insert(2)
    try:
        with pytest.raises(OutsideError, match="GRANT SELECT, UPDATE ON"):
            outbox.relay(dsn=dsn)
        outbox.execute(f"GRANT SELECT, UPDATE ON {CHUNK_TABLE} TO {name}")
        with pytest.raises(OutsideError, match="--relay-user"):
            outbox.relay(dsn=dsn)
        init(Database(outbox.dsn), outbox.outbox, relay_user=name)
        outbox.relay(dsn=dsn)
        outbox.audit()
    finally:
        outbox.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_settings_of_the_connection_string_hold_for_all_connections(dsn: str, kafka: str) -> None:
    """An outbox of another schema, found by its search_path."""
    there = f"{dsn} options=-csearch_path=sales"
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE SCHEMA sales")
    outbox = OutboxStage(there, kafka, mode="table")
    OutboxStage(dsn, kafka, mode="table")
    outbox.workload()
    outbox.relay()
    outbox.audit()


def test_rows_that_a_policy_hides_from_the_relay_end_it(outbox: OutboxStage) -> None:
    name = f"relay_{outbox.outbox.slot}"[:63]
    outbox.execute(f"CREATE ROLE {name} LOGIN")
    try:
        init(Database(outbox.dsn), outbox.outbox, relay_user=name)
        outbox.execute("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
        outbox.insert(2)
        with pytest.raises(OutsideError, match="row-level security"):
            outbox.relay(dsn=f"{outbox.dsn} user={name}")
    finally:
        outbox.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
    outbox.relay()
    outbox.audit()


# Chunks.


def test_one_hundred_thousand_rows_in_one_transaction(outbox: OutboxStage) -> None:
    """Numbering looks at each row once, and the relay splits them over chunks."""
    count = 100_000
    outbox.execute(
        "INSERT INTO outbox (aggregatetype, aggregateid, payload) "
        f"SELECT '{outbox.topic}', 'k' || i % 97, i FROM generate_series(1, {count}) i"
    )
    counts = outbox.relay(RelaySettings())
    assert (counts.rows, counts.chunks) == (count, count // 10_000)
    found: dict[bytes | None, list[int]] = {}
    for record in outbox.records():
        found.setdefault(record.key, []).append(int(record.value or b"0"))
    assert sum(map(len, found.values())) == count
    assert all(numbers == sorted(numbers) for numbers in found.values())


def test_chunks_of_whole_transactions_are_as_large_as_the_backlog(outbox: OutboxStage) -> None:
    outbox.insert(20)
    outbox.insert(30)
    assert outbox.relay(RelaySettings(limits=Limits(rows=7, may_split=False))).chunks == 1
    outbox.insert(50)
    assert outbox.relay().chunks > 5
    outbox.audit()


def test_a_chunk_of_large_rows_ends_in_the_middle_of_a_query(outbox: OutboxStage) -> None:
    outbox.insert(20, size=1_000)
    assert outbox.relay(RelaySettings(limits=Limits(size_bytes=3_000))).chunks > 5
    outbox.audit()


def test_a_row_that_is_no_record_is_named_and_put_aside_only_if_told(outbox: OutboxStage) -> None:
    outbox.execute("INSERT INTO outbox (aggregatetype, aggregateid) VALUES ('', 'k')")
    with pytest.raises(Unreadable, match=r"row \d+ of shard \d"):
        outbox.relay()
    outbox.insert(2)
    counts = outbox.relay(RelaySettings(on_refused=OnRefused.DEAD_LETTER))
    assert (counts.rows, counts.dead_letters, counts.behind_rows) == (2, 1, 0)
    assert outbox.relay().dead_letters == 0
    outbox.audit()


def test_the_oldest_row_is_that_of_any_shard(outbox: OutboxStage) -> None:
    """Shards are read one after the other, and the first has the younger row."""
    keys: dict[int, str] = {}
    for number in range(100):
        outbox.execute(insert(outbox, f"k{number}", "").decode())
    for key, shard in outbox.execute("SELECT aggregateid, fencepost_shard FROM outbox"):
        keys[int(str(shard))] = str(key)
    outbox.relay()
    for last_first in sorted(keys, reverse=True):
        outbox.execute(insert(outbox, keys[last_first], "").decode())
    ((oldest,),) = outbox.execute(
        "SELECT (extract(epoch FROM fencepost_at) * 1000)::bigint FROM outbox "
        "ORDER BY fencepost_number DESC LIMIT 1 OFFSET 7"
    )
    seen: list[int | None] = []
    with outbox.cluster() as cluster:
        relay = OutboxRelay(
            outbox.dsn,
            cluster,
            outbox.outbox,
            on_step=lambda step: seen.append(relay.counts.oldest_unsent_at_ms),
        )
        relay.run(until_caught_up=True)
    assert oldest in seen
    assert relay.counts.oldest_unsent_at_ms is None


# Old rows.

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "outside-outbox.md").read_text()


def statement(outbox: OutboxStage, first_words: str) -> str:
    """A statement of the page."""
    (found,) = re.findall(rf"^{re.escape(first_words)}.*?;$", PAGE, re.MULTILINE | re.DOTALL)
    assert "'shop-outbox'" in found
    return str(found).replace("shop-outbox", outbox.outbox.transactional_id)


def test_rows_below_the_position_can_be_deleted_and_no_others(outbox: OutboxStage) -> None:
    delete = statement(outbox, "DELETE FROM outbox")
    outbox.insert(20)
    with pytest.raises(StopHereError):
        outbox.relay(on_step=kill_at("position written", 2, stop_here))
    sent = len(outbox.records())
    outbox.execute(delete)
    ((left,),) = outbox.execute("SELECT count(*) FROM outbox")
    assert left == 20 - sent > 0
    outbox.relay()
    outbox.audit()
    outbox.insert(1)
    outbox.relay()
    outbox.execute(delete)
    ((left,),) = outbox.execute("SELECT count(*) FROM outbox")
    assert isinstance(left, int)
    assert left < 20, "all but the last chunk"
    outbox.audit()


def test_a_partitioned_outbox_loses_old_rows_with_its_partitions(dsn: str, kafka: str) -> None:
    outbox = OutboxStage(dsn, kafka, mode="table", prepared=False)
    outbox.execute(
        "CREATE TABLE outbox (day int, aggregatetype text, aggregateid text, payload text) "
        "PARTITION BY LIST (day)"
    )
    for day in (1, 2):
        outbox.execute(f"CREATE TABLE day{day} PARTITION OF outbox FOR VALUES IN ({day})")
    init(Database(dsn), outbox.outbox)
    for day in (1, 2, 1):
        outbox.execute(f"INSERT INTO outbox VALUES ({day}, '{outbox.topic}', 'k', 'day {day}')")
    count = statement(outbox, "SELECT count(*) FROM outbox_monday").replace("outbox_monday", "day1")
    assert outbox.execute(count) == [(2,)]
    assert outbox.execute(count.replace(outbox.topic, "a wrong name")) == [(2,)]
    outbox.relay()
    outbox.execute(f"INSERT INTO outbox VALUES (2, '{outbox.topic}', 'k', 'day 2')")
    outbox.relay()
    assert outbox.execute(count) == [(0,)]
    outbox.execute("ALTER TABLE day2 DISABLE TRIGGER fencepost_number")
    with pytest.raises(DatabaseRefused, match="disabled triggers"):
        outbox.relay()
    outbox.execute("ALTER TABLE day2 ENABLE TRIGGER fencepost_number")
    outbox.execute("DROP TABLE day1")
    outbox.execute("CREATE TABLE day3 PARTITION OF outbox FOR VALUES IN (3)")
    outbox.execute(f"INSERT INTO outbox VALUES (3, '{outbox.topic}', 'k', 'day 3')")
    outbox.relay()
    found = [record.value for record in outbox.records()]
    assert found == [b"day 1", b"day 2", b"day 1", b"day 2", b"day 3"]


def test_a_table_that_is_emptied_and_reset_keeps_its_numbers(outbox: OutboxStage) -> None:
    outbox.insert(5)
    outbox.relay()
    outbox.execute("TRUNCATE outbox RESTART IDENTITY")
    outbox.insert(2)
    outbox.relay()
    outbox.audit()


# Crashes and other relays.


@pytest.mark.parametrize("step", ["rows collected", "row updated", "position written", "committed"])
def test_nothing_is_in_kafka_that_a_crash_can_still_take_back(kafka: str, step: str) -> None:
    """Writers do not wait for the disk, and the log is not written for ten seconds."""
    with PostgresServer(synchronous_commit="off", wal_writer_delay="10s") as server:
        outbox = OutboxStage(server.dsn(), kafka, mode="table")
        outbox.insert(1)
        outbox.relay()
        outbox.insert(3)
        with pytest.raises(DatabaseUnavailable):
            outbox.relay(stop=threading.Event(), on_step=kill_at(step, 1, server.kill))
        server.start()
        left = {str(value).encode() for (value,) in outbox.execute("SELECT payload FROM outbox")}
        assert {record.value for record in outbox.records()} <= left
        outbox.written = [pair for pair in outbox.written if pair[1] in left]
        for _ in range(3):
            # These may get the numbers that others had before the crash.
            outbox.insert(1)
            outbox.relay()
        outbox.audit()


def test_a_second_relay_takes_over_and_the_first_says_so(
    outbox: OutboxStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "OWNERSHIP_SECONDS", 0.1)
    outbox.insert(3)
    stop, failures, committed = threading.Event(), list[Exception](), threading.Event()

    def run_first() -> None:
        try:
            outbox.relay(stop=stop, on_step=kill_at("committed", 1, committed.set))
        except OutsideError as problem:
            failures.append(problem)

    first = threading.Thread(target=run_first)
    first.start()
    try:
        assert committed.wait(20)
        outbox.insert(2)
        outbox.relay()
        first.join(20)
    finally:
        stop.set()
        first.join(20)
    (failure,) = failures
    assert isinstance(failure, RelayFenced)
    outbox.audit()


def test_a_fenced_relay_commits_nothing(outbox: OutboxStage) -> None:
    def fence() -> None:
        with outbox.cluster() as cluster:
            cluster.init_producer_id(outbox.outbox.transactional_id)

    outbox.insert(3)
    with pytest.raises(RelayFenced):
        outbox.relay(on_step=kill_at("position written", 1, fence))
    assert outbox.records() == []
    outbox.relay()
    outbox.audit()


def test_neither_logical_decoding_nor_replication_is_needed(kafka: str) -> None:
    with PostgresServer(wal_level="minimal", max_wal_senders="0") as server:
        outbox = OutboxStage(server.dsn(), kafka, mode="table")
        outbox.workload()
        outbox.relay()
        outbox.audit()


# Another database.


def refusal(outbox: OutboxStage, reason: Reason, names: Outbox | None = None) -> None:
    before = outbox.records()
    with pytest.raises(StartRefused) as caught:
        outbox.relay(outbox=names)
    assert caught.value.reasons == {reason}
    assert outbox.records() == before


def test_a_restored_snapshot_is_refused_until_it_is_accepted(kafka: str) -> None:
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka, mode="table")
        outbox.insert(2)
        outbox.relay()
        server.stop()
        snapshot = server.snapshot()
        server.start()
        outbox.insert(2)
        outbox.relay()
        lost = outbox.written[2:]
        server.stop()
        server.restore(snapshot)
        server.start()
        refusal(outbox, Reason.RESTORED)
        # Numbers that were given again do not hide it.
        outbox.insert(2)
        refusal(outbox, Reason.RESTORED)
        outbox.relay(RelaySettings(accept={Reason.RESTORED}))
        outbox.insert(2)
        outbox.relay()
        found = {record.value for record in outbox.records()}
        assert {value for _, value in outbox.written} <= found, "rows since then are not skipped"
        assert {value for _, value in lost} <= found


def test_a_promoted_standby_is_refused_and_goes_on_when_accepted(kafka: str) -> None:
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka, mode="table")
        outbox.insert(9)
        outbox.relay()
        server.stop()
        server.start(as_standby=True)
        outbox.execute("SELECT pg_promote()")
        outbox.insert(2)
        refusal(outbox, Reason.FAILED_OVER)
        outbox.relay(RelaySettings(accept={Reason.FAILED_OVER}))
        outbox.insert(2)
        outbox.relay()
        outbox.audit()


def test_numbers_that_were_set_back_are_refused(outbox: OutboxStage) -> None:
    outbox.insert(2)
    outbox.relay()
    outbox.insert(2)
    outbox.relay()
    outbox.execute("SELECT setval('outbox_fencepost', 1)")
    refusal(outbox, Reason.RESTORED)
    with pytest.raises(StreamBroken, match="setval") as caught:
        outbox.relay(RelaySettings(accept={Reason.RESTORED}))
    found = re.search(r"SELECT setval.*\)", str(caught.value))
    assert found is not None
    outbox.execute(found[0])
    outbox.insert(2)
    assert outbox.relay().rows == 2
    outbox.audit()


def test_another_table_and_another_mode_need_a_transactional_id_of_their_own(
    outbox: OutboxStage,
) -> None:
    outbox.insert(2)
    outbox.relay()
    name = outbox.outbox.transactional_id
    for other in (Outbox.of(name, table="other", mode="table"), Outbox.of(name)):
        init(Database(outbox.dsn), other)
        refusal(outbox, Reason.OTHER_SOURCE, other)
    init(Database(outbox.dsn), outbox.outbox)
    outbox.relay()
    outbox.audit()


def test_a_death_while_another_table_is_accepted_hides_none_of_its_rows(
    outbox: OutboxStage,
) -> None:
    """The new table has lower numbers than those that were sent of the old one."""
    for _ in range(2):
        outbox.insert(9)
        outbox.relay()
    other = Outbox.of(outbox.outbox.transactional_id, table="other", mode="table")
    init(Database(outbox.dsn), other)
    outbox.execute(
        "INSERT INTO other (aggregatetype, aggregateid, payload) "
        f"SELECT '{outbox.topic}', 'k' || i, 'other' FROM generate_series(1, 5) i"
    )
    accepting = RelaySettings(accept={Reason.OTHER_SOURCE})
    with pytest.raises(StopHereError):
        outbox.relay(accepting, outbox=other, on_step=kill_at("begun", 1, stop_here))
    refusal(outbox, Reason.OTHER_SOURCE, other)
    outbox.relay(accepting, outbox=other)
    assert values(outbox).count(b"other") == 5


# The table.


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DROP TABLE outbox", "create it with `fencepost outbox init`"),
        ("DROP TRIGGER fencepost_number ON outbox", "init --mode table"),
        ("ALTER TABLE outbox DISABLE TRIGGER ALL", "ENABLE TRIGGER fencepost_shard"),
        (f"DELETE FROM {CHUNK_TABLE}", "run `fencepost outbox init`"),
        ("ALTER TABLE outbox SET UNLOGGED", "SET LOGGED"),
        ("ALTER SEQUENCE outbox_fencepost CACHE 20", "CACHE 1 NO CYCLE"),
        ("ALTER TABLE outbox DROP COLUMN payload", "no column 'value' or 'payload'"),
    ],
)
def test_what_is_missing_is_named_with_the_next_step(
    outbox: OutboxStage, statement: str, words: str
) -> None:
    outbox.execute(statement)
    with pytest.raises(OutsideError, match=words) as caught:
        outbox.relay()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE outbox DISABLE TRIGGER fencepost_number", "ENABLE TRIGGER"),
        ("CREATE TABLE child () INHERITS (outbox)", "PARTITION BY"),
        ("DROP TRIGGER fencepost_number ON outbox", "init --mode table"),
    ],
)
def test_a_running_relay_ends_when_rows_get_no_numbers(
    outbox: OutboxStage, monkeypatch: pytest.MonkeyPatch, change: str, words: str
) -> None:
    monkeypatch.setattr(relay_module, "LOOK_SECONDS", 0.0)
    outbox.insert(2)

    def change_it() -> None:
        outbox.execute(change)

    with pytest.raises(DatabaseRefused, match=words):
        outbox.relay(stop=threading.Event(), on_step=kill_at("committed", 1, change_it))
    outbox.audit()


def test_the_number_of_shards_changes_only_when_everything_was_relayed(
    outbox: OutboxStage,
) -> None:
    database, names = Database(outbox.dsn), outbox.outbox
    with pytest.raises(DatabaseRefused, match="DROP TRIGGER"):
        init(database, names, shards=2)
    with pytest.raises(DatabaseRefused, match="1 to 32"):
        init(database, names, shards=33)
    init(database, names, shards=8)
    outbox.insert(5)
    outbox.relay()
    for trigger in ("fencepost_shard", "fencepost_number"):
        outbox.execute(f"DROP TRIGGER {trigger} ON outbox")
    init(database, names, shards=2)
    outbox.insert(5)
    spelled = Outbox.of(names.transactional_id, table="public.outbox", mode="table")
    assert outbox.relay(outbox=spelled).rows == 5
    ((highest,),) = outbox.execute(
        "SELECT max(fencepost_shard) FROM outbox WHERE fencepost_number > 10"
    )
    assert highest in (0, 1)
    outbox.audit()


def test_the_key_column_of_the_shards_is_that_of_the_relay(dsn: str, kafka: str) -> None:
    outbox = OutboxStage(dsn, kafka, mode="table", prepared=False)
    outbox.execute('CREATE TABLE "Out box%" ("a key" text, kind text, value text, key text)')
    names = Outbox.of(outbox.topic, table='"Out box%"', mode="table")
    with pytest.raises(DatabaseRefused, match="no column 'missing'"):
        init(Database(dsn), names, key_column="missing")
    init(Database(dsn), names, key_column="a key")
    outbox.execute("INSERT INTO \"Out box%\" VALUES ('k', 'x', 'v', 'other')")
    with pytest.raises(OutsideError, match="--key-column"):
        outbox.relay(RelaySettings(topic=outbox.topic), outbox=names)
    settings = RelaySettings(topic=outbox.topic, columns=SMALL.columns._replace(key="a key"))
    outbox.relay(settings, outbox=names)
    assert [(r.key, r.value) for r in outbox.records()] == [(b"k", b"v")]


def test_a_relay_in_a_program_counts_the_rows_that_are_left(
    outbox: OutboxStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "LOOK_SECONDS", 0.0)
    outbox.insert(20)
    seen = []
    with outbox.cluster() as cluster:
        relay = OutboxRelay(outbox.dsn, cluster, outbox.outbox, SMALL)
        relay.run(
            until_caught_up=True,
            on_progress=lambda counts: seen.append((counts.rows, counts.behind_rows)),
        )
    assert seen[-1] == (20, 0)
    assert any(rows < 20 and rows + (behind or 0) == 20 for rows, behind in seen)
    assert relay.counts.held_wal_bytes is None
