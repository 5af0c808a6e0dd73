"""What follows from decisions about metadata for the partitions of this node: logs open, close and are reconfigured.

Each effect is done when the records behind it are durable. Whether this node leads a partition is asked of the state every
time: with several brokers, most partitions are somebody else's.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import CorruptError, StorageError
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, TopicPartition
from fencepost.broker.client_metrics import CLIENT_METRICS_SETTINGS
from fencepost.broker.config import TOPIC_SETTINGS, topic_log_config, warnings_of
from fencepost.broker.group_settings import GROUP_SETTINGS
from fencepost.coordinator.metadata.events import (
    LeadersChanged,
    PartitionsCreated,
    SettingsChanged,
    TopicRemoved,
)
from fencepost.records.metadata_log import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    CLUSTER_DEFAULT,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fencepost.broker.node import Node
    from fencepost.broker.setting import Setting
    from fencepost.coordinator.metadata.events import Effect
    from fencepost.coordinator.metadata.state import MetadataState
    from fencepost.log.config import LogConfig
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

RETRY_OPEN_MS: Final = 5_000
"""Pause before a partition that the disk refused is tried again: somebody has to make room first."""


OPENED_AT_ONCE: Final = 100
"""New logs that are opened in one turn of the loop, at about a millisecond each: others want to be served."""

_WARNED_OF: Final[Mapping[int, tuple[str, Mapping[str, Setting[Any]]]]] = {
    TOPIC_RESOURCE: ("topic", TOPIC_SETTINGS),
    GROUP_RESOURCE: ("group", GROUP_SETTINGS),
    CLIENT_METRICS_RESOURCE: ("client metrics", CLIENT_METRICS_SETTINGS),
}
"""Resources with settings that may have no effect: what they are called, and their tables."""


class MetadataEffects:
    """The hands of the controller."""

    def __init__(self, node: Node, state: MetadataState, changed: Callable[[], None]) -> None:
        self._node = node
        self._state: Final = state
        self._changed: Final = changed
        self._offline: set[TopicPartition] = set()
        self.announces = False
        """Whether coordinators hear of new partitions; at a start they look for themselves."""

    def run(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        """Does them in their order; many new logs are opened over several turns of the loop."""
        for position, effect in enumerate(effects):
            self._warn_of_settings(effect)
            if isinstance(effect, PartitionsCreated) and effect.partition_count > OPENED_AT_ONCE:
                self._open_by_and_by(effect, partial(self.run, effects[position + 1 :], done))
                return
            self._perform(effect)
        done()

    def _warn_of_settings(self, effect: Effect) -> None:
        """Whoever sets something that does nothing here can read of it in the log, once."""
        if isinstance(effect, PartitionsCreated) and effect.first_index == 0:
            resource = TOPIC_RESOURCE, effect.topic
        elif isinstance(effect, SettingsChanged) and effect.resource_type in _WARNED_OF:
            resource = effect.resource_type, effect.resource_name
        else:
            return
        what, table = _WARNED_OF[resource[0]]
        for warning in warnings_of(table, self._state.settings_of(*resource)):
            log.warning("%s %s: %s", what, resource[1], warning)

    def _open_by_and_by(self, effect: PartitionsCreated, then: Callable[[], None]) -> None:
        name, first, count = effect
        topic_id = self._state.topic_id(name)

        def step(start: int) -> None:
            end = min(start + OPENED_AT_ONCE, first + count)
            if self._state.topic_id(name) == topic_id:  # Else it was deleted meanwhile.
                self.open(name, range(start, end))
            if end < first + count:
                self._node.call_later(0, lambda: step(end))
            else:
                then()

        step(first)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case PartitionsCreated(topic, first, count):
                self.open(topic, range(first, first + count))
            case TopicRemoved(topic, count):
                self._remove(topic, count)
            case SettingsChanged(resource_type, name):
                self._reconfigure(resource_type, name)
            case LeadersChanged(partitions):
                self._take_epochs(partitions)

    def open(self, name: str, indexes: Iterable[int]) -> None:
        """Opens those that this node leads; one that the disk refuses is offline until it does not."""
        topic = self._state.topics.get(name)
        if topic is None:  # Deleted before its creation was durable.
            return
        config = self.log_config(name)
        for index in indexes:
            partition = topic.partitions[index]
            if partition.leader != self._node.node_id:
                continue
            tp = TopicPartition(name, index)
            try:
                opened = self._node.open_partition(
                    tp, topic.topic_id, partition.leader_epoch, config
                )
            except (OSError, StorageError) as problem:
                self._set_offline(tp, problem)
                continue
            self._announce(name, index, opened)
        self._changed()

    def _set_offline(self, name: TopicPartition, problem: Exception) -> None:
        log.error("%s stays offline: %s", name, problem)
        if isinstance(problem, CorruptError):
            return  # It will not get better by waiting.
        if not self._offline:
            self._node.call_later(RETRY_OPEN_MS, self._retry_open)
        self._offline.add(name)

    def _retry_open(self) -> None:
        offline, self._offline = self._offline, set()
        for name in sorted(offline):
            # The topic may be gone by now, or another of its name is there whose logs are open.
            if self._state.partition(*name) is not None and self._node.partition(*name) is None:
                self.open(name.topic, [name.partition])

    def _announce(self, name: str, index: int, partition: Partition) -> None:
        """A partition of an internal topic that was made just now has a coordinator from now on."""
        if name not in INTERNAL_TOPICS or not self.announces:
            return
        if name == CONSUMER_OFFSETS_TOPIC:
            self._node.groups.load(index, partition)
        else:
            self._node.transactions.load(index, partition)

    def _remove(self, name: str, count: int) -> None:
        for index in range(count):
            try:
                self._node.close_partition(TopicPartition(name, index), delete=True)
            except (OSError, StorageError) as problem:
                log.error("%s-%d is deleted, but its files stay: %s", name, index, problem)
        self._node.groups.on_topics_deleted([name])
        self._changed()

    def _take_epochs(self, partitions: Iterable[TopicPartition]) -> None:
        for name in partitions:
            opened = self._node.partition(*name)
            state = self._state.partition(*name)
            if opened is not None and state is not None:
                opened.bump_leader_epoch(state.leader_epoch)
        self._changed()

    def log_config(self, name: str) -> LogConfig:
        """The settings of a topic's logs."""
        return topic_log_config(self._node.config, self._state.settings_of(TOPIC_RESOURCE, name))

    def _reconfigure(self, resource_type: int, name: str) -> None:
        affected: list[str] = []
        if resource_type == TOPIC_RESOURCE:
            affected = [name]
        elif resource_type == BROKER_RESOURCE:
            self.settle_broker_settings()
            affected = list(self._state.topics)
        for topic in affected:
            config = self.log_config(topic)
            for index in range(self._state.partition_count(topic)):
                partition = self._node.partition(topic, index)
                if partition is not None:
                    partition.reconfigure(config)

    def settle_broker_settings(self) -> None:
        self._node.config.replace_dynamic(
            self._state.settings_of(BROKER_RESOURCE, CLUSTER_DEFAULT),
            self._state.settings_of(BROKER_RESOURCE, str(self._node.node_id)),
        )
