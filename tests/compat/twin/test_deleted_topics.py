"""Goal: requests about deleted and recreated topics are answered as by Apache Kafka.

Method: twin runs (see the package's docstring).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fencepost.wire.forms.produce import PartitionProduceData, TopicProduceData
from tests.compat.twin.administered import create, delete, new_topic
from tests.compat.twin.grouped import commit
from tests.compat.twin.transactional import (
    add,
    batch,
    commit_offsets,
    describe,
    fetch,
    finish,
    init,
    list_offsets,
    look,
    look_at_id,
    offsets_of,
    produce,
    produce_all,
    start,
    write,
)
from tests.transactions.protocol import TV1, TV2, Protocol

if TYPE_CHECKING:
    from tests.compat.twin.talk import Talk, Twins

BOTH = pytest.mark.parametrize("protocol", [TV1, TV2], ids=lambda protocol: protocol.name)
GONE = 3
"""UNKNOWN_TOPIC_OR_PARTITION."""


def remove(talk: Talk, topic: str) -> None:
    """Deletes a topic, and waits until every part of the broker knows."""
    talk.quiet(delete(topic))
    talk.until(list_offsets(topic), lambda r: r.topics[0].partitions[0].error_code == GONE)


def by_id(topic_id: bytes, records: bytearray) -> TopicProduceData:
    data = PartitionProduceData(index=0, records=records)
    return TopicProduceData(topic_id=topic_id, partition_data=[data])


def test_writes_to_a_deleted_topic(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic_id = talk.topic("gone")
        talk.ask("a write by id", produce_all([by_id(topic_id, batch(b"x"))], None))
        remove(talk, "gone")
        talk.ask("by name", produce("gone", batch(b"x")))
        talk.ask("by id", produce_all([by_id(topic_id, batch(b"x"))], None))
        talk.ask("a read", fetch("gone"))
        talk.topic("gone")
        talk.ask("by the id of the one before", produce_all([by_id(topic_id, batch(b"x"))], None))
        look(talk, "the new one", "gone")

    twins.compare(script)


@BOTH
def test_transactional_writes_to_a_deleted_topic(twins: Twins, protocol: Protocol) -> None:
    def script(talk: Talk) -> None:
        name = f"gone-{protocol.name}"
        talk.topic(name)
        talk.topic(f"{name}-other")
        producer = start(talk, name)
        write(talk, producer, protocol, f"{name}-other", b"x")
        remove(talk, name)
        if protocol.adds_explicitly:
            talk.ask("added", add(producer, name), 3)
            talk.ask("added with another", add(producer, f"{name}-other", 0, 7), 3)
        ask = produce(name, producer.batch(b"y", sequence=0), transactional_id=name)
        talk.ask("written", ask, protocol.produce)
        look_at_id(talk, "open", name)
        finish(talk, producer, protocol, commit=True)
        look_at_id(talk, "ended", name)
        look(talk, "in the end", f"{name}-other")

    twins.compare(script)


@BOTH
def test_a_transaction_ends_after_its_only_topic_is_deleted(
    twins: Twins, protocol: Protocol
) -> None:
    def script(talk: Talk) -> None:
        for commits in (True, False):
            name = f"lonely-{protocol.name}-{commits}"
            talk.topic(name)
            producer = start(talk, name)
            write(talk, producer, protocol, name, b"x")
            remove(talk, name)
            finish(talk, producer, protocol, commit=commits)
            talk.ask("described", describe(name))
            talk.topic(name)
            if protocol is TV1:
                talk.ask("added again", add(producer, name), 3)
            look(talk, "made again", name)
            producer.take(talk.until(init(name), lambda r: r.error_code == 0))
            producer.sequences.clear()
            write(talk, producer, protocol, name, b"y")
            finish(talk, producer, protocol, commit=True)
            look(talk, "in the end", name)

    twins.compare(script)


def test_a_topic_is_recreated_during_its_deletion(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("phoenix", 3)
        for index in range(3):
            talk.ask(f"before, {index}", produce("phoenix", batch(b"old"), index=index))
        deletion = talk.send("deleted", delete("phoenix"))
        creation = talk.send("made again", create(new_topic("phoenix", 2)))
        second = talk.send("and again", create(new_topic("phoenix", 2)))
        talk.receive(deletion)
        for later in (creation, second):
            talk.receive(later, see=lambda r: [(t.error_code, t.num_partitions) for t in r.topics])
        talk.await_topic("phoenix", 2)
        talk.until(fetch("phoenix"), lambda r: r.responses[0].partitions[0].error_code == 0)
        for index in range(2):
            look(talk, "made again", "phoenix", index=index)
            talk.ask(f"after, {index}", produce("phoenix", batch(b"new"), index=index))
        talk.ask("the third", produce("phoenix", batch(b"new"), index=2))

    twins.compare(script)


def test_offsets_of_a_deleted_topic_are_gone(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for topic in ("left", "retained"):
            talk.topic(topic)
        talk.ask("committed", commit("bereft", {("left", 0): 5, ("retained", 0): 6}))
        producer = start(talk, "bereft")
        for topic, value in (("left", 7), ("retained", 8)):
            ask = commit_offsets(producer, "bereft-txn", {(topic, 0): value})
            talk.ask(f"{topic} in a transaction", ask, TV2.txn_offset_commit)
        finish(talk, producer, TV2, commit=True)
        ask = commit_offsets(producer, "bereft-open", {("left", 0): 9, ("retained", 0): 9})
        talk.ask("held by a transaction", ask, TV2.txn_offset_commit)
        remove(talk, "left")
        for moment in ("gone", "made again"):
            for group in ("bereft", "bereft-txn"):
                talk.until(
                    offsets_of(group, "left", 0),
                    lambda r: r.groups[0].topics[0].partitions[0].committed_offset == -1,
                )
                talk.ask(f"{moment}: {group}", offsets_of(group, "left", 0))
                talk.ask(f"{moment}: all of {group}", offsets_of(group, None))
            if moment == "gone":
                talk.ask("committed for nothing", commit("bereft", {("left", 0): 5}))
                late = commit_offsets(producer, "bereft-late", {("left", 0): 9})
                talk.ask("in a transaction for nothing", late, TV2.txn_offset_commit)
                talk.topic("left")
        finish(talk, producer, TV2, commit=True)
        for group in ("bereft-open", "bereft-late"):
            talk.ask(f"in the end: {group}", offsets_of(group, None))

    twins.compare(script)
