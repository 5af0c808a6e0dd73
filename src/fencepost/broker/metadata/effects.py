"""The effects of the metadata log on this broker: its partitions are opened, deleted, reconfigured.

Each effect is carried out when its records are durable. Only partitions that this broker leads are
opened: when they are created, or when it becomes their leader.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import CorruptError, StorageError, SyncError
from fencepost.base.ids import TopicPartition
from fencepost.broker.settings.client_metrics import CLIENT_METRICS_SETTINGS
from fencepost.broker.settings.config import TOPIC_SETTINGS, topic_log_config, warnings_of
from fencepost.broker.settings.groups import GROUP_SETTINGS
from fencepost.broker.turns import Turn
from fencepost.coordinator.metadata.effects import (
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
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fencepost.broker.coordinators import Coordinators
    from fencepost.broker.groups.coordinator import GroupCoordinator
    from fencepost.broker.local_partitions import LocalPartitions
    from fencepost.broker.metadata.follower import MetadataFollower
    from fencepost.broker.runtime import Runtime
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.settings.kinds import Setting
    from fencepost.broker.storage.partition_store import PartitionStore
    from fencepost.coordinator.metadata.effects import Effect, PartitionChange
    from fencepost.coordinator.metadata.state import Topic
    from fencepost.log.config import LogConfig

log = logging.getLogger(__name__)

RETRY_OPEN_MS: Final = 5_000
"""Pause before a partition that could not be opened is tried again, as on a full disk."""

AT_ONCE: Final = 100
"""Partitions that are opened or closed in the first turn of the loop, at about 10 microseconds
each: internal topics are needed at once. For the others, turns end by time."""
AT_ONCE_SYNCED: Final = 5
"""The same in `fsync` mode, where each of them is synced."""

_WARNED_OF: Final[Mapping[int, tuple[str, Mapping[str, Setting[Any]]]]] = {
    TOPIC_RESOURCE: ("topic", TOPIC_SETTINGS),
    GROUP_RESOURCE: ("group", GROUP_SETTINGS),
    CLIENT_METRICS_RESOURCE: ("client metrics", CLIENT_METRICS_SETTINGS),
}
"""Resources with settings that may have no effect: their names in the log, and their tables."""


class MetadataEffects:
    """Carries out what the controller has decided."""

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        follower: MetadataFollower,
        store: PartitionStore,
        partitions: LocalPartitions,
        groups: GroupCoordinator,
        coordinators: Coordinators,
        on_fatal: Callable[[str], None],
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._node_id: Final = config.node_id
        self._state: Final = follower.state
        self._changed: Final = follower.partitions_changed
        self._store = store
        self._partitions = partitions
        self._groups = groups
        self._coordinators = coordinators
        self._on_fatal = on_fatal
        self._offline: set[TopicPartition] = set()
        self._until_restart: set[TopicPartition] = set()
        """Partitions that could not be opened at a start that compares all logs."""
        self._compares_logs = False
        self._stopped = False
        self._last_config: tuple[str, LogConfig] | None = None

    # -- start and stop ---------------------------------------------------------------------------

    def open_all(self, *, compares_logs: bool = False) -> None:
        """Opens every partition that this broker leads, under the settings that the log has.

        With `compares_logs` the start compares all logs before it serves any. A partition that
        cannot be opened misses that, and stays offline until the next start.
        """
        self._apply_broker_settings()
        self._compares_logs = compares_logs
        for topic in self._state.topics.values():
            self._open(topic, range(len(topic.partitions)))
        self._compares_logs = False

    def logged_epochs(self) -> list[tuple[TopicPartition, int]]:
        """The newest leader epoch in the log of every open partition."""
        found = []
        for topic in self._state.topics.values():
            for index in range(len(topic.partitions)):
                opened = self._partitions.get(topic.name, index)
                if opened is not None:
                    found.append((opened.name, opened.log.epochs.latest))
        return found

    def stop(self) -> None:
        """Opens and closes nothing from now on."""
        self._stopped = True

    # -- the effects of a batch -------------------------------------------------------------------

    def run(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        """Carries the effects out in their order; many partitions take several turns."""
        if any(isinstance(effect, TopicRemoved) for effect in effects):
            # Committed offsets must be gone, or a new topic of that name would inherit them.
            done = partial(self._groups.when_durable, done)
        self._go_on(self._steps(effects), done)

    def _go_on(self, steps: Iterator[None], done: Callable[[], None]) -> None:
        for _ in steps:
            # After a stop, the next start does the rest: the records are durable.
            self._runtime.call_later(0, lambda: None if self._stopped else self._go_on(steps, done))
            return
        done()

    def _steps(self, effects: Sequence[Effect]) -> Iterator[None]:
        """Yields before each turn of the loop but the first."""
        certain = AT_ONCE_SYNCED if self._partitions.fsync else AT_ONCE
        turn = Turn()
        for effect in effects:
            self._warn_of_settings(effect)
            for work in self._works(effect):
                if certain <= 0 and turn.is_over():
                    yield
                    turn = Turn()
                certain -= 1
                work()

    def _works(self, effect: Effect) -> Iterator[Callable[[], None]]:
        """The work of an effect, one partition at a time if it concerns many."""
        match effect:
            case PartitionsCreated(topic, first, count, topic_id):
                if first == 0:
                    self._groups.on_topic_created(topic)
                found = self._state.topics.get(topic)
                # Otherwise it was deleted meanwhile.
                if found is not None and found.topic_id == topic_id:
                    yield from self._openings(found, range(first, first + count))
            case TopicRemoved(topic, count):
                self._last_config = None  # A new topic of this name may have other settings.
                for index in range(count):
                    yield partial(self._remove, TopicPartition(topic, index))
                yield from self._groups.forgetting([topic])
            case SettingsChanged(resource_type, name):
                yield from self._reconfigurations(resource_type, name)
            case LeadersChanged(changes):
                yield partial(self._take_epochs, changes)
                for change in changes:
                    if change.opens_at(self._node_id):
                        yield partial(self._open_changed, change)

    def _warn_of_settings(self, effect: Effect) -> None:
        """Logs a warning for settings that have no effect in this broker."""
        if isinstance(effect, PartitionsCreated) and effect.first_index == 0:
            resource = TOPIC_RESOURCE, effect.topic
        elif isinstance(effect, SettingsChanged) and effect.resource_type in _WARNED_OF:
            resource = effect.resource_type, effect.resource_name
        else:
            return
        what, table = _WARNED_OF[resource[0]]
        for warning in warnings_of(table, self._state.settings_of(*resource)):
            log.warning("%s %s: %s", what, resource[1], warning)

    # -- open and delete --------------------------------------------------------------------------

    @property
    def has_offline(self) -> bool:
        """Whether a partition could not be opened and will be tried again, maybe at a start."""
        return bool(self._offline or self._until_restart)

    def _open(self, topic: Topic, indexes: Iterable[int]) -> None:
        """Opens the partitions that this broker leads; retries those that fail later."""
        for opening in self._openings(topic, indexes):
            opening()

    def _openings(self, topic: Topic, indexes: Iterable[int]) -> Iterator[Callable[[], None]]:
        for index in indexes:
            yield partial(self._open_one, topic, index)

    def _open_one(self, topic: Topic, index: int) -> None:
        if self._state.topics.get(topic.name) is not topic:
            return  # Deleted meanwhile; a new topic of this name is opened by its own effect.
        partition = topic.partitions[index]
        name = TopicPartition(topic.name, index)
        if partition.leader != self._node_id or self._partitions.get(*name) is not None:
            return
        try:
            opened = self._store.open(
                name, topic.topic_id, partition.leader_epoch, self._log_config(topic.name)
            )
        except SyncError as problem:
            self._on_fatal(f"{problem}; what the disk holds is unknown, stopping")
        except (OSError, StorageError) as problem:
            self._set_offline(name, problem)
        else:
            self._coordinators.opened(opened)
        self._changed(topic.name)

    def _open_changed(self, change: PartitionChange) -> None:
        topic = self._state.topics_by_id.get(change.topic_id)
        if topic is not None:  # Otherwise it was deleted meanwhile.
            self._open_one(topic, change.partition)

    def _set_offline(self, name: TopicPartition, problem: Exception) -> None:
        if self._compares_logs:
            log.error(
                "%s is offline until the next start: %s. After a loss of power its transactions "
                "have to be compared with the other logs before it is served; start again when "
                "the disk can be read",
                name,
                problem,
            )
            self._until_restart.add(name)
            return
        log.error("%s is offline: %s", name, problem)
        if isinstance(problem, CorruptError):
            return  # Trying again does not help.
        if not self._offline:
            self._runtime.call_later(RETRY_OPEN_MS, self._retry_open)
        self._offline.add(name)

    def _retry_open(self) -> None:
        if self._stopped:
            return
        offline, self._offline = self._offline, set()
        for name in sorted(offline):
            # The topic may be deleted by now, or replaced by one whose logs are open.
            if self._state.partition(*name) is not None and self._partitions.get(*name) is None:
                self._open(self._state.topics[name.topic], [name.partition])

    def _remove(self, name: TopicPartition) -> None:
        try:
            self._store.delete(name)
        except (OSError, StorageError) as problem:
            log.error("%s is deleted, but its files could not be removed: %s", name, problem)

    # -- settings and leaders ---------------------------------------------------------------------

    def _log_config(self, name: str) -> LogConfig:
        """The settings of a topic's logs, computed once for all of its partitions."""
        if self._last_config is None or self._last_config[0] != name:
            overrides = self._state.settings_of(TOPIC_RESOURCE, name)
            self._last_config = name, topic_log_config(self._config, overrides)
        return self._last_config[1]

    def _reconfigurations(self, resource_type: int, name: str) -> Iterator[Callable[[], None]]:
        affected: list[str] = []
        if resource_type == TOPIC_RESOURCE:
            affected = [name]
        elif resource_type == BROKER_RESOURCE:
            yield self._apply_broker_settings
            affected = list(self._state.topics)
        for topic in affected:
            yield partial(self._reconfigure, topic)

    def _reconfigure(self, topic: str) -> None:
        self._last_config = None
        config = self._log_config(topic)
        for index in range(self._state.partition_count(topic)):
            partition = self._partitions.get(topic, index)
            if partition is not None:
                partition.reconfigure(config)

    def _apply_broker_settings(self) -> None:
        """Applies the dynamic settings of the broker."""
        self._last_config = None
        self._config.replace_dynamic(
            self._state.settings_of(BROKER_RESOURCE, CLUSTER_DEFAULT),
            self._state.settings_of(BROKER_RESOURCE, str(self._node_id)),
        )

    def _take_epochs(self, changes: Iterable[PartitionChange]) -> None:
        for change in changes:
            # No partition moves from a single broker. It could not be closed here: requests that
            # wait for a partition take a closed one for deleted.
            assert not change.closes_at(self._node_id), f"{change} moves an open partition"
            topic = self._state.topics_by_id.get(change.topic_id)
            opened = self._partitions.get(change.topic, change.partition)
            if topic is not None and opened is not None and opened.topic_id == topic.topic_id:
                opened.bump_leader_epoch(topic.partitions[change.partition].leader_epoch)
            self._changed(change.topic)
