"""An embedded broker, and queries that write to its ledger, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fencepost.base.ids import TopicPartition
from fencepost.broker.node import Node
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.transactions import ProducerIdentity
from fencepost.spark.engine.micro_batch import MicroBatch
from fencepost.spark.ledger.entry import LedgerEntry, LedgerView, encode_entry
from fencepost.spark.ledger.reader import read_ledger_view
from fencepost.spark.ledger.sources import SourceUse
from fencepost.spark.ledger.store import LedgerStore
from fencepost.spark.ledger.topic import LEDGER_TOPIC, partition_of
from fencepost.spark.ledger.writer import EntryWriter, append_record
from fencepost.spark.settings import read_settings
from fencepost.spark.transaction.identity import DriverProducer
from fencepost.testing.embedded import Broker
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic

OURS = SourceUse(are_ours=True, commits=True)


def enter(
    store: LedgerStore,
    identity: ProducerIdentity,
    micro_batch: MicroBatch,
    before: LedgerView,
    *,
    open_ms: int = 1,
    **how: Any,
) -> LedgerView:
    """Writes a ledger entry after the rows, as the sink does."""
    sources = how.pop("sources", OURS)
    batch = replace(micro_batch.as_batch(), **how)
    entry_writer = EntryWriter(store, identity, batch, before, sources)
    entry_writer.commit_sources()
    entry_writer.write(time.time_ns() // 1_000_000 - open_ms)
    return entry_writer.view


class FakeMicroBatch(MicroBatch):
    """A batch with given source offsets, without Spark."""

    def __init__(self, query_id: str, batch_id: int, ends: str = "", starts: str = "") -> None:
        super().__init__(query_id, "run", batch_id)
        self._fake = {"endOffsets": ends, "startOffsets": starts}

    def _offsets(self, which: str) -> tuple[str, ...]:
        return (self._fake[which],) if self._fake[which] else ()


class LedgerCluster:
    """The cluster that holds the ledger."""

    def __init__(self, broker: Broker | None, cluster: Cluster, topic: str = LEDGER_TOPIC) -> None:
        self.broker = broker
        self.cluster = cluster
        self.topic = topic

    def create(self, partitions: int = 2, **configs: str) -> None:
        """Creates the ledger topic with few partitions, so that queries share one."""
        settings = {"cleanup.policy": "compact", "segment.bytes": "1048576"}
        settings |= {name.replace("_", "."): value for name, value in configs.items()}
        self.cluster.create_topics([NewTopic(self.topic, partitions, 1, settings)])

    def add_partitions(self, count: int) -> None:
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=self.topic, count=count, assignments=None)],
            timeout_ms=30_000,
        )
        reply = self.cluster.send_request(ApiKey.CREATE_PARTITIONS, request)
        assert [result.error_code for result in reply.results] == [0]
        while len(self.cluster.metadata([self.topic]).topics[self.topic].partitions) != count:
            pass

    def delete(self) -> None:
        """Deletes the topic. Apache Kafka accepts writes to it for a moment longer."""
        self.cluster.delete_topics([self.topic])
        while self.cluster.find_topic(self.topic) is not None:
            pass

    def store(self, transactional_id: str) -> LedgerStore:
        store = LedgerStore(self.cluster.options, transactional_id, self.topic)
        store.prepare()
        return store

    def producer(self, transactional_id: str) -> DriverProducer:
        """A driver's producer, right after its fence."""
        options = {"kafka.default.api.timeout.ms": "10000"}
        servers = str(self.cluster.options.bootstrap[0])
        producer = DriverProducer(transactional_id, read_settings(servers, options))
        producer.fence()
        return producer

    def begin(self, transactional_id: str, version: int = 2) -> ProducerIdentity:
        identity = self.cluster.init_producer_id(transactional_id)
        return replace(identity, transaction_version=version)

    def place_of(self, transactional_id: str) -> TopicPartition:
        count = len(self.cluster.metadata([self.topic]).topics[self.topic].partitions)
        return TopicPartition(self.topic, partition_of(transactional_id, count))

    def write(
        self,
        identity: ProducerIdentity,
        batch_id: int,
        query_id: str = "q",
        *,
        serial: int | None = None,
        place: TopicPartition | None = None,
    ) -> None:
        """Writes a record in an open transaction."""
        assert identity.transactional_id is not None
        serial = batch_id + 1 if serial is None else serial
        entry = LedgerEntry(query_id, batch_id, serial=serial)
        where = place or self.place_of(identity.transactional_id)
        append_record(self.cluster, identity, where, encode_entry(entry))

    def commit(self, transactional_id: str, batch_id: int, query_id: str = "q") -> None:
        """A whole transaction by another driver."""
        identity = self.begin(transactional_id)
        self.write(identity, batch_id, query_id)
        self.cluster.end_txn(identity, commit=True)

    def view(self, transactional_id: str, *, fenced: bool = True) -> LedgerView:
        return read_ledger_view(self.cluster, transactional_id, self.topic, fenced=fenced)

    def read(self, transactional_id: str) -> LedgerView:
        """What a new driver reads after its fence."""
        return self.store(transactional_id).read(self.producer(transactional_id))

    def batch_in(self, transactional_id: str, *, fenced: bool = True) -> int | None:
        """The last batch in the ledger."""
        entry = self.view(transactional_id, fenced=fenced).entry
        return None if entry is None else entry.batch_id

    def compact(self) -> None:
        """Compacts everything that may be compacted."""
        assert self.broker is not None
        self.broker.call(run_compaction)


@contextmanager
def embedded_ledger(config: Mapping[str, Any] | None = None) -> Iterator[LedgerCluster]:
    with Broker(config=config) as broker, connect(broker.bootstrap_servers) as cluster:
        yield LedgerCluster(broker, cluster)


def run_compaction(node: Node) -> None:
    """Compacts every compacted log once, as housekeeping does."""
    for sync in node.housekeeping._compact():
        if sync is not None:
            sync.run()
