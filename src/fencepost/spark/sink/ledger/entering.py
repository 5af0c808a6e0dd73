"""How a batch is entered into its own transaction: the sources' offsets, then the ledger's record.

Theory of operation. The transaction holds everything or nothing, so the order of its requests is a
matter of speed only. The offsets go before the record and never beside it: two requests that add to
one transaction at the same time meet at the coordinator, and one of them has to come again.

Where tasks write the rows, both follow the rows (`finish`), and each waits for its answer. Where
the driver writes the rows itself, they cost nothing of their own:

    begin     the rows are here: the offsets are sent, and travel while the rows are packed
    settle    their answer has come
    seal      the record joins the rows in their Produce request, where one broker takes both
    sent      everything is acknowledged
    finish    what has not been done yet; the page that follows

The offsets are not sent before the rows are here: they open the transaction, and a plan that takes
an hour for ten rows would keep it open for an hour.

Offsets mean nothing on another topic of the same name. The group's commits carry no topic ids, so
the ids are compared here: with those that the batch was planned with, or else with those of the
entry before. The offsets of a topic that was replaced are left out, like those of a topic that is
gone. On the quick way the ids are asked for beside the commit; when they differ, the attempt is
aborted, and from then on this run asks first (`is_watchful`). A topic that is replaced between the
question and the commit is not noticed.
"""

from __future__ import annotations

import logging
import time
from functools import cached_property
from typing import TYPE_CHECKING

from fencepost.client.failures import UnknownTopicOrPartition
from fencepost.client.groups import CommittedOffset
from fencepost.spark.failures import SourceReplaced
from fencepost.spark.offsets import SourceOffsets, parse_all
from fencepost.spark.sink.ledger.former import moved_to
from fencepost.spark.sink.ledger.ledger import LedgerEntry, encode_entry, follow
from fencepost.spark.sink.ledger.record import sealed_record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from fencepost.base.ids import TopicPartition
    from fencepost.client.admin import ClusterView
    from fencepost.client.blocking import PendingCall
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.sink.ledger.keeper import LedgerKeeper
    from fencepost.spark.sink.ledger.ledger import Page
    from fencepost.spark.sink.micro_batch import MicroBatch
    from fencepost.spark.sink.origins import SourceUse

log = logging.getLogger(__name__)


class Entering:
    """The ledger's part of one attempt to write a batch."""

    def __init__(
        self,
        keeper: LedgerKeeper,
        identity: ProducerIdentity,
        micro_batch: MicroBatch,
        before: Page,
        *,
        sources: SourceUse,
        is_stateful: bool | None,
        parts: tuple[str, ...] | None,
    ) -> None:
        self._keeper = keeper
        self._identity = identity
        self._micro_batch = micro_batch
        self._before = before
        self._use = sources
        self._is_stateful = is_stateful
        self._parts = parts
        self._asked: PendingCall[ClusterView] | None = None
        self._commit: PendingCall[None] | None = None
        self._ids: dict[str, str] | None = None
        """The ids that the sources' topics have now; None before anybody asked."""
        self._is_committed = False
        self._page: Page | None = None
        self._is_sent = False
        self._opened_ms = 0
        self.place = keeper.place_after(before)
        """Where the record goes."""
        self.open_ms = 0
        """How long the transaction was open when its record was made."""

    @cached_property
    def _ended(self) -> SourceOffsets | None:
        return parse_all(self._micro_batch.end_offsets)

    # While the driver writes the rows.

    def begin(self) -> None:
        """Sends the offsets, without waiting for the answer: `settle` has to follow, whatever happens."""
        if self._keeper.is_watchful:
            return
        if self._topics:
            self._asked = self._keeper.begin_ids(self._topics)
        offsets = self._offsets()
        if offsets:
            self._note_opened()
            self._commit = self._keeper.cluster.begin_txn_offset_commit(
                self._identity, self._keeper.group, offsets
            )
        self._is_committed = True

    def settle(self) -> None:
        """Waits until the offsets are in the transaction."""
        asked, commit = self._asked, self._commit
        self._asked = self._commit = None
        try:
            if commit is not None:
                commit.finish()
        except UnknownTopicOrPartition:
            self._keeper.is_watchful = True
            raise
        finally:
            if asked is not None:
                self._ids = self._keeper.heard_ids(asked)
        if self._is_committed and commit is not None and (replaced := self._replaced()):
            self._keeper.is_watchful = True
            raise SourceReplaced(replaced)

    def seal(self, opened_ms: int) -> bytearray:
        """The record, for whoever brings it to `place` together with the rows; `opened_ms`: when they began."""
        assert self._page is None, "an identity writes one record"
        if not self._is_committed:
            self._commit_sources()
        entry = self._entry(opened_ms)
        self._page = self._keeper.page_after(self._before, self.place, entry)
        return sealed_record(self._identity, encode_entry(entry))

    def sent(self) -> None:
        """The record is acknowledged."""
        assert self._page is not None
        self._is_sent = True

    # In any case.

    def finish(self, opened_ms: int = 0) -> Page:
        """Everything that is not in the transaction yet: the page that follows.

        `opened_ms`: when the first row was sent.
        """
        if self._is_sent:
            assert self._page is not None
            return self._page
        if not self._is_committed:
            self._commit_sources()
        return self._keeper.write(self._identity, self._entry(opened_ms), self._before)

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
        return follow(self._before.entry, entry, self.open_ms)

    def _note_opened(self) -> None:
        self._opened_ms = self._opened_ms or time.time_ns() // 1_000_000

    # The sources.

    @property
    def _topics(self) -> AbstractSet[str]:
        """The sources' topics, where they are of this cluster."""
        ended = self._ended
        if ended is None or not self._use.are_ours:
            return frozenset()
        return {place.topic for place in ended.reached}

    def _topic_ids(self, ended: SourceOffsets) -> dict[str, str]:
        """What the entry says: our own source knows the ids that it has read; for another one those of now must do."""
        ids = {topic: text for topic, text in (self._ids or {}).items() if topic in self._topics}
        return {**ids, **ended.id_texts}

    def _replaced(self) -> set[str]:
        """Topics that are not the ones that the batch was planned with."""
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
        """One thing after the other: which topics are still the same, then their offsets."""
        self._ids = self._keeper.current_ids(self._topics)
        if replaced := self._replaced():
            self._keeper.is_watchful = True
            log.warning(
                "the offsets of %s are not committed: deleted and created again since the batch "
                "was planned",
                ", ".join(sorted(replaced)),
            )
        self._commit_existing(self._offsets(without=replaced))
        self._is_committed = True

    def _commit_existing(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Offsets of topics that are gone by now are left out: the checkpoint names them for ever, and no broker takes them.

        Whether the loss of such a topic ends the query is for its source to say.
        """
        if not offsets:
            return
        self._note_opened()
        cluster = self._keeper.cluster
        try:
            cluster.txn_offset_commit(self._identity, self._keeper.group, offsets)
        except UnknownTopicOrPartition:
            topics = {place.topic for place in offsets}
            gone = {topic for topic in topics if cluster.find_topic(topic) is None}
            if not gone:
                raise
            self._keeper.is_watchful = True
            log.warning(
                "the offsets of %s are not committed: deleted since the batch was planned",
                ", ".join(sorted(gone)),
            )
            self._commit_existing({p: o for p, o in offsets.items() if p.topic not in gone})

    def _offsets(
        self, without: AbstractSet[str] = frozenset()
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group commits: a source's offset takes the place of an old entry by itself, too."""
        former, ended = self._before.former, self._ended
        offsets: dict[TopicPartition, CommittedOffset] = {}
        if former is not None and former.entry is not None:
            offsets = dict.fromkeys(former.places, moved_to(self._keeper.topic))
        if ended is None or not self._use.commits:
            return offsets
        reached = {p: offset for p, offset in ended.offsets.items() if p.topic not in without}
        return offsets | {p: CommittedOffset(offset) for p, offset in reached.items()}
