"""Writes source offsets and the ledger record into the transaction of a batch.

Theory of operation. The transaction is atomic, so the order of its requests only affects speed. The
offsets go before the record, never in parallel: two concurrent requests that add to one transaction
collide at the coordinator, and one of them must be retried.

If tasks write the rows, both follow the rows (`finish`), and each waits for its answer. If the
driver writes the rows itself, they add no round trip:

    begin     the rows are collected: sends the offsets, which travel while the rows are packed
    settle    waits for their answer
    seal      the record joins the rows' Produce request, if one broker leads both partitions
    sent      everything is acknowledged
    finish    does what is left, and returns the ledger after the commit

The offsets are not sent before the rows are collected: they open the transaction, and a plan that
takes an hour for ten rows would keep it open for an hour.

Offsets mean nothing on another topic of the same name. A group's commits carry no topic ids, so
this module compares them: with those that the batch was planned with, or else with those of the
previous entry. The offsets of a replaced or deleted topic are left out. On the quick route the ids
are requested in parallel with the commit; if they differ, the attempt is aborted, and from then on
this run requests them first (`checks_ids_first`). A topic that is replaced between the request and
the commit is not detected.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from fencepost.client.failures import UnknownTopicOrPartition
from fencepost.client.groups import CommittedOffset
from fencepost.spark.failures import SourceReplaced
from fencepost.spark.offsets import SourceOffsets, parse_all
from fencepost.spark.sink.ledger.entry import LedgerEntry, encode_entry, next_entry
from fencepost.spark.sink.ledger.legacy import moved_to
from fencepost.spark.sink.ledger.record import sealed_record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from fencepost.base.ids import TopicPartition
    from fencepost.client.admin import ClusterView
    from fencepost.client.blocking import PendingCall
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.sink.batch.micro_batch import MicroBatch
    from fencepost.spark.sink.batch.origins import SourceUse
    from fencepost.spark.sink.ledger.entry import LedgerView
    from fencepost.spark.sink.ledger.store import LedgerStore

log = logging.getLogger(__name__)


class EntryWriter:
    """The ledger's part of one attempt to write a batch."""

    def __init__(
        self,
        store: LedgerStore,
        identity: ProducerIdentity,
        micro_batch: MicroBatch,
        before: LedgerView,
        *,
        sources: SourceUse,
        is_stateful: bool | None,
        parts: tuple[str, ...] | None,
    ) -> None:
        self._store = store
        self._identity = identity
        self._micro_batch = micro_batch
        self._before = before
        self._use = sources
        self._is_stateful = is_stateful
        self._parts = parts
        self._asked: PendingCall[ClusterView] | None = None
        self._commit: PendingCall[None] | None = None
        self._ids: dict[str, str] | None = None
        """The current ids of the source topics; None before they were requested."""
        self._is_committed = False
        self._view: LedgerView | None = None
        self._is_sent = False
        self._opened_ms = 0
        self.place = store.next_place(before)
        """The partition of the record."""
        self.open_ms = 0
        """How long the transaction was open when its record was built."""

    @cached_property
    def _ended(self) -> SourceOffsets | None:
        return parse_all(self._micro_batch.end_offsets)

    # If the driver writes the rows.

    def begin(self) -> None:
        """Sends the offsets without waiting for the answer. `settle` must follow in any case."""
        if self._store.checks_ids_first:
            return
        if self._topics:
            self._asked = self._store.begin_ids(self._topics)
        offsets = self._offsets()
        if offsets:
            self._mark_opened()
            self._commit = self._store.cluster.begin_txn_offset_commit(
                self._identity, self._store.group, offsets
            )
        self._is_committed = True

    def settle(self) -> None:
        """Waits until the offsets are in the transaction. Finishes both requests in any case."""
        asked, commit = self._asked, self._commit
        self._asked = self._commit = None
        try:
            if commit is not None:
                commit.finish()
        except BaseException as problem:
            if isinstance(problem, UnknownTopicOrPartition):
                self._store.checks_ids_first = True
            if asked is not None:
                with suppress(Exception):  # The commit's failure decides what happens next.
                    self._store.finish_ids(asked)
            raise
        if asked is not None:
            self._ids = self._store.finish_ids(asked)
        if self._is_committed and commit is not None and (replaced := self._replaced()):
            self._store.checks_ids_first = True
            raise SourceReplaced(replaced)

    def seal(self, opened_ms: int) -> bytearray:
        """The record, to be sent to `place` with the rows. `opened_ms`: see `finish`."""
        assert self._view is None, "an identity writes one record"
        if not self._is_committed:
            self._commit_sources()
        entry = self._entry(opened_ms)
        self._view = self._store.view_after(self._before, self.place, entry)
        return sealed_record(self._identity, encode_entry(entry))

    def sent(self) -> None:
        """Marks the record as acknowledged."""
        assert self._view is not None
        self._is_sent = True

    # In any case.

    def finish(self, opened_ms: int = 0) -> LedgerView:
        """Adds what is not in the transaction yet, and returns the ledger after the commit.

        `opened_ms`: when the first row was sent.
        """
        if self._is_sent:
            assert self._view is not None
            return self._view
        if not self._is_committed:
            self._commit_sources()
        return self._store.write(self._identity, self._entry(opened_ms), self._before)

    def _entry(self, opened_ms: int) -> LedgerEntry:
        now_ms = time.time_ns() // 1_000_000
        opened_ms = min((at for at in (opened_ms, self._opened_ms) if at), default=now_ms)
        self.open_ms = max(0, now_ms - opened_ms)
        micro_batch, ended = self._micro_batch, self._ended
        entry = LedgerEntry(
            micro_batch.query_id,
            micro_batch.batch_id,
            micro_batch.fingerprint,
            sources=None if ended is None else ended.reached,
            topic_ids={} if ended is None else self._topic_ids(ended),
            sources_committed=self._use.commits and ended is not None,
            is_stateful=self._is_stateful,
            parts=self._parts,
            run_id=micro_batch.run_id,
        )
        return next_entry(self._before.entry, entry, self.open_ms)

    def _mark_opened(self) -> None:
        self._opened_ms = self._opened_ms or time.time_ns() // 1_000_000

    # The sources.

    @property
    def _topics(self) -> AbstractSet[str]:
        """The source topics, if they are in this cluster."""
        ended = self._ended
        if ended is None or not self._use.are_ours:
            return frozenset()
        return {place.topic for place in ended.reached}

    def _topic_ids(self, ended: SourceOffsets) -> dict[str, str]:
        """The ids for the entry: those that our own source has read, else the current ones."""
        ids = {topic: text for topic, text in (self._ids or {}).items() if topic in self._topics}
        return {**ids, **ended.id_texts}

    def _replaced(self) -> set[str]:
        """Topics that were replaced since the batch was planned."""
        before, ended = self._before.entry, self._ended
        planned: dict[str, str] = {}
        if before is not None and before.query_id == self._micro_batch.query_id:
            planned.update(before.topic_ids)
        if ended is not None:
            planned.update(ended.id_texts)
        now = self._ids or {}
        both = self._topics & planned.keys() & now.keys()
        return {topic for topic in both if planned[topic] != now[topic]}

    def _commit_sources(self) -> None:
        """Compares the topic ids first, then commits the offsets."""
        self._ids = self._store.current_ids(self._topics)
        if replaced := self._replaced():
            self._store.checks_ids_first = True
            log.warning(
                "the offsets of %s are not committed: the topic was deleted and created again "
                "since the batch was planned",
                ", ".join(sorted(replaced)),
            )
        self._commit_existing(self._offsets(without=replaced))
        self._is_committed = True

    def _commit_existing(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commits the offsets of topics that still exist; brokers do not accept the others.

        The source decides whether the loss of a topic ends the query.
        """
        if not offsets:
            return
        self._mark_opened()
        cluster = self._store.cluster
        try:
            cluster.txn_offset_commit(self._identity, self._store.group, offsets)
        except UnknownTopicOrPartition:
            topics = {place.topic for place in offsets}
            gone = {topic for topic in topics if cluster.find_topic(topic) is None}
            if not gone:
                raise
            self._store.checks_ids_first = True
            log.warning(
                "the offsets of %s are not committed: the topic was deleted since the batch was "
                "planned",
                ", ".join(sorted(gone)),
            )
            self._commit_existing({p: o for p, o in offsets.items() if p.topic not in gone})

    def _offsets(
        self, without: AbstractSet[str] = frozenset()
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets to commit. A source offset also replaces a legacy entry in its place."""
        legacy, ended = self._before.legacy, self._ended
        offsets: dict[TopicPartition, CommittedOffset] = {}
        if legacy is not None and legacy.entry is not None:
            offsets = dict.fromkeys(legacy.places, moved_to(self._store.topic))
        if ended is None or not self._use.commits:
            return offsets
        reached = {p: offset for p, offset in ended.offsets.items() if p.topic not in without}
        return offsets | {p: CommittedOffset(offset) for p, offset in reached.items()}
