"""Writes commit and abort markers to partitions: the second phase of two-phase commit.

`MarkerWriter.append` writes one marker to one partition that this node leads. Both the coordinator
here (`ending.py`) and that of another node (`arriving_markers.py`) use it. A marker on
`__consumer_offsets` also settles the pending offsets of the transaction, before `append` returns
(KAFKA-17507).

`MarkerWriter.send` sends a marker to another node, for the partitions that it leads. A marker is
sent once. Its sender hears of it when the node has answered, or when the node's process is dead and
can no longer serve it; only then may it send the marker again. In TV1 a late second copy would
end part of the producer's next transaction. The markers of one turn of the loop are requests of
their own that share a write on the link.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, NO_NODE, TopicPartition
from fencepost.base.refusal import Refusal
from fencepost.records.control import Marker
from fencepost.records.entry import Entry

if TYPE_CHECKING:
    from fencepost.broker.groups.coordinator import GroupCoordinator
    from fencepost.broker.partitions.local_partitions import LocalPartitions
    from fencepost.broker.peers import Done, Peers
    from fencepost.broker.runtime import Runtime
    from fencepost.coordinator.metadata.state import MetadataState
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

UNKNOWN_PARTITION: Final = Refusal(
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist."
)
NOT_LEADER: Final = Refusal(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, "This broker does not lead the partition."
)
_GROUPS_LOADING: Final = Refusal(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, "The group coordinator is loading the partition."
)


class LeaderPoints(NamedTuple):
    """The points of one commit or abort at a leader that another node sends its markers."""

    marker_received: str
    """Once per partition, as is the next one."""
    marker_written: str
    reply_ready: str


COMMIT_LEADER_POINTS: Final = LeaderPoints(
    "commit.marker-received", "commit.marker-written", "commit.reply-ready"
)
ABORT_LEADER_POINTS: Final = LeaderPoints(
    "abort.marker-received", "abort.marker-written", "abort.reply-ready"
)


@dataclass(slots=True, init=False)
class EndMarker:
    """The content of a marker, the same on each partition."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.commit = commit
        self.coordinator_epoch = coordinator_epoch
        self.transaction_version = transaction_version


Written = tuple["Partition", int]
"""The partition of a marker, and the high watermark from which on the marker is durable."""


class MarkerWriter:
    """Appends markers to the partitions that this node leads, and sends those of others."""

    def __init__(
        self,
        runtime: Runtime,
        partitions: LocalPartitions,
        metadata: MetadataState,
        groups: GroupCoordinator,
        peers: Peers,
        node_id: int = NO_NODE,
    ) -> None:
        self._runtime = runtime
        self._partitions = partitions
        self._metadata = metadata
        self._groups = groups
        self._node_id = node_id
        self._peers = peers

    def append(self, topic: str, index: int, marker: EndMarker) -> Written | Refusal:
        """Appends and applies one marker; the caller waits until it is durable."""
        partition = self._partitions.get(topic, index)
        if partition is None:
            if self._metadata.partition(topic, index) is None:
                return UNKNOWN_PARTITION
            return NOT_LEADER
        if topic == CONSUMER_OFFSETS_TOPIC and not self._groups.is_loaded(index):
            # The load of the group coordinator could miss a marker that arrives while it runs.
            return _GROUPS_LOADING
        try:
            end_offset = partition.append_marker(
                marker.producer_id,
                marker.producer_epoch,
                commit=marker.commit,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
                now_ms=self._runtime.clock.now_ms(),
            )
        except StorageError as problem:
            log.error("a marker could not be written to %s: %s", partition.name, problem)
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(problem))
        if isinstance(end_offset, Refusal):
            return end_offset
        if topic == CONSUMER_OFFSETS_TOPIC:
            self._settle_offsets(index, end_offset - 1, marker)
        return partition, end_offset

    def is_deleted(self, partition: Partition) -> bool:
        """Whether the topic of a partition was deleted; one with its name is another topic."""
        return self._metadata.topic_id(partition.name.topic) != partition.topic_id

    def other_leader(self, name: TopicPartition) -> int:
        """The other node that leads a partition; -1 if there is none, or this node does."""
        if not self._peers.is_cluster:
            return NO_NODE
        leader = self._metadata.leader(name[0], name[1])
        return NO_NODE if leader == self._node_id else leader

    def explain(self, name: TopicPartition, refusal: Refusal) -> ErrorCode:
        """The error for a coordinator on another node whose marker was refused here."""
        if refusal is NOT_LEADER and self._metadata.leader(*name) in (NO_NODE, self._node_id):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return refusal.error

    def send(self, leader: int, marker: EndMarker, names: list[TopicPartition], done: Done) -> None:
        """Sends a marker to partitions that another node leads, all with one request."""
        self._peers.write_marker(leader, marker, names, done)

    def _settle_offsets(self, index: int, offset: int, marker: EndMarker) -> None:
        outcome = Marker(marker.commit, marker.coordinator_epoch)
        entry = Entry(offset, marker.producer_id, marker.producer_epoch, True, None, None, outcome)
        self._groups.on_marker(index, entry)
