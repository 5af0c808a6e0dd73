"""The two coordinators of a broker, found by the internal topic that is the log of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.broker.groups.coordinator import GroupCoordinator
from fencepost.broker.partitions.local_partitions import LocalPartitions
from fencepost.broker.transactions.coordinator import TransactionCoordinator
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.partition.partition import Partition


class Coordinators:
    """Loads the group and the transaction coordinator from the partitions of this broker."""

    def __init__(
        self,
        metadata: MetadataState,
        partitions: LocalPartitions,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self.groups: Final = groups
        self.transactions: Final = transactions
        self._by_topic: Final[Mapping[str, GroupCoordinator | TransactionCoordinator]] = {
            CONSUMER_OFFSETS_TOPIC: groups,
            TRANSACTION_STATE_TOPIC: transactions,
        }
        self._is_started = False
        self.moves: Final[dict[str, int]] = dict.fromkeys(self._by_topic, 0)
        """How many coordinator partitions this broker has taken over from another, by topic."""

    def logs(self) -> Iterator[Partition]:
        """The open partitions of the internal topics."""
        for topic in self._by_topic:
            for index in range(self._metadata.partition_count(topic)):
                partition = self._partitions.get(topic, index)
                if partition is not None:
                    yield partition

    def unopened(self) -> list[TopicPartition]:
        """The partitions of the internal topics that are not open."""
        return [
            TopicPartition(topic, index)
            for topic in self._by_topic
            for index in range(self._metadata.partition_count(topic))
            if self._partitions.get(topic, index) is None
        ]

    def load_all(self, *, held: bool = False) -> None:
        """Loads groups and transactions from the internal topics, if these exist.

        With `held` all of them are loaded when this returns, and nothing that was found is
        finished.
        """
        self._is_started = True
        for partition in self.logs():
            self._load(partition, held=held)

    def opened(self, partition: Partition) -> None:
        """Loads the coordinator of a newly opened partition; at a start, `load_all` does."""
        if self._is_started and partition.name.topic in self._by_topic:
            self._load(partition, held=False)

    def moved_here(self, topic: str) -> None:
        """Counts a partition that another broker led until now."""
        if topic in self._by_topic:
            self.moves[topic] += 1

    def closing(self, name: TopicPartition) -> None:
        """Stops serving the coordinator of a partition that is about to be closed."""
        if name.topic in self._by_topic:
            self._by_topic[name.topic].unload(name.partition)

    def _load(self, partition: Partition, *, held: bool) -> None:
        topic, index = partition.name
        self._by_topic[topic].load(index, partition, held=held)
