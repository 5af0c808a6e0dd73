"""Who keeps the ledger: reads it at the start of a run, and writes its records.

How a batch is entered into its own transaction, in which order and beside which requests, is in
`entering.py`.
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
from fencepost.spark.sink.ledger.entering import Entering
from fencepost.spark.sink.ledger.ledger import (
    NO_PERMITS,
    Batch,
    Decision,
    FormerLedger,
    LedgerEntry,
    Page,
    Permits,
    decide,
    encode_entry,
    group_of,
)
from fencepost.spark.sink.ledger.reader import page_of
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
    from fencepost.spark.sink.micro_batch import MicroBatch
    from fencepost.spark.sink.origins import SourceUse
    from fencepost.spark.sink.producer import DriverProducer


_THE_LEDGER_TELLS: Final = "Whether this batch is visible, the ledger will tell"

log = logging.getLogger(__name__)


class LedgerKeeper:
    """The ledger of one transactional id."""

    def __init__(
        self, options: ClientOptions, transactional_id: str, topic: str | None = None
    ) -> None:
        self.topic = topic or LEDGER_TOPIC
        self.group = group_of(transactional_id)
        self._options = options
        self._transactional_id = transactional_id
        self._partition_count = 0
        self.is_watchful = False
        """Whether a source's topic went missing or was replaced under this run: then each is looked
        at first."""

    @property
    def cluster(self) -> Cluster:
        return cluster_of(self._options)

    @property
    def patience_seconds(self) -> float:
        """How long to wait for a transaction of somebody else."""
        return self._options.default_api_timeout_ms / 1_000

    # Before the batch.

    def state_of_id(self) -> str | None:
        """What the coordinator says of the transactional id; None for one that it does not know."""
        view = self.cluster.describe_transactions([self._transactional_id])[self._transactional_id]
        return None if view is None else view.state

    def prepare(self) -> None:
        """Makes and checks the topic, at the start of a run; SinkRefused says what to do."""
        self._partition_count = len(ensure_topic(self.cluster, self.topic).partitions)
        self.is_watchful = False

    def look(self, query_id: str, *, stable: bool) -> Page:
        """What is in the ledger now, while somebody else may be writing to it."""
        return self._read(query_id, fenced=False, stable=stable)

    def read(self, query_id: str, producer: DriverProducer) -> Page:
        """What is in the ledger, once the producer's fence has ended every transaction that may change it."""
        try:
            page = self._read(query_id, fenced=True, stable=True)
        except RetriesExhausted:
            # Offsets of the group that stay undecided are those of a successor.
            if producer.is_owner():
                raise
            raise producer.fenced(_THE_LEDGER_TELLS) from None
        # A record without a marker: either the marker was compacted away, or a successor has fenced
        # us and is writing. Asked after the read, so that a successor who comes later has not
        # written what we have read.
        if not page.is_settled and not producer.is_owner():
            raise producer.fenced(_THE_LEDGER_TELLS)
        return page._replace(is_settled=True)

    def _read(self, query_id: str, *, fenced: bool, stable: bool) -> Page:
        # A broker that has not heard of the topic, or of a partition, must not make us believe that
        # there is no record.
        try:
            view = self.cluster.metadata([self.topic]).topics[self.topic]
            self._partition_count = max(self._partition_count, len(view.partitions))
            places = [TopicPartition(self.topic, index) for index in range(self._partition_count)]
            offline = {TopicPartition(self.topic, p.index) for p in view.partitions if p.leader < 0}
            page = None
            if offline:
                page = self._read_without(offline, places, query_id, fenced=fenced, stable=stable)
            return page or self._page(places, query_id, fenced=fenced, stable=stable)
        except UnknownTopicOrPartition as problem:
            raise SinkRefused(
                f"topic {self.topic!r}, which holds the ledger, was deleted a moment ago: "
                "whether this batch is visible "
                "cannot be known. Start the query again; the sink then says what to do"
            ) from problem
        except Refused as problem:
            raise refusal_of(self.topic, problem) from problem

    def _page(
        self, places: list[TopicPartition], query_id: str, *, fenced: bool, stable: bool
    ) -> Page:
        return page_of(
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
    ) -> Page | None:
        """The page, where partitions without a leader cannot matter to it; None where the record may be in one of them.

        An id has its record in one partition at a time, and every later one goes there
        (`place_after`). So once it is found, no other partition can have a newer one.
        """
        left = [place for place in places if place not in offline]
        page = self._page(left, query_id, fenced=fenced, stable=stable)
        names = ", ".join(str(place) for place in sorted(offline))
        if page.place is None:
            log.warning(
                "the ledger's record of %r may be in %s, which has no leader: waiting for one",
                self._transactional_id,
                names,
            )
            return None
        log.warning("%s of the ledger has no leader; this query does not need it", names)
        return page

    def judge(
        self, page: Page, batch: Batch, sources: SourceUse, permits: Permits = NO_PERMITS
    ) -> Decision:
        """What to do with the batch, with all that the cluster knows of its sources."""
        entry = page.entry
        if entry is not None and entry.query_id != batch.query_id and sources.are_ours:
            batch = self._with_topics(batch, entry.sources or {})
        return decide(page, batch, permits)

    def _with_topics(self, batch: Batch, ended: Collection[TopicPartition]) -> Batch:
        """The ids of its topics, and where partitions begin that are new since the entry."""
        if not batch.start:
            return batch
        ids = self.ids_of({place.topic for place in batch.start}, batch.topic_ids)
        new = [place for place in batch.start if place not in ended]
        listed = self.cluster.list_offsets(dict.fromkeys(new, EARLIEST)) if new else {}
        beginnings = {place: found.offset for place, found in listed.items()}
        return replace(batch, topic_ids=ids, beginnings=beginnings)

    def ids_of(self, topics: AbstractSet[str], known: Mapping[str, str]) -> dict[str, str]:
        """Our own source says the ids itself.

        Topics of another, that are gone or that we may not see, have none.
        """
        unknown = topics - known.keys()
        ids = {**self.current_ids(unknown), **known}
        return {topic: ids[topic] for topic in topics if topic in ids}

    def current_ids(self, topics: AbstractSet[str]) -> dict[str, str]:
        """The ids that these topics have now."""
        return self.heard_ids(self.begin_ids(topics)) if topics else {}

    def begin_ids(self, topics: AbstractSet[str]) -> PendingCall[ClusterView]:
        """The same question, on its way."""
        return self.cluster.begin_metadata(topics, missing_ok=True, known_missing=topics)

    def heard_ids(self, begun: PendingCall[ClusterView]) -> dict[str, str]:
        """The answer. Brokers before Kafka 2.8 know no ids, and some topics we may not see."""
        try:
            found = begun.finish().topics.values()
        except Refused as problem:
            log.debug("the ids of the sources' topics are not known: %s", problem)
            return {}
        return {
            view.name: topic_id_text(view.topic_id)
            for view in found
            if view.topic_id != ZERO_TOPIC_ID
        }

    # In the transaction of the batch.

    def entering(
        self,
        identity: ProducerIdentity,
        micro_batch: MicroBatch,
        before: Page,
        *,
        sources: SourceUse,
        is_stateful: bool | None = None,
        parts: tuple[str, ...] | None = None,
    ) -> Entering:
        """The ledger's part of one attempt to write a batch.

        One without rows is entered like any other.
        """
        return Entering(
            self,
            identity,
            micro_batch,
            before,
            sources=sources,
            is_stateful=is_stateful,
            parts=parts,
        )

    def write(self, identity: ProducerIdentity, entry: LedgerEntry, before: Page) -> Page:
        """The record of an entry, into the transaction of this identity, which writes no other to the topic."""
        place = self.place_after(before)
        try:
            append_record(self.cluster, identity, place, encode_entry(entry))
        except UnknownTopicOrPartition:
            # Somebody has deleted the topic under us. We hold the id and know the entry, so nothing
            # is lost.
            self.prepare()
            place = self.place_after(before)
            append_record(self.cluster, identity, place, encode_entry(entry))
        except Refused as problem:
            raise refusal_of(self.topic, problem) from problem
        return self.page_after(before, place, entry)

    def place_after(self, before: Page) -> TopicPartition:
        """Where the next record goes: to the last one, wherever that is, so that an id has one record.

        Only a topic that was created again may have fewer partitions than that; then it has no
        record either.
        """
        if before.place is not None and before.place.partition < self._partition_count:
            return before.place
        index = partition_of(self._transactional_id, self._partition_count)
        return TopicPartition(self.topic, index)

    def page_after(self, before: Page, place: TopicPartition, entry: LedgerEntry) -> Page:
        """What the ledger says when the transaction is committed that has written this entry."""
        former = before.former and FormerLedger(before.former.places, None)
        return Page(place, entry, former)
