"""Where partitions begin and end now, and which offsets the options mean."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError
from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition
from fencepost.client import reading
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster
from fencepost.client.failures import Refused, UnknownTopicOrPartition
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import DataLost, RowRefused
from fencepost.spark.ledger.topic import LEDGER_TOPIC
from fencepost.spark.offsets import PartitionOffsets
from fencepost.spark.source.options import COMMITTED, EARLIEST, LATEST, Bound, SourceOptions
from fencepost.spark.source.ranges import OffsetRange

if TYPE_CHECKING:
    from fencepost.client.admin import TopicView
    from fencepost.client.fetched import FetchedPartition

T = TypeVar("T")

_CREATE: Final = (
    "create it, correct the name, or set createTopics=N to try it out with N partitions"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The partitions that the options name and that exist now."""

    partitions: list[TopicPartition]
    topic_ids: dict[str, bytes]
    """Without topics that have no id: brokers before Kafka 2.8 have none."""
    missing: frozenset[str] = frozenset()
    """Topics that the options name but that do not exist."""

    def range_of(self, tp: TopicPartition, start: int, end: int) -> OffsetRange:
        """A range of offsets of the topic that has this name now."""
        return OffsetRange(tp, start, end, self.topic_ids.get(tp.topic))


class Positions:
    """Requests offsets from the cluster for one reader."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @property
    def cluster(self) -> Cluster:
        """The cluster of the source."""
        return cluster_of(self._options.client)

    def subscribed(
        self, known: Collection[str] = (), known_missing: Collection[str] = ()
    ) -> Subscribed:
        """The partitions that the options name and that exist now.

        `known` are topics that were read before: if one of those is missing, data is lost, and the
        planning of a batch without it reports that. `known_missing` are topics that were missing
        before, which need no second warning.
        """
        options = self._options
        if options.pattern is not None:
            views, missing = self._matching(options.pattern), frozenset[str]()
        else:
            views, missing = self._named(known, known_missing)
        for topic in sorted(missing - set(known_missing)):
            if topic not in known:
                _report_missing(options, topic)
            elif options.fail_on_data_loss:
                report_loss(options, f"topic {topic!r} no longer exists")
        if missing and not views and not known:
            raise ConfigError(
                f"none of the topics exists at {_servers(options)}: {', '.join(sorted(missing))}. "
                f"C{_CREATE[1:]}"
            )
        found = {TopicPartition(view.name, p.index) for view in views for p in view.partitions}
        if options.assigned is not None:
            found &= set(options.assigned)
        ids = {view.name: view.topic_id for view in views if view.topic_id != ZERO_TOPIC_ID}
        return Subscribed(sorted(found), ids, missing)

    def _matching(self, pattern: str) -> list[TopicView]:
        """All topics that match, even in part, but internal ones and the ledger's."""
        matches = re.compile(pattern).search
        views = self.cluster.metadata().topics.values()
        return [
            view
            for view in views
            # A query that reads its own ledger would never end: each batch adds a record.
            if matches(view.name) and not view.is_internal and view.name != LEDGER_TOPIC
        ]

    def _named(
        self, known: Collection[str], known_missing: Collection[str]
    ) -> tuple[list[TopicView], frozenset[str]]:
        options = self._options
        topics = frozenset(options.topics or {tp.topic for tp in options.assigned or ()})
        with _explaining():
            found = self.cluster.metadata(
                sorted(topics), missing_ok=True, known_missing=known_missing
            ).topics
            if absent := topics - found.keys() - set(known):
                found = {**found, **self._create(absent)}
        return list(found.values()), topics - found.keys()

    def _create(self, topics: Collection[str]) -> Mapping[str, TopicView]:
        """Creates topics that were never read, if the user has asked for it."""
        partitions = self._options.create_topics
        if partitions is None:
            return {}
        self.cluster.create_topics(
            [NewTopic(topic, partitions) for topic in sorted(topics)], exist_ok=True
        )
        for topic in sorted(topics):
            log.warning(
                "topic %r did not exist: createTopics has created it with %d partitions",
                topic,
                partitions,
            )
        return self.cluster.metadata(sorted(topics)).topics

    def ask_existing(
        self,
        ask: Callable[[Subscribed], T],
        known: Collection[str] = (),
        known_missing: Collection[str] = (),
    ) -> tuple[Subscribed, T]:
        """What exists, and the result of `ask` for it; retried if a topic is deleted in between."""
        found = self.subscribed(known, known_missing)
        while True:
            try:
                return found, ask(found)
            except UnknownTopicOrPartition:
                again = self.subscribed(known, known_missing)
                if again.partitions == found.partitions:
                    raise
                found = again

    def earliest(self, partitions: Collection[TopicPartition]) -> PartitionOffsets:
        """The first offset of each partition."""
        return self._at(dict.fromkeys(partitions, reading.EARLIEST))

    def latest(self, partitions: Collection[TopicPartition]) -> PartitionOffsets:
        """The end for this isolation level: with read_committed, the last stable offset."""
        return self._at(dict.fromkeys(partitions, reading.LATEST))

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> PartitionOffsets:
        """The end of the log, open transactions included."""
        return self._at(dict.fromkeys(partitions, reading.LATEST), "read_uncommitted")

    def starting(self, found: Subscribed) -> PartitionOffsets:
        """Where the options begin."""
        for absent in sorted(set(self._options.assigned or ()) - set(found.partitions)):
            log.warning("assign names %s, which does not exist: it is not read", absent)
        return self._resolve(self._options.starting, found, "startingOffsets")

    def ending(self, found: Subscribed) -> PartitionOffsets:
        """Where the options end; records up to there must exist already."""
        wanted = self._resolve(self._options.ending, found, "endingOffsets")
        if self._options.ending.offsets is None:
            return wanted
        latest = self.latest(found.partitions)
        for tp in sorted(tp for tp in wanted if wanted[tp] > latest[tp]):
            sentence = self._explain_short(tp, wanted[tp], latest[tp])
            if self._options.fail_on_data_loss:
                raise ConfigError(
                    f"{sentence}. Use -1 for the end, or set failOnDataLoss to false to read "
                    "what is there"
                )
            log.warning("%s; reading what is there, because failOnDataLoss is false", sentence)
        return {tp: min(offset, latest[tp]) for tp, offset in wanted.items()}

    def _explain_short(self, tp: TopicPartition, wanted: int, latest: int) -> str:
        written = self.high_watermarks([tp])[tp]
        if wanted <= written:
            return (
                f"endingOffsets of {tp} is {wanted}, and an open transaction hides the records "
                f"from offset {latest} on until it ends (fencepost txn list shows whose it is)"
            )
        return f"endingOffsets of {tp} is {wanted}, and the partition ends at {written}"

    def _at(
        self, times: Mapping[TopicPartition, int], isolation: str | None = None
    ) -> PartitionOffsets:
        found = self.cluster.list_offsets(times, isolation=isolation) if times else {}
        return {tp: listed.offset for tp, listed in found.items()}

    def _resolve(self, bound: Bound, found: Subscribed, name: str) -> PartitionOffsets:
        partitions = found.partitions
        if bound.timestamp_ms is not None:
            return self._by_time(dict.fromkeys(partitions, bound.timestamp_ms), name)
        if bound.timestamps is not None:
            _require_all(bound.timestamps, found, f"{name}ByTimestamp")
            return self._by_time({tp: bound.timestamps[tp] for tp in partitions}, name)
        if bound.offsets is not None:
            _require_all(bound.offsets, found, name)
            wanted = {tp: bound.offsets[tp] for tp in partitions}
            # -2 and -1 mean in ListOffsets what they mean here.
            return wanted | self._at({tp: offset for tp, offset in wanted.items() if offset < 0})
        ask = {COMMITTED: self._committed, EARLIEST: self.earliest, LATEST: self.latest}
        assert bound.word is not None
        return ask[bound.word](partitions)

    def _by_time(self, times: Mapping[TopicPartition, int], name: str) -> PartitionOffsets:
        found = self._at(times)
        missing = sorted(tp for tp, offset in found.items() if offset < 0)
        if not missing:
            return found
        if name == "startingOffsets" and not self._options.latest_if_no_time_matches:
            raise ConfigError(
                f"no record of {missing[0]} is as new as {times[missing[0]]}: use an earlier "
                "time, or set startingOffsetsByTimestampStrategy to latest"
            )
        return found | self.latest(missing)

    def _committed(self, partitions: Collection[TopicPartition]) -> PartitionOffsets:
        group = self._options.group
        if group is None:
            raise ConfigError(
                'startingOffsets="committed" needs kafka.group.id: the group whose offsets to '
                "start from (fencepost-<transactional id> for those that a TransactionalSink "
                "commits)"
            )
        committed = self.cluster.offset_fetch(group, partitions)
        found = {tp: value.offset for tp, value in committed.items()}
        return found | self.earliest([tp for tp in partitions if tp not in found])


def check_deleted(
    options: SourceOptions, positions: Positions, ranges: Sequence[OffsetRange]
) -> None:
    """Reports, before any task runs, ranges whose first records were deleted.

    If the user accepts that, tasks skip them.
    """
    if not options.fail_on_data_loss:
        return
    try:
        earliest = positions.earliest([wanted.partition for wanted in ranges])
    except UnknownTopicOrPartition:
        return  # The tasks report it.
    for wanted in ranges:
        if wanted.start < earliest[wanted.partition]:
            report_deleted(options, wanted.partition, wanted.start, earliest[wanted.partition])


def report_deleted(options: SourceOptions, tp: TopicPartition, wanted: int, first: int) -> None:
    """Reports records that are no longer in the log."""
    report_loss(options, f"{tp} is to be read from offset {wanted}, and its log begins at {first}")


def _require_all(given: Mapping[TopicPartition, int], found: Subscribed, name: str) -> None:
    """JSON must name exactly the partitions that are read: a forgotten one would be a silent gap.

    It may name missing topics, which are left out with a warning.
    """
    missing = sorted(set(found.partitions) - given.keys())
    unknown = sorted(
        tp for tp in given.keys() - set(found.partitions) if tp.topic not in found.missing
    )
    if missing:
        raise ConfigError(
            f"{name} says nothing about {missing[0]}: name every partition, -2 is earliest, -1 "
            "latest"
        )
    if unknown:
        raise ConfigError(
            f"{name} names {unknown[0]}, which is not among the partitions that are read"
        )


def fetch_partition(
    cluster: Cluster, tp: TopicPartition, position: int, topic_id: bytes | None, **how: Any
) -> FetchedPartition:
    """The answer to one Fetch of one partition, of the topic that has this id."""
    ids = None if topic_id is None else {tp.topic: topic_id}
    with _explaining():
        return cluster.fetch({tp: position}, topic_ids=ids, **how)[tp]


@contextmanager
def _explaining() -> Iterator[None]:
    """Turns a broker's refusal to let us read into a message that says what to grant."""
    try:
        yield
    except Refused as problem:
        if problem.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        raise RowRefused(
            f"{problem.about}: this user may not read the topic: grant READ on it"
        ) from problem


def _report_missing(options: SourceOptions, topic: str) -> None:
    """Reports a topic that never existed: most likely a wrong name."""
    if options.fail_on_data_loss:
        raise ConfigError(
            f"topic {topic!r} does not exist at {_servers(options)}: {_CREATE}. With "
            "failOnDataLoss=false a topic that is missing is left out"
        )
    log.warning(
        "topic %r does not exist; going on without it, because failOnDataLoss is false", topic
    )


def _servers(options: SourceOptions) -> str:
    return ",".join(map(str, options.client.bootstrap))


def report_loss(options: SourceOptions, sentence: str) -> None:
    """Reports lost records: raises, or only warns if failOnDataLoss is false."""
    if not options.fail_on_data_loss:
        log.warning("%s; going on, because failOnDataLoss is false", sentence)
        return
    raise DataLost(
        f"{sentence}. Some data may have been lost: they were deleted by the topic's retention or "
        "the topic was created again before the query could read them. To go on without them, set "
        "failOnDataLoss to false"
    )
