"""A row that no topic accepts: named exactly, and stopped at or put aside, with all others once."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic, ResourceType
from fencepost.client.failures import UnknownTopicOrPartition
from fencepost.outside.failures import OutsideError
from fencepost.outside.outbox import outlet as outlet_module
from fencepost.outside.outbox.outlet import TopicMissing
from fencepost.outside.outbox.positions import TOPIC_PREFIX
from fencepost.outside.outbox.refused import (
    DEAD_LETTER_BYTES,
    HEADER_PREFIX,
    DeadLetterRefused,
    OnRefused,
    RecordRefused,
)
from fencepost.outside.outbox.relay import RelaySettings
from fencepost.outside.outbox.rows import Unreadable
from fencepost.outside.outbox.rules import Limits
from fencepost.records.opened import Record
from tests.outside.outbox.stage import PARTITIONS, SMALL, OutboxStage, committed, kill_at
from tests.outside.outbox.test_relay_crashes import Broker, restarted  # noqa: F401 - a fixture.
from tests.outside.postgres import PostgresServer
from tests.spark.conftest import environment

LIMIT = 2_000
"""max.message.bytes of the topic."""
ASIDE = OnRefused.DEAD_LETTER


@pytest.fixture
def small(outbox: OutboxStage, monkeypatch: pytest.MonkeyPatch) -> OutboxStage:
    """An outbox whose topic accepts only small records."""
    monkeypatch.setattr(outlet_module, "TOPIC_PATIENCE_SECONDS", 0.0)
    change_topic(outbox, outbox.topic, "max.message.bytes", str(LIMIT))
    return outbox


def change_topic(outbox: OutboxStage, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": outbox.bootstrap_servers, "log_level": 2})
    admin.incremental_alter_configs([resource])[resource].result(30)


def insert(
    outbox: OutboxStage, *values: str, key: str | None = "k", topic: str | None = None
) -> None:
    """One transaction. What is not "poison" is expected in the topic."""
    with outbox.connect() as connection, connection.transaction():
        for value in values:
            text = "x" * 2 * LIMIT if value == "poison" else value
            connection.execute(
                "INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES (%s, %s, %s)",
                [topic or outbox.topic, key, text],
            )
            if value != "poison" and topic is None and key is not None:
                outbox.written.append((key.encode(), value.encode()))


def dead_letters(outbox: OutboxStage) -> list[Record]:
    topic = f"{TOPIC_PREFIX}{outbox.topic}-dead-letters"
    with outbox.cluster() as cluster:
        return committed(cluster, TopicPartition(topic, 0))


def header(record: Record, name: str) -> str:
    return (dict(record.headers)[HEADER_PREFIX + name] or b"").decode()


SHAPES: dict[str, tuple[list[str], ...]] = {
    "alone": (["poison"],),
    "first": (["poison", "a", "b"],),
    "middle": (["a", "poison", "b"],),
    "last": (["a", "b", "poison"],),
    "two": (["a", "poison", "poison", "b"],),
    "own transaction": (["a"], ["poison"], ["b"]),
    "two chunks": (["a", "b", "c", "d", "e", "f", "g", "poison", "h"], ["i", "poison"], ["j"]),
}
"""Transactions; chunks have up to seven rows."""
WHOLE = Limits(rows=7, may_split=False)
LIMITS = pytest.mark.parametrize(
    "limits", [SMALL.limits, Limits(rows=1), WHOLE], ids=["split", "single", "whole"]
)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@LIMITS
def test_a_row_that_is_too_large_is_a_dead_letter_wherever_it_is(
    small: OutboxStage, shape: tuple[list[str], ...], limits: Limits
) -> None:
    for values in shape:
        insert(small, *values)
    counts = small.relay(RelaySettings(limits, on_refused=ASIDE))
    small.audit()
    letters = dead_letters(small)
    poisoned = sum(values.count("poison") for values in shape)
    assert len(letters) == counts.dead_letters == poisoned
    assert counts.rows == len(small.written)
    for letter in letters:
        assert (letter.key, letter.value) == (b"k", b"x" * 2 * LIMIT)
        assert header(letter, "code") == "MESSAGE_TOO_LARGE"
        assert header(letter, "topic") == small.topic
    assert small.relay(RelaySettings(limits, on_refused=ASIDE)).done == 0
    small.insert(3)
    small.relay()
    small.audit()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@LIMITS
def test_a_relay_that_stops_has_committed_the_rows_before_and_goes_on_there(
    small: OutboxStage, shape: tuple[list[str], ...], limits: Limits
) -> None:
    for values in shape:
        insert(small, *values)
    before: list[str] = []
    for values in shape:
        if "poison" in values:
            before += values[: values.index("poison")] if limits.may_split else []
            break
        before += values
    for _ in range(2):
        with pytest.raises(RecordRefused, match="MESSAGE_TOO_LARGE") as caught:
            small.relay(RelaySettings(limits))
        assert sorted((r.value or b"").decode() for r in small.records()) == sorted(before)
    said = str(caught.value)
    lsn = small.execute("SELECT pg_current_wal_lsn()::text")[0][0]
    assert "row 1 of" in said or "row" in said
    assert str(lsn).split("/")[0] + "/" in said
    assert "key 'k'" in said
    assert "4,0" in said, "its size"
    change_topic(small, small.topic, "max.message.bytes", "1000000")
    small.relay(RelaySettings(limits))
    found = sorted(len(r.value or b"") for r in small.records())
    assert found == sorted(
        2 * LIMIT if value == "poison" else 1 for values in shape for value in values
    )


def test_batches_that_are_larger_than_the_topic_accepts_become_smaller(small: OutboxStage) -> None:
    """No row is refused: only many of them together."""
    small.insert(300, size=100)
    counts = small.relay(RelaySettings(on_refused=ASIDE))
    assert (counts.rows, counts.dead_letters) == (300, 0)
    small.audit()


def test_a_row_that_no_broker_reads_is_put_aside_without_its_value(
    small: OutboxStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker closes the connection instead of an answer."""
    monkeypatch.setattr(outlet_module, "READABLE_BYTES", 2 * LIMIT - 1)
    insert(small, "a", "poison", "b")
    with pytest.raises(RecordRefused, match=r"socket\.request\.max\.bytes"):
        small.relay()
    assert [record.value for record in small.records()] == [b"a"]
    assert small.relay(RelaySettings(on_refused=ASIDE)).dead_letters == 1
    (letter,) = dead_letters(small)
    assert (letter.value, header(letter, "code")) == (None, "MESSAGE_TOO_LARGE")
    small.audit()


def test_rows_without_a_key_for_a_compacted_topic_are_put_aside(small: OutboxStage) -> None:
    change_topic(small, small.topic, "cleanup.policy", "compact")
    insert(small, "a")
    insert(small, *(f"keyless {n}" for n in range(20)), key=None)
    insert(small, "b")
    with pytest.raises(RecordRefused, match=r"no key.*INVALID_RECORD"):
        small.relay()
    counts = small.relay(RelaySettings(on_refused=ASIDE))
    assert counts.dead_letters == 20
    assert [letter.value for letter in dead_letters(small)] == [
        f"keyless {n}".encode() for n in range(20)
    ]
    small.audit()


def test_a_row_for_an_unknown_topic_is_put_aside_or_stops_after_the_rows_before(
    small: OutboxStage,
) -> None:
    insert(small, "a")
    insert(small, "lost", topic="no-such-topic")
    insert(small, "b")
    with pytest.raises(TopicMissing, match="'no-such-topic' does not exist"):
        small.relay()
    assert [record.value for record in small.records()] == [b"a"]
    assert small.relay(RelaySettings(on_refused=ASIDE)).dead_letters == 1
    (letter,) = dead_letters(small)
    assert header(letter, "code") == "UNKNOWN_TOPIC_OR_PARTITION"
    assert header(letter, "topic") == "no-such-topic"
    assert letter.value == b"lost"
    small.audit()


def test_a_topic_that_is_created_a_moment_later_refuses_nothing(outbox: OutboxStage) -> None:
    """Brokers learn of a new topic at different times."""
    late = f"{outbox.topic}-late"
    insert(outbox, "x", topic=late)
    asked = threading.Event()
    real = outlet_module.Outlet._find_topic

    def create() -> None:
        asked.wait(30)
        with outbox.cluster() as cluster:
            cluster.create_topics([NewTopic(late, 1)])

    def find(self: Any, topic: str) -> Any:
        asked.set()
        return real(self, topic)

    thread = threading.Thread(target=create)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outlet_module.Outlet, "_find_topic", find)
        assert outbox.relay(RelaySettings(on_refused=ASIDE)).dead_letters == 0
    thread.join()


@pytest.mark.parametrize("content", ["no JSON", "[]", "{}", '{"topic": ""}', '{"topic": "a b"}'])
def test_a_message_that_is_no_record_is_put_aside_as_it_is(
    dsn: str, kafka: str, content: str
) -> None:
    outbox = OutboxStage(dsn, kafka, prefix="shop")
    good = json.dumps({"topic": outbox.topic, "value": "good"})
    for each in (good, content, good):
        outbox.execute(f"SELECT pg_logical_emit_message(true, 'shop', '{each}')")
    for _ in range(2):
        with pytest.raises(Unreadable, match="--on-refused dead-letter"):
            outbox.relay()
    assert len(outbox.records()) == 1
    assert outbox.relay(RelaySettings(on_refused=ASIDE)).dead_letters == 1
    (letter,) = dead_letters(outbox)
    assert (letter.value, header(letter, "code")) == (content.encode(), "UNREADABLE")
    assert "/" in header(letter, "lsn")
    assert len(outbox.records()) == 2
    assert outbox.relay().rows == 0


# The dead letter itself.


def test_a_dead_letter_that_does_not_fit_leaves_out_the_value_then_the_key(
    small: OutboxStage,
) -> None:
    insert(small, "poison")
    insert(small, "poison", key="y" * 2 * LIMIT)
    topic = f"{TOPIC_PREFIX}{small.topic}-dead-letters"
    with small.cluster() as cluster:
        config = {"max.message.bytes": str(LIMIT)}
        cluster.create_topics([NewTopic(topic, 1, configs=config)])
    small.relay(RelaySettings(on_refused=ASIDE))
    one, other = dead_letters(small)
    assert (one.key, one.value, header(one, "omitted")) == (b"k", None, "value, headers")
    assert (other.key, other.value) == (None, None)
    assert header(other, "omitted") == "key, value, headers"
    assert int(header(other, "bytes")) > 4 * LIMIT


def test_a_dead_letter_that_is_refused_too_stops_the_relay_and_skips_nothing(
    small: OutboxStage,
) -> None:
    topic = f"{TOPIC_PREFIX}{small.topic}-dead-letters"
    with small.cluster() as cluster:
        cluster.create_topics([NewTopic(topic, 1, configs={"max.message.bytes": "100"})])
    insert(small, "a", "poison", "b")
    for _ in range(2):
        with pytest.raises(DeadLetterRefused, match=r"MESSAGE_TOO_LARGE.*Nor can its dead letter"):
            small.relay(RelaySettings(on_refused=ASIDE))
    change_topic(small, topic, "max.message.bytes", "1000000")
    small.relay(RelaySettings(on_refused=ASIDE))
    assert len(dead_letters(small)) == 1
    small.audit()


def test_the_topic_of_dead_letters_keeps_them_for_ever(small: OutboxStage) -> None:
    small.relay(RelaySettings(on_refused=ASIDE))
    topic = f"{TOPIC_PREFIX}{small.topic}-dead-letters"
    names = ["retention.ms", "cleanup.policy", "max.message.bytes"]
    with small.cluster() as cluster:
        found = cluster.describe_configs(ResourceType.TOPIC, topic, names)
    assert [found[name].value for name in names] == ["-1", "delete", str(DEAD_LETTER_BYTES)]


def test_a_compacted_topic_of_dead_letters_is_refused_at_the_start(small: OutboxStage) -> None:
    with small.cluster() as cluster:
        cluster.create_topics([NewTopic("mine", 1, configs={"cleanup.policy": "compact"})])
    settings = RelaySettings(on_refused=ASIDE, dead_letter_topic="mine")
    insert(small, "a")
    with pytest.raises(OutsideError, match="would keep one dead letter of each key"):
        small.relay(settings)
    assert small.records() == []


def test_a_topic_of_dead_letters_that_is_deleted_meanwhile_stops_the_relay(
    small: OutboxStage,
) -> None:
    topic = f"{TOPIC_PREFIX}{small.topic}-dead-letters"
    insert(small, "a", "poison", "b")

    def delete(step: str) -> None:
        if step == "streaming":
            with small.cluster() as cluster:
                if cluster.find_topic(topic) is not None:
                    cluster.delete_topics([topic])

    with pytest.raises(DeadLetterRefused, match="does not exist"):
        small.relay(RelaySettings(on_refused=ASIDE), on_step=delete)
    small.relay(RelaySettings(on_refused=ASIDE))
    assert len(dead_letters(small)) == 1
    small.audit()


# What is no row's fault.


def test_a_retriable_error_never_counts_as_refused(small: OutboxStage) -> None:
    """The topic is deleted while its rows are on their way."""
    insert(small, "a")

    def delete() -> None:
        with small.cluster() as cluster:
            cluster.delete_topics([small.topic])

    hook = kill_at("rows collected", 1, delete)
    with pytest.raises(UnknownTopicOrPartition):
        small.relay(RelaySettings(on_refused=ASIDE), on_step=hook)
    with small.cluster() as cluster:
        cluster.create_topics([NewTopic(small.topic, PARTITIONS)])
    assert small.relay(RelaySettings(on_refused=ASIDE)).dead_letters == 0
    small.audit()


def test_transaction_version_1_puts_rows_aside_too(small: OutboxStage) -> None:
    small.is_old = True
    insert(small, "a", "poison", "b", "poison", "c")
    assert small.relay(RelaySettings(on_refused=ASIDE)).dead_letters == 2
    small.audit()
    assert len(dead_letters(small)) == 2


# Deaths. The first batch is refused after "row updated"; then its chunk is read again.


KILLS = [
    ("rows collected", 1),
    ("row updated", 1),
    ("checked", 2),
    ("fenced", 2),
    ("streaming", 2),
    ("rows collected", 2),
    ("row updated", 2),
    ("position written", 1),
    ("committed", 1),
    ("confirmed", 1),
]
AROUND_THE_COMMIT = [("row updated", 2), ("position written", 1), ("committed", 1)]
MIXED = ["a", "b", "poison", "c", "poison", "d"]


@pytest.mark.parametrize("on_refused", list(OnRefused))
@pytest.mark.parametrize(("step", "ordinal"), KILLS)
def test_a_relay_that_is_killed_around_a_refused_row_loses_and_repeats_nothing(
    small: OutboxStage, step: str, ordinal: int, on_refused: OnRefused
) -> None:
    insert(small, *MIXED)
    command = [sys.executable, "-m", "tests.outside.outbox.stage", small.dsn]
    command += [small.bootstrap_servers, "wal", small.outbox.transactional_id]
    command += [step, str(ordinal), on_refused.value]
    died = subprocess.run(
        command, env=environment(), check=False, timeout=50, stderr=subprocess.DEVNULL
    )
    # A relay that stops at the row tells the slot nothing more.
    assert died.returncode == -9 or (step, on_refused) == ("confirmed", OnRefused.STOP)
    if on_refused is OnRefused.STOP:
        with pytest.raises(RecordRefused):
            small.relay()
        assert sorted(record.value or b"" for record in small.records()) == [b"a", b"b"]
    small.relay(RelaySettings(on_refused=ASIDE))
    small.audit()
    assert len(dead_letters(small)) == 2


@pytest.mark.parametrize(("step", "ordinal"), AROUND_THE_COMMIT)
def test_a_database_that_is_killed_around_a_dead_letter_loses_and_repeats_nothing(
    small: OutboxStage, postgres: PostgresServer, step: str, ordinal: int
) -> None:
    insert(small, *MIXED)
    with contextlib.suppress(FencepostError):
        small.relay(RelaySettings(on_refused=ASIDE), on_step=kill_at(step, ordinal, postgres.kill))
    postgres.start()
    relay_to_the_end(small)


@pytest.mark.parametrize(("step", "ordinal"), AROUND_THE_COMMIT)
def test_a_broker_that_is_killed_around_a_dead_letter_loses_and_repeats_nothing(
    dsn: str,
    restarted: Broker,  # noqa: F811
    step: str,
    ordinal: int,
) -> None:
    outbox = OutboxStage(dsn, restarted.bootstrap_servers)
    change_topic(outbox, outbox.topic, "max.message.bytes", str(LIMIT))
    insert(outbox, *MIXED)
    with contextlib.suppress(FencepostError):
        outbox.relay(
            RelaySettings(on_refused=ASIDE),
            on_step=kill_at(step, ordinal, restarted.kill_and_start),
        )
    relay_to_the_end(outbox)


def relay_to_the_end(outbox: OutboxStage) -> None:
    for _ in range(2):
        outbox.relay(RelaySettings(on_refused=ASIDE))
    outbox.audit()
    assert len(dead_letters(outbox)) == 2
