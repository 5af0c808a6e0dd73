"""The checkpoint files of a cluster in one data directory, read together.

cluster.checkpoint       what the parent found at its start, for every partition
broker-<id>.checkpoint   what broker <id> has saved since then

While `cluster.checkpoint` exists, these files count, and Kafka's directory checkpoints only for the
metadata log, which the parent writes. Without it the files of the brokers are remains of a cluster
that has stopped, and do not count. So creating and removing that one file switches a directory from
one broker to several and back, and a crash at any point leaves one of the two.

Entries have the id of their topic. A file therefore need not be changed when a topic is deleted,
even if its broker is dead at that moment: that id is never asked for again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.base.seams import Disk
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.records.broker_checkpoint import (
    BrokerCheckpoint,
    PartitionEntry,
    TopicEntries,
    encode_broker_checkpoint,
    encode_topic,
    newest,
)

log = logging.getLogger(__name__)

CLUSTER: Final = "cluster.checkpoint"
_BROKER_FILE: Final = re.compile(r"broker-\d+\.checkpoint(\.next|\.tmp|\.next\.tmp)?")


class KnownPartition(NamedTuple):
    """A partition that exists, by the metadata log."""

    topic_id: bytes
    last_epoch: int
    """A clean close counts if it was in this leader epoch."""


def known_partitions(state: MetadataState) -> dict[TopicPartition, KnownPartition]:
    """Every partition, with the epoch in which it was last led."""
    return {
        TopicPartition(topic.name, index): KnownPartition(
            topic.topic_id, each.leader_epoch - (each.leader == NO_NODE)
        )
        for topic in state.topics.values()
        for index, each in enumerate(topic.partitions)
    }


def partitions_to_open(state: MetadataState) -> dict[TopicPartition, KnownPartition]:
    """Every partition, with the epoch before the one in which it will be opened first.

    Its leader, if it has one, opens it in the epoch of the state; otherwise the next one does.
    """
    return {
        TopicPartition(topic.name, index): KnownPartition(
            topic.topic_id, each.leader_epoch - (each.leader != NO_NODE)
        )
        for topic in state.topics.values()
        for index, each in enumerate(topic.partitions)
    }


def broker_file(broker_id: int) -> str:
    """The name of a broker's checkpoint."""
    return f"broker-{broker_id}.checkpoint"


def broker_files(disk: Disk, folder: str) -> list[str]:
    """The files of brokers in a directory, with those that a crash left half written."""
    return [name for name in disk.list_dir(folder) if _BROKER_FILE.fullmatch(name)]


def read_checkpoint(disk: Disk, folder: str, name: str) -> BrokerCheckpoint:
    """One file; an absent one is empty, and damage costs only what is damaged."""
    try:
        found = BrokerCheckpoint(disk.read_file(f"{folder}/{name}"))
    except FileNotFoundError:
        return BrokerCheckpoint()
    for problem in found.problems:
        log.warning(
            "%s/%s is damaged and ignored in part: %s. Logs are read from older points, and "
            "records that DeleteRecords removed may be readable again",
            folder,
            name,
            problem,
        )
    return found


class ClusterCheckpoints:
    """All files of a directory at one moment."""

    __slots__ = ("_files", "exists", "has_base")

    def __init__(
        self, base: BrokerCheckpoint | None = None, brokers: Sequence[BrokerCheckpoint] = ()
    ) -> None:
        self.exists = base is not None
        self.has_base = base is not None and base.is_readable
        """False if `cluster.checkpoint` is damaged: then Kafka's checkpoints are the base."""
        # Of two entries of one epoch, the one of a broker is newer.
        self._files = [] if base is None else [base, *brokers]

    @classmethod
    def read(cls, disk: Disk, folder: str) -> ClusterCheckpoints:
        """Reads what a cluster has left; empty if one broker used the directory last."""
        if not disk.exists(f"{folder}/{CLUSTER}"):
            return cls()
        names = [name for name in broker_files(disk, folder) if name.endswith(".checkpoint")]
        return cls(
            read_checkpoint(disk, folder, CLUSTER),
            [read_checkpoint(disk, folder, name) for name in names],
        )

    def entry(self, topic_id: bytes, partition: int) -> PartitionEntry | None:
        """The newest entry of a partition."""
        return newest([file.entry(topic_id, partition) for file in self._files])


def write_base(
    disk: Disk,
    folder: str,
    known: Mapping[TopicPartition, KnownPartition],
    entries: Mapping[TopicPartition, PartitionEntry],
) -> None:
    """Writes `cluster.checkpoint`, durably."""
    topics: dict[bytes, tuple[str, dict[int, PartitionEntry]]] = {}
    for name, entry in entries.items():
        found = topics.setdefault(known[name].topic_id, (name.topic, {}))
        found[1][name.partition] = entry
    blocks = [encode_topic(topic_id, TopicEntries(*each)) for topic_id, each in topics.items()]
    disk.write_file(f"{folder}/{CLUSTER}", encode_broker_checkpoint(blocks), sync=True)


def remove_files(disk: Disk, folder: str, names: Iterable[str]) -> None:
    """Removes files, durably."""
    for name in names:
        disk.remove(f"{folder}/{name}")
    disk.sync_dir(folder)
