"""Writes source offsets and the ledger's record into the transaction of a batch.

Theory of operation. The transaction is atomic, so the order of its requests only affects speed. The
rows go first, then the offsets, then the record, never in parallel: two concurrent requests that
add to one transaction collide at the coordinator, and one of them must be retried. Nothing is sent
before the rows are computed, which may take an hour: the transaction would stay open for so long.

Offsets mean nothing on another topic of the same name. A group's commits carry no topic ids, so
this module compares them first: with those that the batch was planned with, or else with those of
the previous entry. The offsets of a replaced or deleted topic are left out. A topic that is
replaced between the comparison and the commit is not detected.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from fencepost.base.ids import TopicPartition
from fencepost.client.failures import Refused, UnknownTopicOrPartition
from fencepost.client.groups import CommittedOffset
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record
from fencepost.spark.ledger.entry import (
    LedgerEntry,
    LedgerView,
    encode_entry,
    key_of,
    next_entry,
)
from fencepost.spark.ledger.topic import partition_of, refusal_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from fencepost.client.blocking import Cluster
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.ledger.rule import Batch
    from fencepost.spark.ledger.sources import SourceUse
    from fencepost.spark.ledger.store import LedgerStore

log = logging.getLogger(__name__)


class EntryWriter:
    """The ledger's part of one attempt to write a batch."""

    def __init__(
        self,
        store: LedgerStore,
        identity: ProducerIdentity,
        batch: Batch,
        before: LedgerView,
        sources: SourceUse,
    ) -> None:
        self._store = store
        self._identity = identity
        self._batch = batch
        self._before = before
        self._use = sources
        self._ids: dict[str, str] = {}
        """The current ids of the source topics."""
        self._opened_ms = 0
        self.open_ms = 0
        """How long the transaction was open when its record was written."""
        self.view = before
        """The ledger after the commit, once its record is written."""

    def commit_sources(self) -> None:
        """Commits the source offsets, if they are to be committed, in the transaction."""
        ended = self._batch.ended
        if ended is None or not self._use.are_ours:
            return
        topics = {place.topic for place in ended.reached}
        self._ids = self._store.current_ids(topics)
        if not self._use.commits:
            return
        if replaced := self._replaced(topics):
            _log_left_out(replaced, "deleted and created again")
        self._commit_existing(
            {p: CommittedOffset(o) for p, o in ended.offsets.items() if p.topic not in replaced}
        )

    def write(self, opened_ms: int = 0) -> None:
        """Writes the record. `opened_ms`: when the first row was sent."""
        entry = self._make_entry(opened_ms)
        self.view = write_entry(self._store, self._identity, entry, self._before)

    def _make_entry(self, opened_ms: int) -> LedgerEntry:
        now_ms = time.time_ns() // 1_000_000
        first_ms = min(opened_ms or now_ms, self._opened_ms or now_ms)
        self.open_ms = max(0, now_ms - first_ms)
        batch, ended = self._batch, self._batch.ended
        entry = LedgerEntry(
            batch.query_id,
            batch.batch_id,
            batch.fingerprint,
            sources=None if ended is None else ended.reached,
            # Those that our own source has read, else the current ones.
            topic_ids={} if ended is None else {**self._ids, **ended.id_texts},
            sources_committed=self._use.commits and ended is not None,
            is_stateful=batch.is_stateful,
            parts=batch.parts,
            run_id=batch.run_id,
        )
        return next_entry(self._before.entry, entry)

    def _replaced(self, topics: AbstractSet[str]) -> set[str]:
        """Topics that were replaced since the batch was planned."""
        before, ended = self._before.entry, self._batch.ended
        planned: dict[str, str] = {}
        if before is not None and before.query_id == self._batch.query_id:
            planned.update(before.topic_ids)
        if ended is not None:
            planned.update(ended.id_texts)
        both = topics & planned.keys() & self._ids.keys()
        return {topic for topic in both if planned[topic] != self._ids[topic]}

    def _commit_existing(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commits the offsets of topics that still exist; brokers do not accept the others.

        The source decides whether the loss of a topic ends the query.
        """
        if not offsets:
            return
        self._opened_ms = self._opened_ms or time.time_ns() // 1_000_000
        cluster = self._store.cluster
        try:
            cluster.txn_offset_commit(self._identity, self._store.group, offsets)
        except UnknownTopicOrPartition:
            topics = {place.topic for place in offsets}
            gone = {topic for topic in topics if cluster.find_topic(topic) is None}
            if not gone:
                raise
            _log_left_out(gone, "deleted")
            self._commit_existing({p: o for p, o in offsets.items() if p.topic not in gone})


def _log_left_out(topics: AbstractSet[str], what: str) -> None:
    log.warning(
        "the offsets of %s are not committed: the topic was %s since the batch was planned",
        ", ".join(sorted(topics)),
        what,
    )


def write_entry(
    store: LedgerStore, identity: ProducerIdentity, entry: LedgerEntry, before: LedgerView
) -> LedgerView:
    """Writes an entry in the transaction of this identity, its only record in the topic.

    Returns the ledger after the commit.
    """
    place, value = next_place(store, before), encode_entry(entry)
    try:
        append_record(store.cluster, identity, place, value)
    except UnknownTopicOrPartition:
        # The topic was deleted. This query owns the id and has the entry, so nothing is lost.
        store.prepare()
        place = next_place(store, before)
        append_record(store.cluster, identity, place, value)
    except Refused as problem:
        raise refusal_of(store.topic, problem) from problem
    return LedgerView(place, entry)


def next_place(store: LedgerStore, before: LedgerView) -> TopicPartition:
    """The partition of the next record: that of the last one, so that an id has one record.

    Only a topic that was created again can have fewer partitions, and it has no record.
    """
    if before.place is not None and before.place.partition < store.partition_count:
        return before.place
    index = partition_of(store.transactional_id, store.partition_count)
    return TopicPartition(store.topic, index)


def append_record(
    cluster: Cluster, identity: ProducerIdentity, place: TopicPartition, value: bytes | None
) -> None:
    """Writes one ledger record; None is a tombstone. An identity writes once to a partition."""
    assert identity.transactional_id is not None
    record = build_batch(
        [Record(key=key_of(identity.transactional_id), value=value)],
        timestamp_ms=time.time_ns() // 1_000_000,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    with cluster.writer(identity) as writer:
        writer.write(place, record)
        writer.flush()
