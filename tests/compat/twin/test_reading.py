"""Goal: Fetch, ListOffsets and OffsetForLeaderEpoch behave as on Apache Kafka in every version.

Method: twin runs (see the package's docstring).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from fencepost.wire.forms.fetch import FetchPartition, FetchRequest, FetchTopic
from fencepost.wire.forms.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from fencepost.wire.forms.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.compat.twin.likeness import EPOCH_MS
from tests.compat.twin.talk import Ask, versions
from tests.compat.twin.transactional import (
    batch,
    fetch,
    finish,
    list_offsets,
    produce,
    start,
    write,
)
from tests.transactions.protocol import TV1, TV2, Protocol

if TYPE_CHECKING:
    from tests.compat.twin.talk import Talk, Twins


def filled(talk: Talk, topic: str, count: int = 3) -> bytes:
    """A topic with batches of two records each, a second apart."""
    topic_id = talk.topic(topic, 2)
    for number in range(count):
        records = batch(b"a%d" % number, b"b%d" % number, time_ms=EPOCH_MS + 1000 * number)
        talk.ask(f"batch {number}", produce(topic, records))
    return topic_id


def fetch_topics(*topics: FetchTopic, **more: Any) -> Ask:
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=list(topics), **more)
    return Ask(ApiKey.FETCH, request, 12)


def asked(offset: int = 0, index: int = 0, size: int = 1 << 20, **more: Any) -> FetchPartition:
    return FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=size, **more)


def size_of_records(reply: Any) -> int:
    return len(reply.responses[0].partitions[0].records)


def test_fetch_in_every_version(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic_id = filled(talk, "fetched")
        for version in versions(ApiKey.FETCH):
            by = {"topic": "fetched"} if version < 13 else {"topic_id": topic_id}
            whole = fetch_topics(FetchTopic(partitions=[asked(), asked(index=1)], **by))
            talk.ask(f"both partitions, v{version}", whole, version)
            unknown = fetch_topics(FetchTopic(partitions=[asked(index=7), asked(3)], **by))
            talk.ask(f"an unknown partition, v{version}", unknown, version)
            other = {"topic": "none"} if version < 13 else {"topic_id": bytes(15) + b"\x07"}
            talk.ask(
                f"an unknown topic, v{version}",
                fetch_topics(FetchTopic(partitions=[asked()], **other)),
                version,
            )
            for isolation in (0, 1):
                end = fetch_topics(
                    FetchTopic(partitions=[asked(6)], **by), isolation_level=isolation
                )
                talk.ask(f"the end at {isolation}, v{version}", end, version)
            if version >= 9:
                for epoch in (0, 1, -1, -2):
                    one = asked(current_leader_epoch=epoch)
                    ask = fetch_topics(FetchTopic(partitions=[one], **by))
                    talk.ask(f"leader epoch {epoch}, v{version}", ask, version)
            if version >= 12:
                for epoch in (0, 1, -1, 7):
                    one = asked(2, last_fetched_epoch=epoch)
                    ask = fetch_topics(FetchTopic(partitions=[one], **by))
                    talk.ask(f"fetched epoch {epoch}, v{version}", ask, version)

    twins.compare(script)


def test_fetch_with_size_limits(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        filled(talk, "bounded")
        for number in range(2):
            talk.ask(f"other {number}", produce("bounded", batch(b"other"), index=1))
        both = [asked(), asked(index=1)]
        for size in (0, 1, 100, 170, 1000):
            ask = fetch_topics(FetchTopic(topic="bounded", partitions=both), max_bytes=size)
            talk.ask(f"at most {size}", ask)
            each = [asked(size=size), asked(index=1, size=size)]
            ask = fetch_topics(FetchTopic(topic="bounded", partitions=each))
            talk.ask(f"at most {size} each", ask)
        row = "negative sizes in Fetch, negative epochs in OffsetForLeaderEpoch"
        talk.ask("less than nothing", fetch("bounded", max_bytes=-1), differs=row)
        part = fetch("bounded", max_bytes=100)
        talk.ask("how much", part, see=size_of_records, differs="Fetch")
        talk.ask("in the middle of a batch", fetch("bounded", 3))
        ask = fetch_topics(FetchTopic(topic="bounded", partitions=[]))
        talk.ask("no partition", ask)
        talk.ask("no topic", fetch_topics())
        ask = fetch_topics(FetchTopic(topic="a b", partitions=[asked()]))
        talk.ask("an illegal name", ask)
        ask = fetch_topics(FetchTopic(topic="bounded", partitions=[asked(), asked(2)]))
        talk.ask("one twice", ask, see=lambda reply: reply.error_code)

    twins.compare(script)


def test_unknown_fetch_sessions_are_refused(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        filled(talk, "sessions", 1)
        topic = FetchTopic(topic="sessions", partitions=[asked()])
        for session_id, epoch in ((0, -1), (0, 0), (0, 1), (7, 0), (7, 1), (7, -1), (0, 5)):
            ask = fetch_topics(topic, session_id=session_id, session_epoch=epoch)
            talk.ask(f"session {session_id} at {epoch}", ask)

    twins.compare(script)


def test_list_offsets_in_every_version(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        filled(talk, "listed")
        times = {"T0": EPOCH_MS, "T1": EPOCH_MS + 1, "T2": EPOCH_MS + 2000, "T3": EPOCH_MS + 9000}
        times |= {str(time_ms): time_ms for time_ms in range(-9, 1)}
        for version in versions(ApiKey.LIST_OFFSETS):
            for name, time_ms in times.items():
                for index in (0, 1):
                    ask = list_offsets("listed", time_ms, index=index)
                    talk.ask(f"{name} of {index}, v{version}", ask, version)
            talk.ask(f"unknown, v{version}", list_offsets("listed", index=5), version)
            talk.ask(f"unknown topic, v{version}", list_offsets("none"), version)
            talk.ask(f"illegal topic, v{version}", list_offsets("a b"), version)

    twins.compare(script)


def test_list_offsets_with_epochs_and_for_replicas(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        filled(talk, "replicas")

        def listing(*partitions: ListOffsetsPartition, replica_id: int = -1) -> Ask:
            topic = ListOffsetsTopic(name="replicas", partitions=list(partitions))
            request = ListOffsetsRequest(replica_id=replica_id, topics=[topic])
            return Ask(ApiKey.LIST_OFFSETS, request)

        for epoch in (-2, -1, 0, 1, 5):
            one = ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=epoch)
            talk.ask(f"epoch {epoch}", listing(one))
        one = ListOffsetsPartition(partition_index=0, timestamp=-1)
        two = ListOffsetsPartition(partition_index=0, timestamp=-2)
        talk.ask("one twice", listing(one, two))
        talk.ask("no partition", listing())
        for replica_id in (-2, -1, 0, 5):
            talk.ask(f"replica {replica_id}", listing(one, replica_id=replica_id))
        talk.ask("no topic", Ask(ApiKey.LIST_OFFSETS, ListOffsetsRequest(replica_id=-1)))

    twins.compare(script)


def test_ends_of_leader_epochs(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        filled(talk, "epochs")
        talk.topic("epochs-none")
        for version in versions(ApiKey.OFFSET_FOR_LEADER_EPOCH):
            for topic, index in (
                ("epochs", 0),
                ("epochs", 1),
                ("epochs", 7),
                ("none", 0),
                ("a b", 0),
            ):
                for epoch in (-1, 0, 1, 7):
                    for current in (-1, 0, 1):
                        wanted = OffsetForLeaderPartition(
                            partition=index, leader_epoch=epoch, current_leader_epoch=current
                        )
                        topics = [OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
                        request = OffsetForLeaderEpochRequest(topics=topics)
                        talk.ask(
                            f"{topic}-{index}: {epoch}, {current}, v{version}",
                            Ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, request),
                            version,
                        )

    twins.compare(script)


def delete_records(topic: str, offset: int, index: int = 0) -> Ask:
    partition = DeleteRecordsPartition(partition_index=index, offset=offset)
    topics = [DeleteRecordsTopic(name=topic, partitions=[partition])]
    return Ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=topics, timeout_ms=3_000))


def test_records_are_deleted(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        filled(talk, "shortened")
        talk.topic("shortened-compacted", 1, {"cleanup.policy": "compact"})
        for version in (0, 1, 2):
            for offset in (1, 0, 2, -2, 99):
                ask = delete_records("shortened", offset)
                talk.ask(f"up to {offset}, v{version}", ask, version)
                for time_ms in (-2, -1, EPOCH_MS):
                    ask = list_offsets("shortened", time_ms)
                    talk.ask(f"up to {offset}, v{version}: {min(time_ms, 0)}", ask)
                talk.ask(f"up to {offset}, v{version}: read", fetch("shortened", 2))
            for topic in ("none", "a b", "", "shortened-compacted", "__consumer_offsets"):
                talk.ask(f"of {topic!r}, v{version}", delete_records(topic, 0), version)
            ask = delete_records("shortened", 0, index=9)
            talk.ask(f"of an unknown partition, v{version}", ask, version)
        talk.ask("all", delete_records("shortened", -1))
        talk.ask("all: read", fetch("shortened", 6))
        talk.ask("nothing", Ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(timeout_ms=1000)))

    twins.compare(script)


def test_records_of_an_open_transaction_are_deleted(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("cut")
        producer = start(talk, "cut")
        talk.ask("plain", produce("cut", batch(b"plain")))
        write(talk, producer, TV2, "cut", b"a", b"b")
        talk.ask("plain after it", produce("cut", batch(b"plain")))
        for offset in (1, 3, 4):
            talk.ask(f"up to {offset}", delete_records("cut", offset))
            for isolation in (0, 1):
                ask = fetch("cut", offset, isolation=isolation)
                talk.ask(f"up to {offset}: read at {isolation}", ask)
                ask = list_offsets("cut", isolation=isolation)
                talk.ask(f"up to {offset}: end at {isolation}", ask)

    twins.compare(script)


def test_records_are_deleted_in_the_middle_of_an_open_transaction(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("cut-within")
        producer = start(talk, "cut-within")
        write(talk, producer, TV2, "cut-within", b"a", b"b", b"c")
        talk.ask("cut", delete_records("cut-within", 1))
        talk.ask(
            "the end of what is committed",
            list_offsets("cut-within", isolation=1),
            differs="last stable offset after DeleteRecords within a batch",
        )

    twins.compare(script)


@pytest.mark.parametrize("protocol", [TV1, TV2], ids=lambda protocol: protocol.name)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_waiting_fetch_returns_when_the_transaction_ends(
    twins: Twins, protocol: Protocol, commit: bool
) -> None:
    def script(talk: Talk) -> None:
        topic = f"waiting-{protocol.name}-{commit}"
        talk.topic(topic)
        producer = start(talk, topic)
        write(talk, producer, protocol, topic, b"a", b"b")
        readers = [
            talk.send(f"waits at {offset}", fetch(topic, offset, wait_ms=20_000), on=f"at {offset}")
            for offset in (0, 1)
        ]
        ask = fetch(topic, 2, isolation=0, wait_ms=20_000)
        readers.append(talk.send("waits for anything", ask, on="anything"))
        # A reader that comes after the end gets the same.
        talk.ask("they wait", list_offsets(topic, isolation=1))
        finish(talk, producer, protocol, commit=commit)
        for reader in readers:
            talk.receive(reader)

    twins.compare(script)
