"""Who keeps the ledger: reads it at the start of a run, and enters every batch into its own transaction."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fencepost.base.ids import TopicPartition, topic_id_text
from fencepost.client.failures import Refused, RetriesExhausted, UnknownTopicOrPartition
from fencepost.client.groups import CommittedOffset
from fencepost.client.reading import EARLIEST
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import SinkRefused
from fencepost.spark.former_ledger import moved_to
from fencepost.spark.ledger import (
    NO_PERMITS,
    Batch,
    Decision,
    FormerLedger,
    LedgerEntry,
    Page,
    Permits,
    decide,
    encode_entry,
    follow,
    group_of,
)
from fencepost.spark.ledger_reader import page_of
from fencepost.spark.ledger_topic import (
    LEDGER_TOPIC,
    ensure_topic,
    key_of,
    partition_of,
    refusal_of,
)
from fencepost.spark.offsets import parse_all

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from collections.abc import Set as AbstractSet

    from fencepost.client.blocking import Cluster
    from fencepost.client.options import ClientOptions
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.accounts import Account
    from fencepost.spark.moment import Moment
    from fencepost.spark.origins import SourceUse
    from fencepost.spark.producer import DriverProducer


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
        self._topic_ids: dict[str, str] = {}

    @property
    def _cluster(self) -> Cluster:
        return cluster_of(self._options)

    @property
    def patience_seconds(self) -> float:
        """How long to wait for a transaction of somebody else."""
        return self._options.default_api_timeout_ms / 1_000

    # Before the batch.

    def state_of_id(self) -> str | None:
        """What the coordinator says of the transactional id; None for one that it does not know."""
        view = self._cluster.describe_transactions([self._transactional_id])[self._transactional_id]
        return None if view is None else view.state

    def prepare(self) -> None:
        """Makes and checks the topic, at the start of a run; SinkRefused says what to do."""
        self._partition_count = len(ensure_topic(self._cluster, self.topic).partitions)
        self._topic_ids = {}

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
        # A record without a marker: either the marker was compacted away, or a successor has fenced us and is writing.
        # Asked after the read, so that a successor who comes later has not written what we have read.
        if not page.is_settled and not producer.is_owner():
            raise producer.fenced(_THE_LEDGER_TELLS)
        return page._replace(is_settled=True)

    def _read(self, query_id: str, *, fenced: bool, stable: bool) -> Page:
        # A broker that has not heard of the topic, or of a partition, must not make us believe that there is no record.
        try:
            view = self._cluster.metadata([self.topic]).topics[self.topic]
            self._partition_count = max(self._partition_count, len(view.partitions))
            return page_of(
                self._cluster,
                self._transactional_id,
                [TopicPartition(self.topic, index) for index in range(self._partition_count)],
                query_id=query_id,
                fenced=fenced,
                stable=stable,
            )
        except UnknownTopicOrPartition as problem:
            raise SinkRefused(
                f"topic {self.topic!r}, which holds the ledger, was deleted a moment ago: whether this batch is visible "
                "cannot be known. Start the query again; the sink then says what to do"
            ) from problem
        except Refused as problem:
            raise refusal_of(self.topic, problem) from problem

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
        ids = self._ids_of({place.topic for place in batch.start}, batch.topic_ids)
        new = [place for place in batch.start if place not in ended]
        listed = self._cluster.list_offsets(dict.fromkeys(new, EARLIEST)) if new else {}
        beginnings = {place: found.offset for place, found in listed.items()}
        return replace(batch, topic_ids=ids, beginnings=beginnings)

    def _ids_of(self, topics: AbstractSet[str], known: Mapping[str, str]) -> dict[str, str]:
        """Our own source says the ids itself. Topics of another, that are gone or that we may not see, have none."""
        for topic in sorted(topics - known.keys() - self._topic_ids.keys()):
            try:
                view = self._cluster.find_topic(topic)
            except Refused:
                continue
            if view is not None:
                self._topic_ids[topic] = topic_id_text(view.topic_id)
        ids = {**self._topic_ids, **known}
        return {topic: ids[topic] for topic in topics if topic in ids}

    # In the transaction of the batch.

    def enter(
        self,
        identity: ProducerIdentity,
        moment: Moment,
        account: Account | None,
        before: Page,
        *,
        open_ms: int | None,
        sources: SourceUse,
        is_stateful: bool | None = None,
        parts: tuple[str, ...] | None = None,
    ) -> Page:
        """Writes the batch's entry, and the sources' offsets if wanted, into the transaction: the page that follows.

        A batch without rows (or that was skipped: no account) is entered like any other.
        """
        self._refuse_own_rows(account)
        ended = parse_all(moment.end_offsets)
        commits = sources.commits and ended is not None
        ids = {} if ended is None else ended.id_texts
        if ended is not None and sources.are_ours:
            ids = self._ids_of({place.topic for place in ended.reached}, ids)
        entry = LedgerEntry(
            moment.query_id,
            moment.batch_id,
            moment.fingerprint,
            sources=None if ended is None else ended.reached,
            topic_ids=ids,
            sources_committed=commits,
            is_stateful=is_stateful,
            parts=parts,
            run_id=moment.run_id,
        )
        entry = follow(before.entry, entry, open_ms)
        offsets = self._offsets(ended.offsets if ended and commits else {}, before.former)
        self._commit(identity, offsets)
        return self.write(identity, entry, before)

    def _commit(
        self, identity: ProducerIdentity, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Offsets of topics that are gone by now are left out: the checkpoint names them for ever, and no broker takes them.

        Whether the loss of such a topic ends the query is for its source to say.
        """
        if not offsets:
            return
        try:
            self._cluster.txn_offset_commit(identity, self.group, offsets)
        except UnknownTopicOrPartition:
            topics = {place.topic for place in offsets}
            gone = {topic for topic in topics if self._cluster.find_topic(topic) is None}
            if not gone:
                raise
            log.warning(
                "the offsets of %s are not committed: deleted since the batch was planned",
                ", ".join(sorted(gone)),
            )
            self._commit(identity, {p: o for p, o in offsets.items() if p.topic not in gone})

    def write(self, identity: ProducerIdentity, entry: LedgerEntry, before: Page) -> Page:
        """The record of an entry, into the transaction of this identity, which writes no other to the topic."""
        try:
            place = self._append(identity, entry, before.place)
        except UnknownTopicOrPartition:
            # Somebody has deleted the topic under us. We hold the id and know the entry, so nothing is lost.
            self.prepare()
            place = self._append(identity, entry, None)
        except Refused as problem:
            raise refusal_of(self.topic, problem) from problem
        former = before.former and FormerLedger(before.former.places, None)
        return Page(place, entry, former)

    def _append(
        self, identity: ProducerIdentity, entry: LedgerEntry, place: TopicPartition | None
    ) -> TopicPartition:
        if place is None:
            index = partition_of(self._transactional_id, self._partition_count)
            place = TopicPartition(self.topic, index)
        append_record(self._cluster, identity, place, encode_entry(entry))
        return place

    def _offsets(
        self, sources: Mapping[TopicPartition, int], former: FormerLedger | None
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group commits: a source's offset takes the place of an old entry by itself, too."""
        offsets: dict[TopicPartition, CommittedOffset] = {}
        if former is not None and former.entry is not None:
            offsets = dict.fromkeys(former.places, moved_to(self.topic))
        return offsets | {p: CommittedOffset(offset) for p, offset in sources.items()}

    def _refuse_own_rows(self, account: Account | None) -> None:
        if account is not None and any(place.topic == self.topic for place in account.partitions):
            raise SinkRefused(
                f"rows went to topic {self.topic!r}, which holds the ledger: write them to another topic. The transaction "
                "was aborted"
            )


def append_record(
    cluster: Cluster, identity: ProducerIdentity, place: TopicPartition, value: bytes | None
) -> None:
    """Writes one record of the ledger; None forgets the id. An identity writes once to a partition."""
    assert identity.transactional_id is not None
    batch = build_batch(
        [Record(key=key_of(identity.transactional_id), value=value)],
        timestamp_ms=time.time_ns() // 1_000_000,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    with cluster.writer(identity) as writer:
        writer.write(place, batch)
        writer.flush()
