"""Reads the ledger of one transactional id at the start of a run, and writes its records.

`entry_writer.py` defines how a batch enters its own transaction: in which order, and together with
which requests.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition, topic_id_text
from fencepost.client.failures import Refused, RetriesExhausted, UnknownTopicOrPartition
from fencepost.client.reading import EARLIEST
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import SinkRefused
from fencepost.spark.sink.ledger.decision import NO_OVERRIDES, Batch, Decision, Overrides, decide
from fencepost.spark.sink.ledger.entry import (
    LedgerEntry,
    LedgerView,
    LegacyLedger,
    encode_entry,
    group_of,
)
from fencepost.spark.sink.ledger.entry_writer import EntryWriter
from fencepost.spark.sink.ledger.reader import read_view
from fencepost.spark.sink.ledger.record import append_record
from fencepost.spark.sink.ledger.topic import (
    LEDGER_TOPIC,
    ensure_topic,
    partition_of,
    refusal_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from collections.abc import Set as AbstractSet

    from fencepost.client.admin import ClusterView
    from fencepost.client.blocking import Cluster, PendingCall
    from fencepost.client.options import ClientOptions
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.sink.batch.micro_batch import MicroBatch
    from fencepost.spark.sink.batch.origins import SourceUse
    from fencepost.spark.sink.producer import DriverProducer


_THE_LEDGER_TELLS: Final = "The ledger will tell whether this batch is visible"

log = logging.getLogger(__name__)


class LedgerStore:
    """The ledger of one transactional id."""

    def __init__(
        self, options: ClientOptions, transactional_id: str, topic: str | None = None
    ) -> None:
        self.topic = topic or LEDGER_TOPIC
        self.group = group_of(transactional_id)
        self._options = options
        self._transactional_id = transactional_id
        self._partition_count = 0
        self.checks_ids_first = False
        """Whether a source topic was deleted or replaced during this run. Topic ids are then
        compared before the offsets are committed."""

    @property
    def cluster(self) -> Cluster:
        """The connection to the sink's cluster."""
        return cluster_of(self._options)

    @property
    def wait_seconds(self) -> float:
        """How long to wait for another producer's transaction."""
        return self._options.default_api_timeout_ms / 1_000

    # Before the batch.

    def state_of_id(self) -> str | None:
        """The coordinator's state of the transactional id; None if it does not exist."""
        view = self.cluster.describe_transactions([self._transactional_id])[self._transactional_id]
        return None if view is None else view.state

    def prepare(self) -> None:
        """Creates or checks the topic at the start of a run; SinkRefused says what to do."""
        self._partition_count = len(ensure_topic(self.cluster, self.topic).partitions)
        self.checks_ids_first = False

    def peek(self, query_id: str, *, stable: bool) -> LedgerView:
        """The ledger before the fence, while another producer may be writing to it."""
        return self._read(query_id, fenced=False, stable=stable)

    def read(self, query_id: str, producer: DriverProducer) -> LedgerView:
        """The ledger after the fence, which ended every transaction that could change it."""
        try:
            view = self._read(query_id, fenced=True, stable=True)
        except RetriesExhausted:
            # Offsets of the group that stay unstable belong to a successor.
            if producer.is_owner():
                raise
            raise producer.fenced(_THE_LEDGER_TELLS) from None
        # A record without a marker: either the marker was compacted away, or a successor has fenced
        # us and is writing. Checked after the read: a successor that comes later has not written
        # what we have read.
        if not view.is_settled and not producer.is_owner():
            raise producer.fenced(_THE_LEDGER_TELLS)
        return view._replace(is_settled=True, undecided=())

    def _read(self, query_id: str, *, fenced: bool, stable: bool) -> LedgerView:
        # A broker with stale metadata, without the topic or a partition, does not mean that there
        # is no record.
        try:
            topic = self.cluster.metadata([self.topic]).topics[self.topic]
            self._partition_count = max(self._partition_count, len(topic.partitions))
            places = [TopicPartition(self.topic, index) for index in range(self._partition_count)]
            offline = {
                TopicPartition(self.topic, p.index) for p in topic.partitions if p.leader < 0
            }
            view = None
            if offline:
                view = self._read_without(offline, places, query_id, fenced=fenced, stable=stable)
            return view or self._view(places, query_id, fenced=fenced, stable=stable)
        except UnknownTopicOrPartition as problem:
            raise SinkRefused(
                f"topic {self.topic!r}, which holds the ledger, was just deleted: the sink cannot "
                "tell whether this batch is visible. Start the query again; the sink then says "
                "what to do"
            ) from problem
        except Refused as problem:
            raise refusal_of(self.topic, problem) from problem

    def _view(
        self, places: list[TopicPartition], query_id: str, *, fenced: bool, stable: bool
    ) -> LedgerView:
        return read_view(
            self.cluster,
            self._transactional_id,
            places,
            query_id=query_id,
            fenced=fenced,
            stable=stable,
        )

    def _read_without(
        self,
        offline: AbstractSet[TopicPartition],
        places: list[TopicPartition],
        query_id: str,
        *,
        fenced: bool,
        stable: bool,
    ) -> LedgerView | None:
        """Reads the partitions that have a leader. None if the record may be in another one.

        An id has its record in one partition at a time, and every later record goes there
        (`next_place`). So once it is found, no other partition can have a newer one.
        """
        left = [place for place in places if place not in offline]
        view = self._view(left, query_id, fenced=fenced, stable=stable)
        names = ", ".join(str(place) for place in sorted(offline))
        if view.place is None:
            log.warning(
                "the ledger record of %r may be in %s, which has no leader: waiting for one",
                self._transactional_id,
                names,
            )
            return None
        log.warning(
            "%s of the ledger has no leader, but does not hold the record of this query", names
        )
        return view

    def decide(
        self,
        view: LedgerView,
        batch: Batch,
        sources: SourceUse,
        overrides: Overrides = NO_OVERRIDES,
    ) -> Decision:
        """What to do with the batch, given the ids and first offsets of its topics."""
        entry = view.entry
        if entry is not None and entry.query_id != batch.query_id and sources.are_ours:
            batch = self._with_topics(batch, entry.sources or {})
        return decide(view, batch, overrides)

    def _with_topics(self, batch: Batch, ended: Collection[TopicPartition]) -> Batch:
        """Adds the ids of its topics, and the first offsets of partitions new since the entry."""
        if not batch.start:
            return batch
        ids = self.ids_of({place.topic for place in batch.start}, batch.topic_ids)
        new = [place for place in batch.start if place not in ended]
        listed = self.cluster.list_offsets(dict.fromkeys(new, EARLIEST)) if new else {}
        beginnings = {place: found.offset for place, found in listed.items()}
        return replace(batch, topic_ids=ids, beginnings=beginnings)

    def ids_of(self, topics: AbstractSet[str], known: Mapping[str, str]) -> dict[str, str]:
        """The ids of these topics. Our own source supplies them; for another, they are requested.

        Topics that do not exist, or that this user may not describe, have none.
        """
        unknown = topics - known.keys()
        ids = {**self.current_ids(unknown), **known}
        return {topic: ids[topic] for topic in topics if topic in ids}

    def current_ids(self, topics: AbstractSet[str]) -> dict[str, str]:
        """The current ids of these topics."""
        return self.finish_ids(self.begin_ids(topics)) if topics else {}

    def begin_ids(self, topics: AbstractSet[str]) -> PendingCall[ClusterView]:
        """Sends the request for `current_ids`."""
        return self.cluster.begin_metadata(topics, missing_ok=True, known_missing=topics)

    def finish_ids(self, begun: PendingCall[ClusterView]) -> dict[str, str]:
        """Waits for the ids. Brokers before Kafka 2.8 have none."""
        try:
            found = begun.finish().topics.values()
        except Refused as problem:
            log.debug("the ids of the source topics are not known: %s", problem)
            return {}
        return {
            view.name: topic_id_text(view.topic_id)
            for view in found
            if view.topic_id != ZERO_TOPIC_ID
        }

    # In the transaction of the batch.

    def entry_writer(
        self,
        identity: ProducerIdentity,
        micro_batch: MicroBatch,
        before: LedgerView,
        *,
        sources: SourceUse,
        is_stateful: bool | None = None,
        parts: tuple[str, ...] | None = None,
    ) -> EntryWriter:
        """The ledger's part of one attempt to write a batch, with or without rows."""
        return EntryWriter(
            self,
            identity,
            micro_batch,
            before,
            sources=sources,
            is_stateful=is_stateful,
            parts=parts,
        )

    def write(
        self, identity: ProducerIdentity, entry: LedgerEntry, before: LedgerView
    ) -> LedgerView:
        """Writes an entry in the transaction of this identity, its only record in the topic."""
        place = self.next_place(before)
        try:
            append_record(self.cluster, identity, place, encode_entry(entry))
        except UnknownTopicOrPartition:
            # The topic was deleted. This query owns the id and has the entry, so nothing is lost.
            self.prepare()
            place = self.next_place(before)
            append_record(self.cluster, identity, place, encode_entry(entry))
        except Refused as problem:
            raise refusal_of(self.topic, problem) from problem
        return self.view_after(before, place, entry)

    def next_place(self, before: LedgerView) -> TopicPartition:
        """The partition of the next record: that of the last one, so that an id has one record.

        Only a topic that was created again can have fewer partitions, and it has no record.
        """
        if before.place is not None and before.place.partition < self._partition_count:
            return before.place
        index = partition_of(self._transactional_id, self._partition_count)
        return TopicPartition(self.topic, index)

    def view_after(
        self, before: LedgerView, place: TopicPartition, entry: LedgerEntry
    ) -> LedgerView:
        """The ledger after the commit of the transaction that wrote this entry."""
        legacy = before.legacy and LegacyLedger(before.legacy.places, None)
        return LedgerView(place, entry, legacy)
