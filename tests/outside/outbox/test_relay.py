"""The relay between a real database and a real broker: every row once, in order per key."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fencepost.base.failures import ConfigError
from fencepost.client.admin import NewTopic
from fencepost.outside.connection import Database
from fencepost.outside.failures import DatabaseRefused, DatabaseUnavailable, OutsideError
from fencepost.outside.outbox import outlet as outlet_module
from fencepost.outside.outbox import relay as relay_module
from fencepost.outside.outbox.database import CHUNK_TABLE, Outbox
from fencepost.outside.outbox.log_source import HeldTooMuch
from fencepost.outside.outbox.outlet import RelayFenced, TopicMissing
from fencepost.outside.outbox.positions import TOPIC_PREFIX
from fencepost.outside.outbox.relay import COMMIT_HEADER, STEPS, OutboxRelay, RelaySettings
from fencepost.outside.outbox.replication import ReplicationStream
from fencepost.outside.outbox.rows import ColumnNames, ColumnsMissing
from fencepost.outside.outbox.rules import (
    HeldWalWatch,
    Limits,
    Reason,
    Release,
    StartRefused,
)
from fencepost.outside.outbox.setup import init
from fencepost.outside.outbox.source import RelayCounts
from tests.outside.outbox.stage import SMALL, OutboxStage, kill_at
from tests.outside.postgres import PostgresServer
from tools.fencepost_process import FencepostProcess

if TYPE_CHECKING:
    from fencepost.client.transactions import ProducerIdentity


class StopHereError(Exception):
    """Ends a relay at a step."""


def stop_here() -> None:
    raise StopHereError


def test_rows_arrive_once_in_the_order_of_their_commits(outbox: OutboxStage) -> None:
    outbox.workload()
    counts = outbox.relay()
    assert counts.rows == len(outbox.written)
    assert counts.chunks > 3
    outbox.audit()


def test_a_second_run_sends_nothing_again(outbox: OutboxStage) -> None:
    outbox.workload()
    outbox.relay()
    assert outbox.relay().rows == 0
    outbox.insert(3)
    assert outbox.relay().rows == 3
    outbox.audit()


def test_what_the_slot_was_not_told_is_not_sent_again(outbox: OutboxStage) -> None:
    outbox.insert(3)
    with pytest.raises(StopHereError):
        outbox.relay(on_step=kill_at("committed", 1, stop_here))
    assert outbox.relay().rows == 0
    outbox.audit()


def test_a_record_has_key_value_and_headers_of_the_row(outbox: OutboxStage) -> None:
    outbox.execute(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, headers) VALUES "
        f"('{outbox.topic}', 'order-1', 'created', 'é', '{{\"trace\": \"42\", \"none\": null}}')"
    )
    outbox.execute(f"INSERT INTO outbox (aggregatetype) VALUES ('{outbox.topic}')")
    outbox.relay()
    one, other = sorted(outbox.records(), key=lambda record: record.key is None)
    assert (one.key, one.value) == (b"order-1", "é".encode())
    assert dict(one.headers)["type"] == b"created"
    assert dict(one.headers)["trace"] == b"42"
    assert dict(one.headers)["none"] is None
    assert len(dict(one.headers)["id"] or b"") == 36
    assert (other.key, other.value) == (None, None)


@pytest.mark.parametrize("prefix", ["", "shop"], ids=["table", "messages"])
@pytest.mark.parametrize("is_time", [False, True], ids=["header", "timestamp"])
def test_a_record_has_the_time_of_its_commit(
    dsn: str, kafka: str, prefix: str, is_time: bool
) -> None:
    outbox = OutboxStage(dsn, kafka, prefix=prefix)
    insert = f"INSERT INTO outbox (aggregatetype, payload) VALUES ('{outbox.topic}', 'x')"
    message = json.dumps({"topic": outbox.topic, "value": "x"})
    emit = f"SELECT pg_logical_emit_message(true, 'shop', '{message}')"
    now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    [(begin,)] = outbox.execute(now)
    outbox.execute(emit if prefix else insert)
    [(end,)] = outbox.execute(now)
    with pytest.MonkeyPatch.context() as patch:
        # Records are written an hour later.
        later_ns = 3_600_000_000_000
        real = time.time_ns
        patch.setattr(time, "time_ns", lambda: real() + later_ns)
        outbox.relay(RelaySettings(commit_timestamps=is_time))
    (record,) = outbox.records()
    committed_ms = int(dict(record.headers)[COMMIT_HEADER] or b"")
    assert int(str(begin)) <= committed_ms <= int(str(end))
    if is_time:
        assert record.timestamp_ms == committed_ms
    else:
        assert record.timestamp_ms >= committed_ms + 3_600_000


def test_commits_that_cross_keep_their_order(outbox: OutboxStage) -> None:
    """The one that inserts first commits last; both have the same key."""
    insert = f"INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES ('{outbox.topic}'"
    with psycopg.connect(outbox.dsn) as slow, outbox.connect() as fast:
        slow.execute(f"{insert}, 'k', 'inserted first')".encode())
        fast.execute(f"{insert}, 'k', 'committed first')".encode())
        outbox.relay()
        slow.commit()
    outbox.relay()
    assert [record.value for record in outbox.records()] == [b"committed first", b"inserted first"]


def test_concurrent_writers_keep_the_order_of_each_key_while_relays_die(
    outbox: OutboxStage,
) -> None:
    """Each transaction takes the next number of a key under a lock, so numbers are commit order."""
    keys, writers, commits = 5, 4, 40
    outbox.execute("CREATE TABLE counters AS SELECT k, 0 AS n FROM generate_series(0, 4) k")

    def write(seed: int) -> None:
        random = Random(seed)
        with psycopg.connect(outbox.dsn) as connection:
            for _ in range(commits):
                key = random.randrange(keys)
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


def test_bytea_values_are_bytes_whatever_the_database_prints(outbox: OutboxStage) -> None:
    outbox.execute("ALTER TABLE outbox ALTER payload TYPE bytea USING payload::bytea")
    outbox.execute("DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET bytea_output = ''escape''', "
                   "current_database()); END$$")  # fmt: skip
    outbox.execute(
        f"INSERT INTO outbox (aggregatetype, payload) VALUES ('{outbox.topic}', '\\x00ff')"
    )
    outbox.relay()
    assert [record.value for record in outbox.records()] == [b"\x00\xff"]


def test_deletes_and_updates_of_the_outbox_are_ignored(outbox: OutboxStage) -> None:
    outbox.insert(5)
    outbox.execute("UPDATE outbox SET type = 'changed'")
    outbox.execute("DELETE FROM outbox")
    outbox.relay()
    outbox.audit()


def test_a_row_that_is_deleted_in_its_own_transaction_is_relayed(outbox: OutboxStage) -> None:
    with psycopg.connect(outbox.dsn) as connection:
        connection.execute(
            f"INSERT INTO outbox (aggregatetype, payload) VALUES ('{outbox.topic}', 'x')".encode()
        )
        connection.execute("DELETE FROM outbox")
    outbox.relay()
    assert [record.value for record in outbox.records()] == [b"x"]


def test_a_column_list_that_leaves_out_the_key_is_refused(outbox: OutboxStage) -> None:
    """Records without keys would have no order."""
    with outbox.connect() as connection:
        if connection.info.server_version < 150_000:
            pytest.skip("column lists came with PostgreSQL 15")
    name = outbox.outbox.publication
    outbox.execute(f"ALTER PUBLICATION {name} SET TABLE outbox (id, aggregatetype, payload)")
    with pytest.raises(ColumnsMissing, match="'aggregateid' of outbox is not in the log"):
        outbox.relay()


def test_a_partitioned_outbox_is_relayed_as_one_table(dsn: str, kafka: str) -> None:
    outbox = OutboxStage(dsn, kafka, prepared=False)
    outbox.execute(
        "CREATE TABLE outbox (day int, aggregatetype text, aggregateid text, payload text) "
        "PARTITION BY LIST (day)"
    )
    for day in (1, 2):
        outbox.execute(f"CREATE TABLE day{day} PARTITION OF outbox FOR VALUES IN ({day})")
    init(Database(dsn), outbox.outbox)
    for day in (1, 2):
        outbox.execute(f"INSERT INTO outbox VALUES ({day}, '{outbox.topic}', 'k', 'day {day}')")
    outbox.execute("DROP TABLE day1")
    outbox.relay()
    assert [record.value for record in outbox.records()] == [b"day 1", b"day 2"]


def test_names_of_columns_and_topics_can_be_others(dsn: str, kafka: str) -> None:
    outbox = OutboxStage(dsn, kafka, prepared=False)
    outbox.execute('CREATE TABLE "Out Box" (kind text, who text, what text)')
    named = Outbox.of(outbox.topic, table='"Out Box"')
    init(Database(dsn), named)
    prefix, kind = outbox.topic.rsplit("-", 1)
    outbox.execute(f"INSERT INTO \"Out Box\" VALUES ('{kind}', 'k', 'v')")
    settings = RelaySettings(columns=ColumnNames("kind", "who", "what"), topic=prefix + "-*")
    outbox.relay(settings, outbox=named)
    assert [(r.key, r.value) for r in outbox.records()] == [(b"k", b"v")]


# Messages.


def test_messages_in_the_log_need_no_table(dsn: str, kafka: str) -> None:
    outbox = OutboxStage(dsn, kafka, prefix="shop")
    content = json.dumps({"topic": outbox.topic, "key": "k", "value": {"a": 1}, "headers": {}})
    emit = "SELECT pg_logical_emit_message({}, '{}', '{}')"
    outbox.execute(emit.format("true", "shop", content))
    outbox.execute(emit.format("true", "other", "not ours"))
    outbox.execute(emit.format("false", "shop", "outside of its transaction"))
    with psycopg.connect(dsn) as connection:
        connection.execute(emit.format("true", "shop", content).encode())
        connection.execute(emit.format("false", "shop", content).encode())
        connection.rollback()
    # A commit flushes the log, of which they are a part: the relay sees them.
    outbox.execute("CREATE TABLE other (i int)")
    outbox.relay()
    assert [(r.key, r.value) for r in outbox.records()] == [(b"k", b'{"a": 1}')]
    assert outbox.execute("SELECT to_regclass('outbox')") == [(None,)]


# Chunks.


def test_a_transaction_that_may_not_be_split_is_one_kafka_transaction(outbox: OutboxStage) -> None:
    outbox.insert(50)
    whole = RelaySettings(limits=Limits(rows=7, may_split=False))
    assert outbox.relay(whole).chunks == 1
    outbox.insert(50)
    assert outbox.relay().chunks > 5
    outbox.audit()


@pytest.mark.parametrize("limits", [Limits(rows=0), Limits(rows=-1), Limits(size_bytes=0)])
def test_chunks_without_rows_are_refused(outbox: OutboxStage, limits: Limits) -> None:
    """Otherwise a relay would catch up without sending anything."""
    with pytest.raises(ConfigError, match="have no rows"):
        outbox.relay(RelaySettings(limits=limits))


def test_a_chunk_ends_before_its_transaction_times_out(outbox: OutboxStage) -> None:
    with outbox.cluster() as cluster:
        settings = RelaySettings(transaction_timeout_ms=3_000)
        relay = OutboxRelay(outbox.dsn, cluster, outbox.outbox, settings)
        assert relay.settings.limits.open_ms == 1_000


def test_one_hundred_thousand_rows_in_one_transaction(outbox: OutboxStage) -> None:
    count = 100_000
    outbox.execute(
        "INSERT INTO outbox (aggregatetype, aggregateid, payload) "
        f"SELECT '{outbox.topic}', 'k' || i % 97, i FROM generate_series(1, {count}) i"
    )
    counts = outbox.relay(RelaySettings())
    # The last chunk says that the transaction is complete.
    assert (counts.rows, counts.chunks) == (count, count // 10_000 + 1)
    found: dict[bytes | None, list[int]] = {}
    for record in outbox.records():
        found.setdefault(record.key, []).append(int(record.value or b"0"))
    assert sum(map(len, found.values())) == count
    assert all(numbers == sorted(numbers) for numbers in found.values())


def test_a_topic_that_does_not_exist_is_named_and_the_row_is_kept(
    outbox: OutboxStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet_module, "TOPIC_PATIENCE_SECONDS", 0.0)
    missing = f"{outbox.topic}-missing"
    outbox.insert(1)
    outbox.execute(f"INSERT INTO outbox (aggregatetype, payload) VALUES ('{missing}', 'x')")
    with pytest.raises(TopicMissing, match=missing):
        outbox.relay(RelaySettings())
    outbox.audit()
    with outbox.cluster() as cluster:
        cluster.create_topics([NewTopic(missing, 1)])
    assert outbox.relay().rows == 1
    outbox.audit()


def test_what_is_left_is_not_the_whole_log_before_the_first_row(
    outbox: OutboxStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(ReplicationStream, "receive", lambda *_: None)
    outbox.insert(3)
    stop, seen = threading.Event(), list[int | None]()
    with outbox.cluster() as cluster:

        def look(counts: RelayCounts) -> None:
            seen.append(counts.behind_bytes)
            stop.set()

        OutboxRelay(outbox.dsn, cluster, outbox.outbox).run(stop, on_progress=look)
    assert 0 < (seen[0] or 0) < 1_000_000


def test_rows_wait_for_no_other_transaction(outbox: OutboxStage) -> None:
    """A long transaction stays open, with an older transaction id than that of the row."""
    with psycopg.connect(outbox.dsn) as long:
        long.execute("CREATE TABLE other (i int)")
        outbox.insert(3)
        assert outbox.relay().rows == 3
    outbox.audit()


def test_an_idle_outbox_releases_the_log_of_a_busy_database(outbox: OutboxStage) -> None:
    outbox.insert(1)
    outbox.relay()
    before = confirmed(outbox)
    outbox.execute("CREATE TABLE busy AS SELECT generate_series(1, 300000)")
    counts = outbox.relay()
    assert counts.chunks == 0
    assert confirmed(outbox) > before + Release.BYTES
    assert outbox.relay().rows == 0


def confirmed(outbox: OutboxStage) -> int:
    ((lsn,),) = outbox.execute(
        "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = "
        f"'{outbox.outbox.slot}'"
    )
    assert isinstance(lsn, int)
    return lsn


def test_what_was_relayed_survives_a_kill_even_with_asynchronous_commits(kafka: str) -> None:
    """The log is streamed as far as it is flushed, and the relay's own row is always flushed."""
    with PostgresServer(synchronous_commit="off") as server:
        outbox = OutboxStage(server.dsn(), kafka)
        outbox.insert(3)
        with pytest.raises(DatabaseUnavailable):
            hook = kill_at("committed", 1, server.kill)
            outbox.relay(stop=threading.Event(), on_step=hook)
        assert len(outbox.records()) == 3
        server.start()
        assert outbox.execute("SELECT count(*) FROM outbox") == [(3,)]
        assert outbox.execute(f"SELECT chunk FROM {CHUNK_TABLE}") == [(1,)]
        outbox.insert(3)
        outbox.execute("SET synchronous_commit = 'on'; CREATE TABLE other (i int)")
        outbox.relay()
        outbox.audit()


# Two relays.


def test_a_second_relay_takes_over_and_the_first_says_so(
    outbox: OutboxStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "OWNERSHIP_SECONDS", 0.1)
    outbox.insert(3)
    first_stop, failures = threading.Event(), list[Exception]()
    streaming = threading.Event()

    def run_first() -> None:
        try:
            outbox.relay(
                stop=first_stop,
                on_step=lambda step: streaming.set() if step == "confirmed" else None,
            )
        except OutsideError as problem:
            failures.append(problem)

    first = threading.Thread(target=run_first)
    first.start()
    try:
        assert streaming.wait(20)
        outbox.insert(2)
        outbox.relay()
        first.join(20)
    finally:
        first_stop.set()
        first.join(20)
    (failure,) = failures
    assert isinstance(failure, RelayFenced)
    assert "another relay has taken over" in str(failure)
    outbox.audit()


def test_transaction_version_1_keeps_the_promise_too(outbox: OutboxStage) -> None:
    outbox.is_old = True
    outbox.workload()
    assert outbox.relay().chunks > 3
    outbox.insert(16)
    with pytest.raises(RelayFenced):
        outbox.relay(on_step=kill_at("committed", 1, lambda: fence(outbox)))
    outbox.relay()
    outbox.audit()


def test_a_fenced_relay_of_version_1_does_not_take_the_id_back(outbox: OutboxStage) -> None:
    """It asks for its next epoch just after it was fenced."""
    outbox.is_old = True
    outbox.insert(16)
    with outbox.cluster() as cluster:
        end = cluster.end_txn

        def end_and_be_fenced(*given: Any, **named: Any) -> ProducerIdentity:
            ended = end(*given, **named)
            fence(outbox)
            return ended

        cluster.end_txn = end_and_be_fenced  # type: ignore[method-assign]
        relay = OutboxRelay(outbox.dsn, cluster, outbox.outbox, SMALL)
        with pytest.raises(RelayFenced):
            relay.run(until_caught_up=True)
        assert relay.counts.rows == 0
    outbox.relay()
    outbox.audit()


def fence(outbox: OutboxStage) -> None:
    with outbox.cluster() as cluster:
        cluster.init_producer_id(outbox.outbox.transactional_id)


def test_a_fenced_relay_commits_nothing(outbox: OutboxStage) -> None:
    """The second takes over between the rows of the first and its commit."""
    outbox.insert(3)
    with pytest.raises(RelayFenced):
        outbox.relay(on_step=kill_at("position written", 1, lambda: fence(outbox)))
    assert outbox.records() == []
    outbox.relay()
    outbox.audit()


def test_a_commit_of_a_transaction_that_is_gone_is_one_sentence(outbox: OutboxStage) -> None:
    """It was aborted by a timeout or a fence; with version 2 brokers answer as to a late commit."""
    outbox.insert(3)
    with outbox.cluster() as cluster:
        relay = OutboxRelay(outbox.dsn, cluster, outbox.outbox, SMALL)
        end = cluster.end_txn

        def end_after_an_abort(*given: Any, **named: Any) -> ProducerIdentity:
            if named["commit"] and relay.counts.oldest_unsent_at_ms is not None:
                end(*given, commit=False)
            return end(*given, **named)

        cluster.end_txn = end_after_an_abort  # type: ignore[method-assign]
        with pytest.raises(RelayFenced, match="open for longer than 60000 ms"):
            relay.run(until_caught_up=True)
    outbox.relay()
    outbox.audit()


@pytest.mark.parametrize("mode", ["wal", "table"])
@pytest.mark.parametrize("chunks", [1, 3])
def test_a_relay_that_is_overtaken_while_it_waits_touches_nothing(
    outbox: OutboxStage, chunks: int
) -> None:
    """Its position is an older one by then, and its row would look like a restored database."""
    outbox.insert(2)
    outbox.relay()

    def overtake() -> None:
        for _ in range(chunks):
            outbox.insert(2)
            outbox.relay()
        outbox.insert(2)

    with pytest.raises(RelayFenced):
        outbox.relay(RelaySettings(), on_step=kill_at("fenced", 1, overtake))
    outbox.relay()
    outbox.audit()


def test_a_relay_stops_when_it_is_told_to_and_leaves_no_transaction(outbox: OutboxStage) -> None:
    stop = threading.Event()
    outbox.insert(20)
    outbox.relay(stop=stop, on_step=kill_at("committed", 2, stop.set))
    with outbox.cluster() as cluster:
        view = cluster.describe_transactions([outbox.outbox.transactional_id])
    found = view[outbox.outbox.transactional_id]
    assert found is not None
    assert found.state in {"CompleteCommit", "CompleteAbort", "Empty"}
    outbox.relay()
    outbox.audit()


def test_a_database_that_is_stopped_waits_for_no_relay_and_the_relay_says_so(kafka: str) -> None:
    """PostgreSQL stops only when its replication connections have confirmed everything."""
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka)
        outbox.insert(3)
        streaming, failures = threading.Event(), list[Exception]()

        def run() -> None:
            try:
                hook = kill_at("committed", 1, streaming.set)
                outbox.relay(stop=threading.Event(), on_step=hook)
            except OutsideError as problem:
                failures.append(problem)

        relaying = threading.Thread(target=run)
        relaying.start()
        assert streaming.wait(20)
        assert server.stop() == 0
        relaying.join(20)
        (failure,) = failures
        assert isinstance(failure, DatabaseUnavailable)
        server.start()
        assert outbox.relay().rows == 0
        outbox.audit()


def test_a_slot_that_holds_too_much_ends_the_relay(
    outbox: OutboxStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(HeldWalWatch, "PATIENCE_MS", 0)
    with psycopg.connect(outbox.dsn) as long:
        long.execute("CREATE TABLE stays_open (i int)")
        outbox.insert(3)
        with pytest.raises(HeldTooMuch, match="pg_stat_activity"):
            outbox.relay(RelaySettings(max_held_wal_bytes=1), stop=threading.Event())
    outbox.relay()
    outbox.audit()


# Another database.


def refusal(outbox: OutboxStage, reason: Reason, dsn: str | None = None) -> None:
    before = outbox.records()
    with pytest.raises(StartRefused) as caught:
        outbox.relay(dsn=dsn)
    assert caught.value.reasons == {reason}
    assert outbox.records() == before


def test_a_foreign_database_is_refused_and_its_relay_is_not_fenced(outbox: OutboxStage) -> None:
    outbox.insert(2)
    outbox.relay()
    with PostgresServer(is_foreign=True) as other:
        init(Database(other.dsn()), outbox.outbox)
        with outbox.cluster() as cluster:
            name = outbox.outbox.transactional_id
            before = cluster.describe_transactions([name])[name]
            refusal(outbox, Reason.FOREIGN, other.dsn())
            assert cluster.describe_transactions([name])[name] == before
        accepted = RelaySettings(accept={Reason.FOREIGN})
        outbox.relay(accepted, dsn=other.dsn())
        outbox.relay(dsn=other.dsn())
        refusal(outbox, Reason.FOREIGN)


def test_a_position_that_is_gone_after_one_chunk_is_missed(outbox: OutboxStage) -> None:
    outbox.insert(2)
    assert outbox.relay().chunks == 1
    with outbox.cluster() as cluster:
        cluster.delete_topics([TOPIC_PREFIX + outbox.outbox.transactional_id])
    refusal(outbox, Reason.LOST_POSITION)


def test_a_restored_snapshot_is_refused_until_it_is_accepted(kafka: str) -> None:
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka)
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
        # More log than before does not hide it.
        outbox.execute("CREATE TABLE busy AS SELECT generate_series(1, 10000)")
        refusal(outbox, Reason.RESTORED)
        # Nor does a death while it is accepted.
        accepting = RelaySettings(accept={Reason.RESTORED})
        with pytest.raises(StopHereError):
            outbox.relay(accepting, on_step=kill_at("begun", 1, stop_here))
        refusal(outbox, Reason.RESTORED)
        outbox.relay(accepting)
        outbox.insert(2)
        outbox.relay()
        assert {value for _, value in lost} < {record.value for record in outbox.records()}
        outbox.audit()


def test_a_snapshot_that_has_everything_that_was_sent_is_no_reason_to_refuse(
    kafka: str,
) -> None:
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka)
        outbox.insert(2)
        outbox.relay()
        server.stop()
        snapshot = server.snapshot()
        server.start()
        outbox.execute("CREATE TABLE lost (i int)")
        server.stop()
        server.restore(snapshot)
        server.start()
        outbox.insert(2)
        outbox.relay()
        outbox.audit()


def test_a_promoted_standby_is_refused_and_goes_on_when_accepted(
    kafka: str,
) -> None:
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka)
        outbox.insert(9)
        outbox.relay()
        server.stop()
        server.start(as_standby=True)
        outbox.execute("SELECT pg_promote()")
        outbox.insert(2)
        refusal(outbox, Reason.FAILED_OVER)
        accepting = RelaySettings(accept={Reason.FAILED_OVER})
        with pytest.raises(StopHereError):
            outbox.relay(accepting, on_step=kill_at("begun", 1, stop_here))
        refusal(outbox, Reason.FAILED_OVER)
        outbox.relay(accepting)
        outbox.insert(2)
        outbox.relay()
        outbox.audit()


def test_a_slot_that_was_created_again_is_refused_until_it_is_accepted(
    outbox: OutboxStage,
) -> None:
    outbox.insert(2)
    outbox.relay()
    outbox.drop_slot()
    with pytest.raises(OutsideError, match="outbox init"):
        outbox.relay()
    init(Database(outbox.dsn), outbox.outbox)
    refusal(outbox, Reason.NEW_SLOT)
    outbox.relay(RelaySettings(accept={Reason.NEW_SLOT}))
    assert outbox.relay().rows == 0
    outbox.insert(2)
    outbox.relay()
    outbox.audit()


@pytest.mark.parametrize(
    ("spoil", "repair"),
    [
        ("DROP PUBLICATION {}", None),
        ("ALTER PUBLICATION {} DROP TABLE outbox", "ALTER PUBLICATION {} ADD TABLE outbox"),
        ("ALTER PUBLICATION {} SET (publish = '')", "ALTER PUBLICATION {} SET (publish = insert)"),
    ],
)
def test_rows_that_were_not_published_are_noticed(
    outbox: OutboxStage, spoil: str, repair: str | None
) -> None:
    """What is decoded depends on the publication of the moment when a row was written."""
    outbox.insert(2)
    outbox.relay()
    outbox.execute(spoil.format(outbox.outbox.publication))
    outbox.insert(2)
    lost = [outbox.written.pop() for _ in range(2)]
    with pytest.raises(DatabaseRefused, match="publication"):
        outbox.relay()
    if repair is None:
        init(Database(outbox.dsn), outbox.outbox)
    else:
        outbox.execute(repair.format(outbox.outbox.publication))
    refusal(outbox, Reason.NEW_PUBLICATION)
    outbox.insert(2)
    outbox.relay(RelaySettings(accept={Reason.NEW_PUBLICATION}))
    outbox.insert(2)
    outbox.relay()
    outbox.audit()
    assert lost


def test_another_table_in_the_publication_changes_nothing(outbox: OutboxStage) -> None:
    outbox.insert(2)
    outbox.relay()
    outbox.execute("CREATE TABLE other (i int)")
    outbox.execute(f"ALTER PUBLICATION {outbox.outbox.publication} ADD TABLE other")
    outbox.execute("INSERT INTO other VALUES (1)")
    outbox.insert(2)
    outbox.relay()
    outbox.audit()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("DROP PUBLICATION {}", "run `fencepost outbox init`"),
        ("ALTER PUBLICATION {0} DROP TABLE outbox; ALTER PUBLICATION {0} ADD TABLE outbox",
         "publication of table outbox changed while the relay ran: start again"),
        ("ALTER TABLE outbox RENAME TO other; CREATE TABLE outbox (LIKE other)",
         "without inserts into outbox"),
    ],
)  # fmt: skip
def test_a_running_relay_ends_when_it_is_no_longer_shown_all_rows(
    outbox: OutboxStage, monkeypatch: pytest.MonkeyPatch, change: str, words: str
) -> None:
    monkeypatch.setattr(relay_module, "LOOK_SECONDS", 0.0)
    outbox.insert(2)

    def change_it() -> None:
        outbox.execute(change.format(outbox.outbox.publication))

    with pytest.raises(DatabaseRefused, match=words):
        outbox.relay(stop=threading.Event(), on_step=kill_at("committed", 1, change_it))
    outbox.audit()


def test_rows_from_before_a_table_was_renamed_are_relayed(outbox: OutboxStage) -> None:
    outbox.insert(2)
    outbox.execute("ALTER TABLE outbox RENAME TO events")
    with pytest.raises(DatabaseRefused, match="no table"):
        outbox.relay()
    outbox.relay(outbox=Outbox.of(outbox.outbox.transactional_id, table="events"))
    outbox.audit()


def test_a_transaction_whose_rest_is_gone_has_a_way_out(outbox: OutboxStage) -> None:
    """Somebody moved the slot when a part of the transaction was in Kafka."""
    outbox.insert(20)
    with pytest.raises(StopHereError):
        outbox.relay(on_step=kill_at("committed", 1, stop_here))
    outbox.advance_slot()
    outbox.insert(1)
    refusal(outbox, Reason.NEW_SLOT)
    outbox.relay(RelaySettings(accept={Reason.NEW_SLOT}))
    del outbox.written[7:20]
    outbox.insert(2)
    outbox.relay()
    outbox.audit()


def test_another_cluster_is_refused_because_it_has_no_position(
    outbox: OutboxStage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for _ in range(2):
        outbox.insert(2)
        outbox.relay()
    with FencepostProcess(tmp_path_factory.mktemp("other")) as other:
        outbox.bootstrap_servers = other.bootstrap_servers
        with outbox.cluster() as cluster:
            cluster.create_topics([NewTopic(outbox.topic, 2)])
        refusal(outbox, Reason.LOST_POSITION)
