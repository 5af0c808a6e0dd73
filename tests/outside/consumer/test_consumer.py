"""A batch and its positions are committed together or not at all, however the batch is used."""

from __future__ import annotations

import re
import sys
import threading
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

import fencepost
from fencepost.outside import BatchMisused, DatabaseRefused, PostgresConsumer
from fencepost.outside.consumer.consumer import STEPS
from fencepost.outside.failures import ExtraMissing, KafkaRefused
from tests.outside.consumer.stage import (
    DEADLINE_SECONDS,
    GROUP,
    Stage,
    apply,
    insert,
    stop_at,
)
from tests.outside.postgres import ROOT, PostgresServer


def test_records_are_applied_in_order_with_their_position(stage: Stage) -> None:
    stage.send("a", "b", "c")
    consumer = stage.consumer(max_records=2)
    apply(next(consumer))
    assert (stage.applied(), stage.position()) == (["a", "b"], 2)
    apply(next(consumer))
    consumer.close()
    assert (stage.applied(), stage.position()) == (["a", "b", "c"], 3)
    [row] = stage.query("SELECT group_name, topic, topic_id, epoch, owner FROM fencepost_offsets")
    assert row[:4] == (GROUP, stage.topic, stage.topic_id(), 1)
    assert " pid " in row[4]


def test_another_consumer_continues_where_the_last_commit_was(stage: Stage) -> None:
    stage.send("a", "b")
    with stage.consumer(max_records=1) as first:
        apply(next(first))
        next(first)
    with stage.consumer() as second:
        apply(next(second))
    assert stage.applied() == ["a", "b"]


def test_lag_tools_see_the_position_of_the_group(stage: Stage) -> None:
    stage.send("a", "b")
    with stage.consumer() as consumer:
        apply(next(consumer))
    assert stage.reported() == stage.position() == 2


def test_a_record_that_is_received_again_is_not_applied_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.send("a")
    consumer = stage.consumer()
    batch = next(consumer)
    apply(batch)
    receive = consumer._member.receive
    monkeypatch.setattr(
        consumer._member, "receive", lambda *limits: [*batch.records, *receive(*limits)]
    )
    stage.send("b")
    apply(next(consumer))
    assert stage.applied() == ["a", "b"]


def test_the_committed_offset_of_the_group_is_not_believed(stage: Stage) -> None:
    stage.send("a", "b")
    with stage.consumer() as consumer:
        apply(next(consumer))
        stage.query("DELETE FROM applied")
        stage.query("UPDATE fencepost_offsets SET next_offset = 0")
    with stage.consumer() as consumer:
        apply(next(consumer))
    assert stage.applied() == ["a", "b"]


def test_after_an_error_in_the_block_the_records_come_again(stage: Stage) -> None:
    stage.send("a", "b")
    consumer = stage.consumer()
    batch = next(consumer)
    with pytest.raises(ZeroDivisionError), batch.transaction() as cursor:
        insert(batch, cursor)
        raise ZeroDivisionError
    assert (stage.applied(), stage.position()) == ([], 0)
    stage.send("c")
    while len(stage.applied()) < 3:
        apply(next(consumer))
    assert stage.applied() == ["a", "b", "c"]


def test_a_batch_that_was_rolled_back_can_be_tried_again(stage: Stage) -> None:
    stage.send("a")
    batch = next(stage.consumer())
    with pytest.raises(psycopg.DataError), batch.transaction() as cursor:
        cursor.execute("SELECT 1 / 0")
    apply(batch)
    assert (stage.applied(), stage.position()) == (["a"], 1)


def test_an_error_at_the_commit_rolls_back(stage: Stage) -> None:
    stage.send("a")
    stage.query("CREATE TABLE once (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    batch = next(stage.consumer())
    with pytest.raises(psycopg.IntegrityError), batch.transaction() as cursor:
        cursor.execute("INSERT INTO once VALUES (1), (1)")
    assert (stage.position(), stage.query("SELECT * FROM once")) == (0, [])
    apply(batch)
    assert stage.position() == 1


def roll_back() -> None:
    raise psycopg.Rollback


def test_a_rollback_without_an_error_rolls_back_the_position(stage: Stage) -> None:
    stage.send("a")
    consumer = stage.consumer()
    batch = next(consumer)
    with batch.transaction() as cursor:
        insert(batch, cursor)
        roll_back()
    assert (stage.applied(), stage.position()) == ([], 0)
    apply(next(consumer))
    assert stage.applied() == ["a"]


def test_an_empty_block_skips_a_batch(stage: Stage) -> None:
    stage.send("a")
    consumer = stage.consumer()
    with next(consumer).transaction():
        pass
    stage.send("b")
    apply(next(consumer))
    assert (stage.applied(), stage.position()) == (["b"], 2)


def test_a_poison_record_is_put_aside_in_the_same_transaction(stage: Stage) -> None:
    stage.send("1", "x", "3")
    stage.query("CREATE TABLE poison (pos bigint, value text, reason text)")
    stage.query("CREATE TABLE sums (value int)")
    batch = next(stage.consumer())
    with batch.transaction() as cursor:
        for record in batch:
            value = record.value().decode()
            try:
                with cursor.connection.transaction():
                    cursor.execute("INSERT INTO sums VALUES (%s::int)", [value])
            except psycopg.DataError as problem:
                cursor.execute(
                    "INSERT INTO poison VALUES (%s, %s, %s)",
                    [record.offset(), value, problem.diag.message_primary],
                )
    assert stage.query("SELECT * FROM sums") == [(1,), (3,)]
    assert stage.query("SELECT pos, value FROM poison") == [(1, "x")]
    assert stage.position() == 3


def test_a_batch_that_was_not_used_stops_the_iteration(stage: Stage) -> None:
    stage.send("a")
    consumer = stage.consumer()
    batch = next(consumer)
    with pytest.raises(BatchMisused, match=r"with batch\.transaction\(\)"):
        next(consumer)
    apply(batch)
    assert stage.applied() == ["a"]


def test_a_batch_is_applied_once_however_often_it_is_used(stage: Stage) -> None:
    stage.send("a", "b")
    consumer = stage.consumer(max_records=1)
    batch = next(consumer)
    with batch.transaction() as cursor:
        with pytest.raises(BatchMisused, match="open already"), batch.transaction():
            pass
        with pytest.raises(BatchMisused, match="leave the block"):
            next(consumer)
        insert(batch, cursor)
    with pytest.raises(BatchMisused, match="it is committed"):
        apply(batch)
    later = next(consumer)
    with pytest.raises(BatchMisused, match="not the newest"):
        apply(batch)
    apply(later)
    assert stage.applied() == ["a", "b"]


def test_a_batch_belongs_to_the_thread_of_its_consumer(stage: Stage) -> None:
    stage.send("a")
    batch = next(stage.consumer())
    caught: list[BaseException] = []

    def use() -> None:
        try:
            apply(batch)
        except BatchMisused as problem:
            caught.append(problem)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "belong to the thread" in str(caught[0])
    apply(batch)
    assert stage.applied() == ["a"]


def test_a_loop_that_was_left_can_be_entered_again(stage: Stage) -> None:
    stage.send("a", "b", "c")
    consumer = stage.consumer(max_records=1, idle_seconds=2.0)
    for batch in consumer:
        apply(batch)
        break
    for batch in consumer:
        apply(batch)
    assert stage.applied() == ["a", "b", "c"]


def test_a_consumer_that_is_closed_inside_a_block_applies_nothing(stage: Stage) -> None:
    stage.send("a")
    consumer = stage.consumer()
    batch = next(consumer)
    with pytest.raises(BatchMisused, match="closed inside"), batch.transaction() as cursor:
        insert(batch, cursor)
        consumer.close()
    assert stage.applied() == []
    with pytest.raises(BatchMisused, match="is closed"):
        next(consumer)
    apply(next(stage.consumer()))
    assert stage.applied() == ["a"]


@pytest.mark.parametrize("step", ["in the block", "before the update", "before the commit"])
def test_an_interrupt_applies_all_or_nothing(stage: Stage, step: str) -> None:
    stage.send("a")
    consumer = stage.consumer()
    batch = next(consumer)

    def interrupt(reached: str) -> None:
        if reached == step:
            raise KeyboardInterrupt

    consumer.on_step = interrupt
    with pytest.raises(KeyboardInterrupt), batch.transaction() as cursor:
        insert(batch, cursor)
        interrupt("in the block")
    consumer.on_step = lambda _: None
    assert (stage.applied(), stage.position()) == ([], 0)
    apply(next(consumer))
    assert (stage.applied(), stage.position()) == (["a"], 1)


@pytest.mark.parametrize(
    "statements",
    [
        ["ROLLBACK"],
        ["ROLLBACK AND CHAIN"],
        ["ROLLBACK", "BEGIN"],
        ["ABORT AND CHAIN"],
        ["ABORT", "START TRANSACTION"],
        ["SAVEPOINT mine", "ROLLBACK AND CHAIN", "SAVEPOINT mine"],
    ],
    ids="; ".join,
)
def test_a_block_that_rolls_back_its_transaction_skips_nothing(
    stage: Stage, statements: list[str]
) -> None:
    """Also if it opens another one, in which the position would move without the records."""
    stage.send("a")
    consumer = stage.consumer()
    batch = next(consumer)
    with pytest.raises(BatchMisused, match="ended its transaction"), batch.transaction() as cursor:
        insert(batch, cursor)
        for statement in statements:
            cursor.execute(statement)
    assert (stage.applied(), stage.position()) == ([], 0)
    apply(next(consumer))
    assert (stage.applied(), stage.position()) == (["a"], 1)


@pytest.mark.parametrize(
    "statements",
    [
        ["COMMIT"],
        ["END"],
        ["COMMIT AND CHAIN"],
        ["END", "BEGIN"],
        ["COMMIT", "BEGIN", "COMMIT", "BEGIN"],
    ],
    ids="; ".join,
)
def test_a_block_that_commits_its_transaction_is_told_what_was_kept(
    stage: Stage, statements: list[str]
) -> None:
    stage.send("a")
    batch = next(stage.consumer())
    with pytest.raises(BatchMisused, match="may be committed"), batch.transaction() as cursor:
        insert(batch, cursor, "before")
        for statement in statements:
            cursor.execute(statement)
        insert(batch, cursor, "behind")
    assert stage.position() == 0
    whos = [who for (who,) in stage.query("SELECT who FROM applied ORDER BY id")]
    is_open = len(statements) > 1 or "CHAIN" in statements[0]
    assert whos == (["before"] if is_open else ["before", "behind"])


def test_a_prepared_transaction_moves_no_position(broker: fencepost.Broker) -> None:
    with (
        PostgresServer(max_prepared_transactions="2") as server,
        Stage(broker.bootstrap_servers, server.dsn(), "prepared") as stage,
    ):
        stage.send("a")
        batch = next(stage.consumer())
        with pytest.raises(BatchMisused, match="PREPARE"), batch.transaction() as cursor:
            insert(batch, cursor)
            cursor.execute("PREPARE TRANSACTION 'mine'")
            cursor.execute("BEGIN")
        assert stage.position() == 0
        stage.query("ROLLBACK PREPARED 'mine'")
        apply(batch)
        assert (stage.applied(), stage.position()) == (["a"], 1)


def test_what_leaves_the_transaction_open_is_allowed_in_a_block(stage: Stage) -> None:
    stage.send("a")
    consumer = stage.consumer()
    batch = next(consumer)
    with batch.transaction() as cursor:
        # Refused after the first query of a transaction, and in a subtransaction.
        cursor.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        cursor.execute("SET LOCAL statement_timeout = '10s'")
        cursor.execute("SAVEPOINT mine")
        insert(batch, cursor, "undone")
        cursor.execute("ROLLBACK TO mine")
        cursor.execute("RELEASE mine")
        with cursor.connection.transaction(force_rollback=True):
            insert(batch, cursor, "undone")
        with cursor.connection.pipeline():
            insert(batch, cursor, "kept")
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert stage.query("SELECT who FROM applied") == [("kept",)]
    assert stage.position() == 1


def test_an_sql_error_that_was_swallowed_is_explained(stage: Stage) -> None:
    stage.send("a")
    batch = next(stage.consumer())
    with (
        pytest.raises(DatabaseRefused, match="around what may fail"),
        batch.transaction() as cursor,
        pytest.raises(psycopg.Error),
    ):
        cursor.execute("SELECT nothing")
    apply(batch)
    assert stage.applied() == ["a"]


def test_a_commit_inside_the_block_is_refused(stage: Stage) -> None:
    stage.send("a")
    batch = next(stage.consumer())
    with pytest.raises(psycopg.ProgrammingError), batch.transaction() as cursor:
        insert(batch, cursor)
        cursor.connection.commit()
    assert (stage.applied(), stage.position()) == ([], 0)


def test_the_examples_of_the_page_work(stage: Stage) -> None:
    page = (ROOT / "docs" / "outside-consumer.md").read_text()
    whole, poison = re.findall(r"```python.*?\n(.*?)```", page, re.DOTALL)
    for there, here in (
        ("postgresql://app@db.example/shop", stage.dsn),
        ("orders", stage.topic),
        ("broker.example:9092", stage.servers),
        ("idle_seconds=10", "idle_seconds=3"),
    ):
        assert there in whole
        whole = whole.replace(there, here)
    stage.query("CREATE TABLE stock (item text, amount int)")
    stage.query("INSERT INTO stock VALUES ('tea', 5)")
    stage.query(
        "CREATE TABLE poison (topic text, partition int, pos bigint, value bytea, reason text)"
    )
    stage.producer.produce(stage.topic, b"one", b"tea", partition=0)
    stage.producer.produce(stage.topic, b"two", b"tea", partition=0)
    stage.send()
    exec(compile(whole, "whole", "exec"), {})
    assert stage.query("SELECT * FROM stock") == [("tea", 3)]
    stage.send("1", "x", "3")

    def refuse_x(cursor: psycopg.Cursor[Any], record: Any) -> None:
        cursor.execute("UPDATE stock SET amount = amount - %s::int", [record.value().decode()])

    names = {"psycopg": psycopg, "apply": refuse_x, "consumer": stage.consumer(idle_seconds=3)}
    exec(compile(poison, "poison", "exec"), names)
    assert stage.query("SELECT * FROM stock") == [("tea", -1)]
    # Another group, which begins with the first record.
    assert stage.query("SELECT value FROM poison") == [(b"one",), (b"two",), (b"x",)]


def test_the_steps_are_all_reached_and_in_order(stage: Stage) -> None:
    stage.send("a")
    consumer = stage.consumer()
    reached: list[str] = []
    consumer.on_step = reached.append
    apply(next(consumer))
    assert tuple(reached) == STEPS


def test_aborted_records_are_not_applied_and_markers_are_passed(stage: Stage) -> None:
    producer = Producer({"bootstrap.servers": stage.servers, "transactional.id": stage.topic})
    producer.init_transactions(DEADLINE_SECONDS)
    for value, end in (
        ("a", producer.commit_transaction),
        ("b", producer.abort_transaction),
        ("c", producer.commit_transaction),
        ("d", producer.abort_transaction),
    ):
        producer.begin_transaction()
        producer.produce(stage.topic, value, partition=0)
        producer.flush(DEADLINE_SECONDS)
        end(DEADLINE_SECONDS)
    for batch in stage.consumer(idle_seconds=2.0):
        apply(batch)
    assert stage.applied() == ["a", "c"]
    # Eight offsets: each record has a marker behind it.
    assert stage.position() == 8


def test_latest_is_where_a_partition_ended_at_the_first_claim(stage: Stage) -> None:
    stage.send("old")
    with stage.consumer(start="latest") as consumer:
        stop_at(consumer, "before the records")
        assert stage.position() == 1
    stage.send("new")
    apply(next(stage.consumer(start="latest")))
    assert stage.applied() == ["new"]


def test_the_iteration_ends_when_nothing_comes(stage: Stage) -> None:
    assert list(stage.consumer(idle_seconds=0.1)) == []


def test_the_table_may_have_another_name_and_schema(stage: Stage) -> None:
    stage.query("CREATE SCHEMA kafka")
    PostgresConsumer.create_table(stage.dsn, 'kafka.read"s')
    PostgresConsumer.create_table(stage.dsn, 'kafka.read"s')
    stage.send("a")
    apply(next(stage.consumer(table='kafka.read"s')))
    assert stage.query('SELECT next_offset FROM kafka."read""s"') == [(1,)]


def test_a_missing_table_is_refused_with_the_statement_that_creates_it(stage: Stage) -> None:
    with pytest.raises(DatabaseRefused, match="has no table positions") as caught:
        stage.consumer(table="positions")
    sql = PostgresConsumer.creation_sql("positions")
    assert str(caught.value).endswith(sql)
    stage.query(sql)
    stage.consumer(table="positions")


def test_a_table_with_other_columns_is_refused(stage: Stage) -> None:
    stage.query("CREATE TABLE mine (id int)")
    with pytest.raises(DatabaseRefused, match="add the column"):
        next(stage.consumer(table="mine"))


def test_a_topic_that_does_not_exist_is_named(stage: Stage) -> None:
    stage.delete_topic()
    with pytest.raises(KafkaRefused, match=stage.topic):
        next(stage.consumer(config={"allow.auto.create.topics": False}))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"config": {"auto.offset.reset": "latest"}}, "auto.offset.reset' is not yours"),
        ({"config": {"enable.auto.commit": True}}, "the database has the position"),
        ({"config": {"no.such.setting": 1}}, "no.such.setting"),
        ({"start": "newest"}, '"earliest" or "latest"'),
        ({"max_records": 0}, "max_records"),
        ({"max_records": 1_000_001}, "from 1 to 1,000,000"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    stage: Stage, settings: dict[str, object], words: str
) -> None:
    with pytest.raises((BatchMisused, KafkaRefused), match=words):
        stage.consumer(**settings)


@pytest.mark.parametrize(("topics", "group"), [([], "g"), ("", "g"), (["t", ""], "g"), ("t", "")])
def test_a_consumer_needs_topics_and_a_group(topics: str | list[str], group: str) -> None:
    with pytest.raises(BatchMisused, match="name the group"):
        PostgresConsumer("host=x", topics, group, bootstrap_servers="127.0.0.1:1")


def test_without_confluent_kafka_one_sentence_says_what_to_install(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ExtraMissing, match="pip install confluent-kafka"):
        stage.consumer()
