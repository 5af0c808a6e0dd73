"""Where partitions begin and end now, asked of the cluster, as the options want it."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError
from fencepost.base.ids import TopicPartition
from fencepost.client import reading
from fencepost.client.blocking import Cluster
from fencepost.client.failures import Refused
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import DataLost, RowRefused
from fencepost.spark.offsets import PartitionOffsets
from fencepost.spark.source_options import LATEST, Bound, SourceOptions

if TYPE_CHECKING:
    from fencepost.client.admin import TopicView

log = logging.getLogger(__name__)


class Positions:
    """Asks the cluster on behalf of one reader."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @property
    def cluster(self) -> Cluster:
        return cluster_of(self._options.client)

    def partitions(self) -> list[TopicPartition]:
        """The partitions that the options speak of and that exist now."""
        found = {
            TopicPartition(view.name, p.index) for view in self._topics() for p in view.partitions
        }
        assigned = self._options.assigned
        return sorted(found if assigned is None else found & set(assigned))

    def _topics(self) -> list[TopicView]:
        """By name, whatever is named; by pattern, all but the cluster's own. A pattern may match a part of a name."""
        options = self._options
        if options.pattern is not None:
            matches = re.compile(options.pattern).search
            views = self.cluster.metadata().topics.values()
            return [view for view in views if matches(view.name) and not view.is_internal]
        topics = options.topics or {tp.topic for tp in options.assigned or ()}
        with explaining():
            return list(self.cluster.metadata(sorted(topics)).topics.values())

    def earliest(self, partitions: Collection[TopicPartition]) -> PartitionOffsets:
        return self._at(dict.fromkeys(partitions, reading.EARLIEST))

    def latest(self, partitions: Collection[TopicPartition]) -> PartitionOffsets:
        """The end as this isolation sees it: with read_committed, the last stable offset."""
        return self._at(dict.fromkeys(partitions, reading.LATEST))

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> PartitionOffsets:
        """The end of everything, whether its transactions are decided or not."""
        times = dict.fromkeys(partitions, reading.LATEST)
        found = self.cluster.list_offsets(times, isolation="read_uncommitted") if times else {}
        return {tp: listed.offset for tp, listed in found.items()}

    def starting(self, partitions: list[TopicPartition] | None = None) -> PartitionOffsets:
        """Where the options want to begin: these partitions, or all that there are."""
        found = self.partitions() if partitions is None else partitions
        for absent in sorted(set(self._options.assigned or ()) - set(found)):
            log.warning("assign names %s, which does not exist: it is not read", absent)
        return self._resolve(self._options.starting, found, "startingOffsets")

    def ending(self, partitions: list[TopicPartition]) -> PartitionOffsets:
        """Where the options want to end."""
        return self._resolve(self._options.ending, partitions, "endingOffsets")

    def _at(self, times: Mapping[TopicPartition, int]) -> PartitionOffsets:
        if not times:
            return {}
        return {tp: listed.offset for tp, listed in self.cluster.list_offsets(times).items()}

    def _resolve(
        self, bound: Bound, partitions: list[TopicPartition], name: str
    ) -> PartitionOffsets:
        if bound.timestamp_ms is not None:
            times = dict.fromkeys(partitions, bound.timestamp_ms)
            return self._by_time(times, partitions, name)
        if bound.timestamps is not None:
            _require_all(bound.timestamps, partitions, f"{name}ByTimestamp")
            return self._by_time(bound.timestamps, partitions, name)
        if bound.offsets is not None:
            _require_all(bound.offsets, partitions, name)
            return self._by_offsets(bound.offsets)
        match bound.word:
            case "committed":
                return self._committed(partitions)
            case "earliest":
                return self.earliest(partitions)
            case _:
                assert bound.word == LATEST
                return self.latest(partitions)

    def _by_offsets(self, wanted: PartitionOffsets) -> PartitionOffsets:
        """Offsets as they are; -2 and -1 stand for earliest and latest."""
        special = self._at({tp: offset for tp, offset in wanted.items() if offset < 0})
        return {tp: special.get(tp, offset) for tp, offset in wanted.items()}

    def _by_time(
        self, times: Mapping[TopicPartition, int], partitions: list[TopicPartition], name: str
    ) -> PartitionOffsets:
        found = self._at({tp: times[tp] for tp in partitions})
        missing = sorted(tp for tp, offset in found.items() if offset < 0)
        if not missing:
            return found
        if name == "startingOffsets" and not self._options.latest_if_no_time_matches:
            raise ConfigError(
                f"no record of {missing[0]} is as new as {times[missing[0]]}: take an earlier time, or set "
                "startingOffsetsByTimestampStrategy to latest"
            )
        return found | self.latest(missing)

    def _committed(self, partitions: list[TopicPartition]) -> PartitionOffsets:
        group = self._options.group
        if group is None:
            raise ConfigError(
                'startingOffsets="committed" needs kafka.group.id: the group whose offsets to start from '
                "(fencepost-<transactional id> for the offsets that a TransactionalSink commits)"
            )
        committed = self.cluster.offset_fetch(group, partitions)
        found = {tp: value.offset for tp, value in committed.items()}
        return found | self.earliest([tp for tp in partitions if tp not in found])


def _require_all(
    given: Mapping[TopicPartition, int], partitions: list[TopicPartition], name: str
) -> None:
    """JSON must speak of exactly the partitions that are read: a forgotten one would be a silent hole."""
    missing = sorted(set(partitions) - given.keys())
    unknown = sorted(given.keys() - set(partitions))
    if missing:
        raise ConfigError(
            f"{name} says nothing about {missing[0]}: name every partition, -2 is earliest, -1 latest"
        )
    if unknown:
        raise ConfigError(
            f"{name} speaks of {unknown[0]}, which is not among the partitions that are read"
        )


@contextmanager
def explaining() -> Iterator[None]:
    """Turns a broker's refusal to let us read into what is to be granted."""
    try:
        yield
    except Refused as problem:
        if problem.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        raise RowRefused(
            f"{problem.about}: this user may not read the topic: grant READ on it"
        ) from problem


def report_loss(options: SourceOptions, sentence: str) -> None:
    """Records that should have been read are gone: an error, or a warning where failOnDataLoss is false."""
    if not options.fail_on_data_loss:
        log.warning("%s; going on, because failOnDataLoss is false", sentence)
        return
    raise DataLost(
        f"{sentence}. Some data may have been lost: they were deleted by the topic's retention or the topic was made anew "
        "before the query could read them. To go on without them, set failOnDataLoss to false"
    )
