"""Reads the ledger of one transactional id, and asks the rule. `writer.py` writes its records."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition, topic_id_text
from fencepost.client.failures import Refused, UnknownTopicOrPartition
from fencepost.client.reading import EARLIEST
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger.entry import LedgerView, group_of
from fencepost.spark.ledger.reader import read_view
from fencepost.spark.ledger.rule import (
    NO_OVERRIDES,
    STREAM_SENTENCES,
    VERSION_SENTENCES,
    Batch,
    Decision,
    Overrides,
    decide,
    with_start,
)
from fencepost.spark.ledger.sources import NO_SOURCES, SourceUse
from fencepost.spark.ledger.topic import (
    LEDGER_TOPIC,
    ensure_topic,
    refusal_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from collections.abc import Set as AbstractSet

    from fencepost.client.blocking import Cluster
    from fencepost.client.options import ClientOptions
    from fencepost.spark.transaction.identity import DriverProducer


log = logging.getLogger(__name__)


class LedgerStore:
    """The ledger of one transactional id."""

    def __init__(
        self, options: ClientOptions, transactional_id: str, topic: str | None = None
    ) -> None:
        self.topic = topic or LEDGER_TOPIC
        self.group = group_of(transactional_id)
        self._options = options
        self.transactional_id = transactional_id
        self.partition_count = 0

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
        view = self.cluster.describe_transactions([self.transactional_id])[self.transactional_id]
        return None if view is None else view.state

    def prepare(self) -> None:
        """Creates or checks the topic at the start of a run; SinkRefused says what to do."""
        self.partition_count = len(ensure_topic(self.cluster, self.topic).partitions)

    def peek(self) -> LedgerView:
        """The ledger before the fence, while another producer may be writing to it."""
        return self._read(fenced=False)

    def read(self, producer: DriverProducer) -> LedgerView:
        """The ledger after the fence, which ended every transaction that could change it."""
        view = self._read(fenced=True)
        # A record without a marker: either the marker was compacted away, or a successor has fenced
        # us and is writing. Checked after the read: a successor that comes later has not written
        # what we have read.
        if not view.is_settled and not producer.is_owner():
            raise producer.fenced("The ledger will tell whether this batch is visible")
        return view._replace(undecided=())

    def _read(self, *, fenced: bool) -> LedgerView:
        # A broker with stale metadata, without the topic or a partition, does not mean that there
        # is no record.
        try:
            topic = self.cluster.metadata([self.topic]).topics[self.topic]
            self.partition_count = max(self.partition_count, len(topic.partitions))
            places = [TopicPartition(self.topic, index) for index in range(self.partition_count)]
            offline = {
                TopicPartition(self.topic, p.index) for p in topic.partitions if p.leader < 0
            }
            view = self._read_without(offline, places, fenced=fenced) if offline else None
            return view or self._view(places, fenced=fenced)
        except UnknownTopicOrPartition as problem:
            raise SinkRefused(
                f"topic {self.topic!r}, which holds the ledger, was just deleted: the sink cannot "
                "tell whether this batch is visible. Start the query again; the sink then says "
                "what to do"
            ) from problem
        except Refused as problem:
            raise refusal_of(self.topic, problem) from problem

    def _view(self, places: list[TopicPartition], *, fenced: bool) -> LedgerView:
        return read_view(self.cluster, self.transactional_id, places, fenced=fenced)

    def _read_without(
        self, offline: AbstractSet[TopicPartition], places: list[TopicPartition], *, fenced: bool
    ) -> LedgerView | None:
        """Reads the partitions that have a leader. None if the record may be in another one.

        An id has its record in one partition at a time, and every later record goes there
        (`next_place`). So once it is found, no other partition can have a newer one.
        """
        left = [place for place in places if place not in offline]
        view = self._view(left, fenced=fenced)
        names = ", ".join(str(place) for place in sorted(offline))
        if view.place is None:
            log.warning(
                "the ledger record of %r may be in %s, which has no leader: waiting for one",
                self.transactional_id,
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
        sources: SourceUse = NO_SOURCES,
        overrides: Overrides = NO_OVERRIDES,
    ) -> Decision:
        """What to do with the batch, given the ids and first offsets of its topics."""
        entry = view.entry
        batch = with_start(entry, batch)
        if entry is not None and entry.query_id != batch.query_id and sources.are_ours:
            batch = self._with_topics(batch, entry.sources or {})
        sentences = VERSION_SENTENCES if batch.is_version else STREAM_SENTENCES
        return decide(entry, batch, overrides, sentences)

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
        """The current ids of these topics. Brokers before Kafka 2.8 have none."""
        if not topics:
            return {}
        try:
            found = self.cluster.metadata(topics, missing_ok=True, known_missing=topics).topics
        except Refused as problem:
            log.debug("the ids of the source topics are not known: %s", problem)
            return {}
        return {
            view.name: topic_id_text(view.topic_id)
            for view in found.values()
            if view.topic_id != ZERO_TOPIC_ID
        }
