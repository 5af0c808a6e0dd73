"""The clients of a history. Each is a generator: it yields a request and gets the reply, or `Lost`.

A client retries what is retriable and what was lost, as client libraries do, and rests between two
pieces of work (`Rest`). It ends when the history is over.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.errors import ErrorCode
from fencepost.records.batch import split_batches
from fencepost.testing import checks
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from fencepost.wire.forms.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.broker.histories.model import Incarnation, Model, Place, Transaction, require
from tests.broker.requests import batch_of, fetch_request
from tests.transactions.protocol import Protocol
from tests.transactions.requests import (
    add_offsets_request,
    add_request,
    by_topic,
    commit_offsets_request,
    end_request,
    init_request,
    produce_request,
    transaction_of,
)
from tests.transactions.wire import GROUP, READ_COMMITTED, TRANSACTION, Consumed, _take_batches

if TYPE_CHECKING:
    from tests.broker.histories.world import World

NONE: Final = ErrorCode.NONE
PARTITIONS: Final = 2
TOPICS: Final = {"kept": False, "aged": False, "table": True}
"""Names, and whether the topic is compacted."""
SETTINGS: Final = {
    "kept": {"retention.ms": "-1"},
    "aged": {"retention.ms": "3600000"},
    "table": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
}
SHOUTED_OFFSET: Final = 0
"""Only transactions that are aborted commit it."""
PLACES: Final = [(name, index) for name in TOPICS for index in range(PARTITIONS)]

PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""Errors after which a client sends the same request again."""
GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class LostError(Exception):
    """There will be no reply: the connection or the broker is gone."""


@dataclass
class Request:
    """A request to send."""

    api: ApiKey
    version: int
    form: Any


@dataclass
class Shout(Request):
    """A request whose reply the client does not wait for: it is about to be replaced."""


@dataclass
class Rest:
    """Nothing is under way; the client continues some time later."""

    milliseconds: int = 0


Life = Generator[Request | Rest, Any, None]
Asking = Generator[Request | Rest, Any, Any]


class Client:
    """One client with one connection."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng: random.Random = world.rng

    @property
    def model(self) -> Model:
        return self.world.model

    def life(self) -> Life:
        raise NotImplementedError

    def ask(self, api: ApiKey, version: int, form: Any) -> Asking:
        return (yield Request(api, version, form))

    def insist(
        self, api: ApiKey, version: int, form: Callable[[], Any], error_of: Callable[[Any], int]
    ) -> Asking:
        """Repeats a request that is lost or refused for a while; returns the reply."""
        while True:
            try:
                reply = yield from self.ask(api, version, form())
            except LostError:
                yield Rest(10)
                continue
            if error_of(reply) not in PASSING:
                return reply
            yield Rest(100)

    def find_coordinator(self, key: str, kind: int) -> Asking:
        """The internal topics are created by this."""
        yield from self.insist(
            ApiKey.FIND_COORDINATOR,
            6,
            lambda: FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]),
            lambda reply: int(reply.coordinators[0].error_code),
        )

    def some_places(self, most: int) -> list[Place]:
        alive = [place for place in PLACES if place[0] in self.model.topics]
        return self.rng.sample(alive, min(len(alive), self.rng.randint(1, most)))


class IdempotentProducer(Client):
    """Writes one value after the other, each with the next sequence of its partition."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.producer_id = -1
        self._sequences: defaultdict[tuple[Incarnation, int], int] = defaultdict(int)

    def life(self) -> Life:
        reply = yield from self.insist(
            ApiKey.INIT_PRODUCER_ID, 5, lambda: init_request(None), lambda r: int(r.error_code)
        )
        require(reply.error_code == NONE, f"{self.name}: {ErrorCode(reply.error_code).name}")
        self.producer_id = reply.producer_id
        self.model.got_producer_id(self.producer_id)
        while not self.world.is_over:
            yield Rest(self.rng.choice((0, 0, 5, 300)))
            for place in self.some_places(1):
                yield from self.write(place)

    def next_sequence(self, topic: Incarnation, index: int) -> int:
        return self._sequences[topic, index]

    def wrote(self, topic: Incarnation, index: int) -> None:
        self._sequences[topic, index] += 1

    def write(self, place: Place) -> Asking:
        topic = self.model.topics.get(place[0])
        if topic is None:
            return
        value = self.model.new_value(self.name)
        self.model.plain.add(value)
        key = b"k%d" % self.rng.randrange(3) if topic.is_compacted else None
        if key is not None:
            self.model.keys[value] = key
        sequence = self._sequences[topic, place[1]]
        while self.model.topics.get(place[0]) is topic:
            batch = batch_of(
                value,
                key=key,
                producer_id=self.producer_id,
                epoch=0,
                sequence=sequence,
                timestamp_ms=self.world.now_ms(),
            )
            form = produce_request({place: batch}, transactional_id=None)
            try:
                reply = yield from self.ask(ApiKey.PRODUCE, 11, form)
            except LostError:
                yield Rest(10)
                continue
            told = reply.responses[0].partition_responses[0]
            if self.model.topics.get(place[0]) is not topic:
                return
            if told.error_code == NONE:
                self.wrote(topic, place[1])
                self.model.acknowledged(topic, place[1], told.base_offset, value)
                return
            # A partition that the disk refused to open is unknown until it is tried again.
            require(
                told.error_code in PASSING | GONE,
                f"{self.name} on {place} at sequence {sequence}: "
                f"{ErrorCode(told.error_code).name}, {told.error_message}",
            )
            yield Rest(100)


class TransactionalProducer(Client):
    """Transactions in one of the protocols: committed, aborted, or left open."""

    def __init__(self, world: World, name: str, protocol: Protocol) -> None:
        super().__init__(world, name)
        self.protocol = protocol
        self.transactional_id = name
        self.group = f"group of {name}"
        self.producer_id = -1
        self.epoch = -1
        self._sequences: defaultdict[Place, int] = defaultdict(int)
        self._is_valid = False

    def life(self) -> Life:
        yield from self.find_coordinator(self.transactional_id, TRANSACTION)
        yield from self.find_coordinator(self.group, GROUP)
        while not self.world.is_over:
            yield Rest(self.rng.choice((0, 0, 20, 500)))
            if not self._is_valid:
                yield from self.initialise()
            yield from self.transact()
            if self.rng.random() < 0.1:
                self._is_valid = False  # The next incarnation of the producer takes over.

    def initialise(self) -> Asking:
        timeout_ms = self.rng.choice((1_000, 5_000, 20_000))
        reply = yield from self.insist(
            ApiKey.INIT_PRODUCER_ID,
            self.protocol.init,
            lambda: init_request(self.transactional_id, timeout_ms=timeout_ms),
            lambda r: int(r.error_code),
        )
        require(reply.error_code == NONE, f"{self.name}: {ErrorCode(reply.error_code).name}")
        self.model.got_identity(self.transactional_id, reply.producer_id, reply.producer_epoch)
        self._take(reply.producer_id, reply.producer_epoch)
        self._is_valid = True

    def _take(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def transact(self) -> Asking:
        txn = Transaction(self.name)
        self.model.transactions.append(txn)
        begun = False
        for place in self.some_places(3):
            begun |= yield from self.write(txn, place)
            if not self._is_valid:
                break
            if self.rng.random() < 0.3:
                yield Rest(self.rng.choice((5, 300)))
        if self._is_valid and self.rng.random() < 0.5:
            begun |= yield from self.commit_offsets(txn)
        fate = self.rng.random()
        if not self._is_valid or (begun and fate < 0.15):
            self._is_valid = False  # Its successor aborts it, or its timeout does.
            txn.state = "aborted"
            if self.rng.random() < 0.5:
                yield from self.shout(txn)
            if self.rng.random() < 0.5:
                yield Rest(self.rng.choice((100, 3_000, 30_000)))
        elif begun:
            yield from self.end(txn, commit=fate < 0.75)
        else:
            txn.state = "aborted"

    def shout(self, txn: Transaction) -> Asking:
        """A last request, which may reach the broker together with those of the successor."""
        what = self.rng.randrange(3)
        if what == 0:
            txn.state = "unsure"
            yield Shout(ApiKey.END_TXN, self.protocol.end_txn, end_request(self, commit=True))
        elif what == 1:
            offsets = dict.fromkeys(self.some_places(4), SHOUTED_OFFSET)
            form = commit_offsets_request(self, self.group, offsets)
            yield Shout(ApiKey.TXN_OFFSET_COMMIT, self.protocol.txn_offset_commit, form)
        else:
            for place in self.some_places(1):
                value = self.model.new_value(self.name)
                txn.values.append(value)
                self.model.keys[value] = b"k0"
                form = self._produce_request(place, value, b"k0")
                yield Shout(ApiKey.PRODUCE, self.protocol.produce, form)

    def write(self, txn: Transaction, place: Place) -> Asking:
        """Whether the partition may be in the transaction now."""
        topic = self.model.topics.get(place[0])
        if topic is None:
            return False
        value = self.model.new_value(self.name)
        txn.values.append(value)
        key = b"k%d" % self.rng.randrange(3) if topic.is_compacted else None
        if key is not None:
            self.model.keys[value] = key
        if self.protocol.adds_explicitly:
            reply = yield from self.insist(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                3,
                lambda: add_request(transaction_of(self, {place[0]: [place[1]]})),
                lambda r: _error_of_add(r),
            )
            if (error := _error_of_add(reply)) != NONE:
                return self.failed(error, place)
        reply = yield from self.insist(
            ApiKey.PRODUCE,
            self.protocol.produce,
            lambda: self._produce_request(place, value, key),
            lambda r: int(r.responses[0].partition_responses[0].error_code),
        )
        told = reply.responses[0].partition_responses[0]
        if told.error_code != NONE:
            return self.failed(told.error_code, place)
        self._sequences[place] += 1
        if self.model.topics.get(place[0]) is topic:
            self.model.acknowledged(topic, place[1], told.base_offset, value)
            txn.certain.append((topic, place[1], told.base_offset, value))
        return True

    def _produce_request(self, place: Place, value: bytes, key: bytes | None) -> Any:
        batch = batch_of(
            value,
            key=key,
            producer_id=self.producer_id,
            epoch=self.epoch,
            sequence=self._sequences[place],
            transactional=True,
            timestamp_ms=self.world.now_ms(),
        )
        return produce_request({place: batch}, transactional_id=self.transactional_id)

    def failed(self, error: int, place: Place) -> bool:
        """The transaction cannot go on, unless only a topic is gone; it may have begun."""
        if error not in GONE:
            self._is_valid = False
        return True

    def commit_offsets(self, txn: Transaction) -> Asking:
        places = self.some_places(4)
        offset = int(self.model.new_value(self.name).decode().rpartition(".")[2])
        topics = {place: self.model.topics[place[0]] for place in places}
        if not places:
            return False
        if self.protocol.adds_explicitly:
            reply = yield from self.insist(
                ApiKey.ADD_OFFSETS_TO_TXN,
                4,
                lambda: add_offsets_request(self, self.group),
                lambda r: int(r.error_code),
            )
            if reply.error_code != NONE:
                return self.failed(reply.error_code, ("", 0))
        asked = dict.fromkeys(places, offset)
        reply = yield from self.insist(
            ApiKey.TXN_OFFSET_COMMIT,
            self.protocol.txn_offset_commit,
            lambda: commit_offsets_request(self, self.group, asked),
            lambda r: _worst([p.error_code for t in r.topics for p in t.partitions]),
        )
        for told in reply.topics:
            for part in told.partitions:
                place = (told.name, part.partition_index)
                if part.error_code == NONE and self.model.topics.get(told.name) is topics[place]:
                    txn.offsets[place] = (topics[place], offset)
                elif part.error_code != NONE:
                    self.failed(part.error_code, place)
        return True

    def end(self, txn: Transaction, *, commit: bool) -> Asking:
        txn.state = "ending" if commit else "aborted"
        reply = yield from self.insist(
            ApiKey.END_TXN,
            self.protocol.end_txn,
            lambda: end_request(self, commit=commit),
            lambda r: int(r.error_code),
        )
        if reply.error_code == NONE:
            if commit:
                txn.state = "committed"
            if reply.producer_id >= 0:
                self.model.raised_epoch(
                    self.transactional_id, reply.producer_id, reply.producer_epoch
                )
                self._take(reply.producer_id, reply.producer_epoch)
            return
        self._is_valid = False
        if commit:
            txn.state = "unsure"


def _error_of_add(reply: Any) -> int:
    (transaction,) = reply.results_by_transaction
    return _worst(
        [p.partition_error_code for t in transaction.topic_results for p in t.results_by_partition]
    )


def _worst(errors: list[int]) -> int:
    """An error that is retried, if there is one; else any other."""
    found = [error for error in errors if error in PASSING]
    return found[0] if found else max(errors, default=0)


class Committer(Client):
    """Commits ever higher offsets of a group outside of transactions."""

    group = "plain"

    def life(self) -> Life:
        yield from self.find_coordinator(self.group, GROUP)
        number = 0
        while not self.world.is_over:
            yield Rest(self.rng.choice((0, 50, 400)))
            number += 1
            yield from self.commit(self.some_places(5), number)

    def commit(self, places: list[Place], number: int) -> Asking:
        topics = {place: self.model.topics[place[0]] for place in places}
        for place in places:
            self.model.attempted_plainly[place] = number
        parts = by_topic(
            (p, OffsetCommitRequestPartition(partition_index=p[1], committed_offset=number))
            for p in places
        )
        asked = [OffsetCommitRequestTopic(name=n, partitions=each) for n, each in parts.items()]
        form = OffsetCommitRequest(group_id=self.group, topics=asked)
        try:
            reply = yield from self.ask(ApiKey.OFFSET_COMMIT, 8, form)
        except LostError:
            return
        for told in reply.topics:
            for part in told.partitions:
                place = (told.name, part.partition_index)
                if part.error_code == NONE and self.model.topics.get(told.name) is topics[place]:
                    self.model.committed_plainly[place] = (topics[place], number)
                require(
                    part.error_code in PASSING | GONE | {NONE},
                    f"offset of {place}: {ErrorCode(part.error_code).name}",
                )


class Reader(Client):
    """A read_committed consumer that begins anywhere, and polls."""

    def life(self) -> Life:
        while not self.world.is_over:
            yield Rest(self.rng.choice((0, 30, 200)))
            for place in self.some_places(1):
                yield from self.read(self.model.topics[place[0]], place[1])

    def read(self, topic: Incarnation, index: int) -> Asking:
        partition = self.world.stage.node.partitions.get(topic.name, index)
        if partition is None or partition.topic_id != topic.topic_id:
            return
        low, high = partition.log_start_offset, partition.high_watermark
        offset = self.rng.randint(low, max(low, high))
        form = fetch_request(
            topic.topic_id,
            offset,
            index=index,
            isolation_level=READ_COMMITTED,
            max_wait_ms=self.rng.choice((0, 0, 400)),
            max_bytes=self.rng.choice((100, 400, 1 << 20)),
        )
        try:
            reply = yield from self.ask(ApiKey.FETCH, 13, form)
        except LostError:
            return
        told = reply.responses[0].partitions[0]
        if told.error_code != NONE or not told.records:
            return
        aborted = sorted((t.first_offset, t.producer_id) for t in told.aborted_transactions or ())
        got = _take_batches(Consumed([], [], offset), split_batches(told.records), aborted)
        backwards = checks.nonmonotonic_poll((topic.name, each.offset) for each in got.records)
        require(not backwards, f"{self.name}: {backwards}")
        for record in got.records:
            self.model.saw(topic, index, record.offset, bytes(record.value or b""))


class Administrator(Client):
    """Creates, deletes and shortens topics."""

    def life(self) -> Life:
        for name in TOPICS:
            yield from self.create(name)
        while not self.world.is_over:
            yield Rest(self.rng.choice((100, 500, 2_000)))
            what = self.rng.random()
            absent = [name for name in TOPICS if name not in self.model.topics]
            if absent:
                yield from self.create(self.rng.choice(absent))
            elif what < 0.3:
                yield from self.delete(self.rng.choice(list(TOPICS)))
            elif what < 0.6:
                yield from self.delete_records()
        for name in TOPICS:
            if name not in self.model.topics:
                yield from self.create(name)

    def create(self, name: str) -> Asking:
        settings = {"internal.segment.bytes": "400", **SETTINGS[name]}
        topic = CreatableTopic(
            name=name,
            num_partitions=PARTITIONS,
            replication_factor=-1,
            configs=[CreatableTopicConfig(name=k, value=v) for k, v in settings.items()],
        )
        reply = yield from self.insist(
            ApiKey.CREATE_TOPICS,
            7,
            lambda: CreateTopicsRequest(topics=[topic], timeout_ms=30_000),
            lambda r: int(r.topics[0].error_code),
        )
        (told,) = reply.topics
        if told.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:  # An earlier attempt was not lost.
            topic_id = self.world.stage.node.metadata.topic_id(name)
            require(topic_id is not None, f"{name} exists and does not")
            assert topic_id is not None
        else:
            require(told.error_code == NONE, f"create {name}: {ErrorCode(told.error_code).name}")
            topic_id = told.topic_id
        self.model.topics[name] = Incarnation(name, topic_id, TOPICS[name])

    def delete(self, name: str) -> Asking:
        del self.model.topics[name]  # From now on nothing is certain.
        reply = yield from self.insist(
            ApiKey.DELETE_TOPICS,
            6,
            lambda: DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000),
            lambda r: int(r.responses[0].error_code),
        )
        (told,) = reply.responses
        require(
            told.error_code in {NONE, *GONE}, f"delete {name}: {ErrorCode(told.error_code).name}"
        )
        if self.rng.random() < 0.5:
            yield from self.create(name)

    def delete_records(self) -> Asking:
        for place in self.some_places(1):
            topic = self.model.topics[place[0]]
            partition = self.world.stage.node.partitions.get(*place)
            if topic.is_compacted or partition is None or topic.name == "kept":
                continue
            wanted = self.rng.randint(0, partition.high_watermark)
            asked = DeleteRecordsPartition(partition_index=place[1], offset=wanted)
            form = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=place[0], partitions=[asked])]
            )
            try:
                reply = yield from self.ask(ApiKey.DELETE_RECORDS, 2, form)
            except LostError:
                return
            told = reply.topics[0].partitions[0]
            if told.error_code == NONE and self.model.topics.get(place[0]) is topic:
                topic.deleted_below[place[1]] = max(wanted, topic.deleted_below.get(place[1], 0))
