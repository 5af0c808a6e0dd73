"""The effects of the metadata log on this broker: its partitions are opened, closed, reconfigured.

Theory of operation
-------------------
Each batch is carried out when its records are durable, in two phases:

- `release` closes the partitions of deleted topics, and those that another broker leads from now
  on. Their coordinators are unloaded first, long polls are woken, and whatever waits for durability
  is answered. When `release` is done, this process no longer touches their files.
- `open` does the rest. It opens the partitions that this broker leads now, and passes on leader
  epochs, in-sync replicas and settings.

`run` is both, for a single broker. With several brokers a partition is opened only after its last
leader has released it, so the phases are separate requests (decision 0016).

The state is ahead of the effects, so `open` looks at it again: a partition whose topic is gone, or
whose leader has changed again, is left alone. The change at the newer epoch has its own effect.
`release` does not look at it: if the partition comes back, it is opened again by the later batch.

Work of many partitions is spread over several turns of the loop. Calls that concern a common topic
are carried out one after the other, in their order; others do not wait for each other.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.failures import CorruptError, StorageError, SyncError
from fencepost.base.ids import TopicPartition
from fencepost.broker.settings.config import (
    BrokerConfig,
    TopicConfig,
    topic_log_config,
    topic_warnings,
)
from fencepost.broker.turns import Turn
from fencepost.coordinator.metadata.effects import (
    Effect,
    LeadersChanged,
    PartitionChange,
    PartitionsCreated,
    SettingsChanged,
    TopicRemoved,
)
from fencepost.records.metadata_log import BROKER_RESOURCE, CLUSTER_DEFAULT, TOPIC_RESOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from fencepost.broker.coordinators.by_topic import Coordinators
    from fencepost.broker.groups.coordinator import GroupCoordinator
    from fencepost.broker.metadata.follower import MetadataFollower
    from fencepost.broker.partitions.local_partitions import LocalPartitions
    from fencepost.broker.runtime import Runtime
    from fencepost.broker.storage.partition_store import PartitionStore, Wait
    from fencepost.coordinator.metadata.state import PartitionState, Topic
    from fencepost.log.config import LogConfig
    from fencepost.partition.partition import Partition

    Steps = Generator["Wait | Pause | None", Exception | None, None]
    """Yields None before each piece of work, or what has to be waited for."""

log = logging.getLogger(__name__)

RETRY_OPEN_MS: Final = 5_000
"""Pause before a partition that could not be opened is tried again, as on a full disk."""

AT_ONCE: Final = 100
"""Partitions that are opened or closed in the first turn of the loop, at about 10 microseconds
each: internal topics are needed at once. For the others, turns end by time."""
AT_ONCE_SYNCED: Final = 5
"""The same in `fsync` mode, where each of them is synced."""

FIRST_EPOCH: Final = 0
"""The leader epoch of a new partition."""


class Pause(Enum):
    """What a step may yield besides a wait."""

    SLICE = auto()
    """A piece of work is not finished, and has taken a while."""


@dataclass(slots=True, eq=False)
class _Job:
    """One call of `release`, `open` or `run`."""

    steps: Steps
    topics: frozenset[str]
    """Jobs with a common topic are carried out in their order."""
    certain: int
    """Pieces of work that do not end the turn."""
    done: Callable[[], None]
    is_started: bool = False


class _TopicSettings(NamedTuple):
    """The settings of a topic that its partitions use."""

    topic: str
    log: LogConfig
    min_insync_replicas: int


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
        self._offline: Final = partitions.offline
        self._to_retry: dict[TopicPartition, int] = {}
        """Partitions that could not be opened, each with the leader epoch of its opening. At a
        later epoch another broker may have it open."""
        self._until_restart: set[TopicPartition] = set()
        """Partitions that could not be opened at a start that compares all logs."""
        self._compares_logs = False
        self._stopped = False
        self._jobs: list[_Job] = []
        self._last_settings: _TopicSettings | None = None

    # -- start and stop ---------------------------------------------------------------------------

    def open_all(self) -> None:
        """Opens all at once; see `opening_all`."""
        for _ in self.opening_all():
            pass

    def opening_all(self, *, compares_logs: bool = False) -> Iterator[None]:
        """Opens every partition that this broker leads, under the settings that the log has.

        In slices: no client is served yet, but health checks are answered during a long start.

        With `compares_logs` the start compares all logs before it serves any. A partition that
        cannot be opened misses that, and stays offline until the next start.
        """
        self._apply_broker_settings()
        self._compares_logs = compares_logs
        turn = Turn()
        for topic in list(self._state.topics.values()):
            for index, state in enumerate(topic.partitions):
                yield from self._open_slices(topic, index, state.leader_epoch)
                if turn.is_over():
                    yield
                    turn = Turn()
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
        """Carries the effects of a batch out; many partitions take several turns."""
        self._submit(self._all_steps(effects), effects, self._after(effects, done))

    def release(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        """Closes what this broker no longer leads; `done` when it no longer touches their files."""
        self._submit(self._release_steps(effects), effects, done)

    def open(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        """Carries the rest out, when all brokers have released what the batch takes from them."""
        self._submit(self._open_steps(effects), effects, self._after(effects, done))

    def _after(self, effects: Sequence[Effect], done: Callable[[], None]) -> Callable[[], None]:
        if any(isinstance(effect, TopicRemoved) for effect in effects):
            # Committed offsets must be gone, or a new topic of that name would inherit them.
            return partial(self._groups.when_durable, done)
        return done

    def _submit(self, steps: Steps, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        certain = AT_ONCE_SYNCED if self._partitions.fsync else AT_ONCE
        self._jobs.append(_Job(steps, _topics_of(effects), certain, done))
        self._start_ready()

    def _start_ready(self) -> None:
        """Starts the jobs that no earlier one holds up."""
        for job in list(self._jobs):
            if not job.is_started and not self._is_held_up(job):
                job.is_started = True
                self._go_on(job)

    def _is_held_up(self, job: _Job) -> bool:
        for earlier in self._jobs:
            if earlier is job:
                return False
            if earlier.topics & job.topics:
                return True
        return True  # It was started and has finished since.

    def _go_on(self, job: _Job, outcome: Exception | None = None) -> None:
        """Runs a job until the end of the turn, or until it has to wait."""
        turn = Turn()
        while not self._stopped:  # After a stop, the next start does the rest.
            try:
                wait = job.steps.send(outcome)
            except StopIteration:
                self._jobs.remove(job)
                job.done()
                self._start_ready()
                return
            except SyncError as problem:
                self._runtime.sync_failed(problem)
                return
            outcome = None
            if wait is None:
                job.certain -= 1
            elif wait is not Pause.SLICE:
                wait(partial(self._go_on, job))
                return
            if turn.is_over() and (wait is Pause.SLICE or job.certain < 0):
                self._runtime.call_later(0, partial(self._go_on, job))
                return

    def _all_steps(self, effects: Sequence[Effect]) -> Steps:
        yield from self._release_steps(effects)
        yield from self._open_steps(effects)

    def _release_steps(self, effects: Sequence[Effect]) -> Steps:
        leaving: list[Partition] = []
        for effect in effects:
            match effect:
                case TopicRemoved(topic, count, topic_id):
                    for index in range(count):
                        yield None
                        self._remove(TopicPartition(topic, index), topic_id)
                case LeadersChanged(changes):
                    for change in changes:
                        if change.closes_at(self._node_id):
                            yield None
                            leaving += self._withdraw(change)
        if leaving:
            yield from self._store.closing(leaving)

    def _open_steps(self, effects: Sequence[Effect]) -> Steps:
        self._store.refresh()
        for effect in effects:
            self._warn_of_settings(effect)
            for work in self._works(effect):
                yield None
                for _ in work() or ():
                    yield Pause.SLICE

    def _works(self, effect: Effect) -> Iterator[Callable[[], Iterator[None] | None]]:
        """The work of an effect, one partition at a time if it concerns many.

        A piece of work may return the slices that are left of it.
        """
        match effect:
            case PartitionsCreated(topic, first, count, topic_id):
                if first == 0:
                    self._groups.on_topic_created(topic)
                found = self._state.topics.get(topic)
                # Otherwise it was deleted.
                if found is not None and found.topic_id == topic_id:
                    for index in range(first, first + count):
                        yield partial(self._open_slices, found, index, FIRST_EPOCH)
            case TopicRemoved(topic, _, _):
                self._last_settings = None  # A new topic of this name may have other settings.
                yield from self._groups.forgetting([topic])
            case SettingsChanged(resource_type, name):
                yield from self._reconfigurations(resource_type, name)
            case LeadersChanged(changes):
                for change in changes:
                    yield partial(self._take_change, change)

    def _warn_of_settings(self, effect: Effect) -> None:
        """Logs a warning for settings of a topic that have no effect in this broker."""
        if isinstance(effect, PartitionsCreated) and effect.first_index == 0:
            topic = effect.topic
        elif isinstance(effect, SettingsChanged) and effect.resource_type == TOPIC_RESOURCE:
            topic = effect.resource_name
        else:
            return
        for warning in topic_warnings(self._state.settings_of(TOPIC_RESOURCE, topic)):
            log.warning("topic %s: %s", topic, warning)

    # -- open and close ---------------------------------------------------------------------------

    @property
    def has_offline(self) -> bool:
        """Whether a partition could not be opened and will be tried again, maybe at a start."""
        return bool(self._to_retry or self._until_restart)

    def _open_slices(self, topic: Topic, index: int, leader_epoch: int) -> Iterator[None]:
        """Opens a partition that this broker leads at this epoch; stops if that changes."""
        if not self._is_wanted(topic, index, leader_epoch):
            return
        name = TopicPartition(topic.name, index)
        slices = self._store.opening(
            name, topic.topic_id, leader_epoch, self._settings_of(topic.name).log
        )
        try:
            while True:
                try:
                    next(slices)
                except StopIteration as end:
                    opened: Partition = end.value
                    break
                yield
                if not self._is_wanted(topic, index, leader_epoch):
                    return
        except SyncError as problem:
            self._runtime.sync_failed(problem)
        except (OSError, StorageError) as problem:
            self._set_offline(name, leader_epoch, problem)
        else:
            self._offline.discard(name)
            self._count_replicas(opened, topic.partitions[index])
            self._coordinators.opened(opened)
        finally:
            slices.close()
        self._changed(topic.name)

    def _is_wanted(self, topic: Topic, index: int, leader_epoch: int) -> bool:
        """Whether to open a partition. A change at a later epoch has its own effect."""
        if self._state.topics.get(topic.name) is not topic:
            return False  # Deleted by now; a new topic of this name has its own effect.
        partition = topic.partitions[index]
        return (
            partition.leader == self._node_id
            and partition.leader_epoch == leader_epoch
            and self._partitions.get(topic.name, index) is None
        )

    def _set_offline(self, name: TopicPartition, leader_epoch: int, problem: Exception) -> None:
        self._offline.add(name)
        if self._compares_logs:
            log.error(
                "%s is offline until the next start: %s. After a power loss its transactions "
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
        if not self._to_retry:
            self._runtime.call_later(RETRY_OPEN_MS, self._retry_open)
        self._to_retry[name] = leader_epoch

    def _retry_open(self) -> None:
        if self._stopped:
            return
        failed, self._to_retry = self._to_retry, {}
        for name, leader_epoch in sorted(failed.items()):
            # The topic may be deleted by now, or replaced by one whose logs are open.
            if self._state.partition(*name) is not None and self._partitions.get(*name) is None:
                topic = self._state.topics[name.topic]
                for _ in self._open_slices(topic, name.partition, leader_epoch):
                    pass

    def _set_online(self, name: TopicPartition) -> None:
        """Forgets that a partition could not be opened: it is no longer this broker's."""
        self._offline.discard(name)
        self._to_retry.pop(name, None)

    def _remove(self, name: TopicPartition, topic_id: bytes) -> None:
        self._set_online(name)
        self._coordinators.closing(name)
        try:
            self._store.delete(name, topic_id)
        except (OSError, StorageError) as problem:
            log.error("%s is deleted, but its files could not be removed: %s", name, problem)

    def _withdraw(self, change: PartitionChange) -> Iterator[Partition]:
        """Stops serving a partition that another broker leads; the caller closes it."""
        name = TopicPartition(change.topic, change.partition)
        opened = self._partitions.get(*name)
        if opened is None:
            self._set_online(name)
        elif opened.topic_id == change.topic_id and opened.leader_epoch < change.leader_epoch:
            # First, so that the coordinator's last records are in the log that is closed.
            self._coordinators.closing(name)
            if self._store.withdraw(name) is not None:
                yield opened
        self._changed(change.topic)

    # -- settings and leaders ---------------------------------------------------------------------

    def _settings_of(self, name: str) -> _TopicSettings:
        """The settings of a topic, computed once for all of its partitions."""
        if self._last_settings is None or self._last_settings.topic != name:
            overrides = self._state.settings_of(TOPIC_RESOURCE, name)
            self._last_settings = _TopicSettings(
                name,
                topic_log_config(self._config, overrides),
                TopicConfig(self._config, overrides).min_insync_replicas,
            )
        return self._last_settings

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
        self._last_settings = None
        found = self._state.topics.get(topic)
        for index, state in enumerate(found.partitions if found is not None else ()):
            partition = self._partitions.get(topic, index)
            if partition is not None:
                partition.reconfigure(self._settings_of(topic).log)
                self._count_replicas(partition, state)

    def _count_replicas(self, partition: Partition, state: PartitionState) -> None:
        """Compares the in-sync replicas with `min.insync.replicas`, so that Produce need not.

        As in Kafka, a topic with fewer replicas than that needs all of them.
        """
        wanted = self._settings_of(partition.name.topic).min_insync_replicas
        partition.is_under_min_isr = len(state.isr) < min(wanted, len(state.replicas))

    def _apply_broker_settings(self) -> None:
        """Applies the dynamic settings of the broker."""
        self._last_settings = None
        self._config.replace_dynamic(
            self._state.settings_of(BROKER_RESOURCE, CLUSTER_DEFAULT),
            self._state.settings_of(BROKER_RESOURCE, str(self._node_id)),
        )

    def _take_change(self, change: PartitionChange) -> Iterator[None] | None:
        """Passes a change on to an open partition; opens it if this broker leads it now."""
        topic = self._state.topics_by_id.get(change.topic_id)
        if topic is None or change.leader != self._node_id:
            self._changed(change.topic)
            return None
        opened = self._partitions.get(change.topic, change.partition)
        if opened is None:
            if change.moves_to(self._node_id) and self._is_wanted(
                topic, change.partition, change.leader_epoch
            ):
                self._coordinators.moved_here(change.topic)
            return self._open_slices(topic, change.partition, change.leader_epoch)
        if opened.topic_id == topic.topic_id and change.leader_epoch >= opened.leader_epoch:
            opened.bump_leader_epoch(change.leader_epoch)
            self._count_replicas(opened, topic.partitions[change.partition])
        self._changed(change.topic)
        return None


def _topics_of(effects: Iterable[Effect]) -> frozenset[str]:
    """The topics whose partitions the effects open, close or change."""
    topics: set[str] = set()
    for effect in effects:
        match effect:
            case PartitionsCreated() | TopicRemoved():
                topics.add(effect.topic)
            case LeadersChanged(changes):
                topics.update(change.topic for change in changes)
            case SettingsChanged(resource_type, name) if resource_type == TOPIC_RESOURCE:
                topics.add(name)
            case SettingsChanged():
                pass  # Of a broker: a partition that is opened later reads the new ones.
    return frozenset(topics)
