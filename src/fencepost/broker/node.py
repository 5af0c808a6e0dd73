"""The composition root: one broker, assembled from its parts.

Clock, disk and randomness are arguments; the network and the timers are those of the running
asyncio loop. So the same node runs in a process, in a thread of a test, and in a simulator that
moves the clock itself.

A start loads meta.properties, the metadata log (topics, ids, configs) and every partition that this
node leads, and opens the port. Then it loads the coordinators from the internal topics, and settles
what a crash has left. No request is served before that, but a coordinator with a long log may
still be loading.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import ConfigError, StorageError
from fencepost.base.ids import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.base.seams import Clock, Disk, Randomness
from fencepost.broker.authorization import AllowAll, Authorizer
from fencepost.broker.batch_opener import Opener
from fencepost.broker.controller.controller import Controller
from fencepost.broker.dispatch import Dispatcher
from fencepost.broker.faults import Faults
from fencepost.broker.groups.coordinator import GroupCoordinator
from fencepost.broker.housekeeping import Housekeeping
from fencepost.broker.local_partitions import LocalPartitions
from fencepost.broker.memory import MemoryBudget
from fencepost.broker.runtime import Runtime, TimerHandle
from fencepost.broker.server import Server
from fencepost.broker.settings.listener import ANY_HOST
from fencepost.broker.storage.background import Background, Flusher
from fencepost.broker.storage.descriptors import UNLIMITED, Descriptors, PatientDisk, share_out
from fencepost.broker.storage.layout import Layout
from fencepost.broker.storage.removal import Removal
from fencepost.broker.storage.scrub import Scrub
from fencepost.broker.transactions.coordinator import TransactionCoordinator
from fencepost.broker.transactions.markers import MarkerWriter
from fencepost.broker.transactions.reconciliation import load_coordinators
from fencepost.log.config import LogConfig
from fencepost.log.log import Log
from fencepost.log.opening import open_log, unborn_log
from fencepost.log.segment.open_segments import OpenSegments
from fencepost.partition.partition import Partition

if TYPE_CHECKING:
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.trace import Trace
    from fencepost.coordinator.metadata.state import MetadataState

log = logging.getLogger(__name__)

SYNCED_AT_ONCE_FROM: Final = 50
"""With this many logs to sync, a stop syncs the whole volume at once. With fewer, a sync of what
other processes have written to the volume might take longer."""


class Node:
    """One broker."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        disk: Disk,
        randomness: Randomness,
        on_fatal: Callable[[str], None],
        authorizer: Authorizer | None = None,
        trace: Trace | None = None,
        descriptors: Descriptors | None = None,
    ) -> None:
        self.config = config
        self._descriptors = descriptors or share_out(UNLIMITED, config.max_connections)
        self._open_segments = OpenSegments(self._descriptors.sealed, self._descriptors.growing)
        self._patient_disk = PatientDisk(disk, self._open_segments.make_room)
        self.disk: Disk = self._patient_disk
        self.randomness = randomness
        self.node_id = config.node_id
        self.authorizer: Authorizer = authorizer or AllowAll()
        self.trace = trace
        self.faults = Faults()
        self.fatal = on_fatal
        self.layout = Layout(self.disk, config.data)
        self._removal = Removal(self.disk)
        self.partitions = LocalPartitions(fsync=config.durability == "fsync", on_fatal=on_fatal)
        self.runtime = Runtime(clock, self.disk, self.partitions)
        self.opener = Opener(on_fatal)
        self.replies = MemoryBudget(config.queued_max_response_bytes)
        self.requests = MemoryBudget(config.queued_max_request_bytes)
        self.controller = Controller(self)
        self.groups = GroupCoordinator(self.runtime, config, randomness, self.controller.state)
        self.markers = MarkerWriter(
            self.runtime, self.partitions, self.controller.state, self.groups
        )
        self.transactions = TransactionCoordinator(
            self.runtime, config, self.controller, self.markers
        )
        self.background = Background(on_fatal)
        self.flusher = Flusher(self)
        self.housekeeping = Housekeeping(self)
        self.scrub = Scrub(self)
        self._server: Server | None = None
        self._loaded = False

    @property
    def clock(self) -> Clock:
        """The clock of the runtime."""
        return self.runtime.clock

    @property
    def metadata(self) -> MetadataState:
        """The state of the metadata log: topics, ids, leaders, configs."""
        return self.controller.state

    # -- start and stop ---------------------------------------------------------------------------

    async def start(self) -> str:
        """Loads everything and serves; returns an address that local clients can connect to."""
        loop = asyncio.get_running_loop()
        self.runtime.attach(loop)
        self.partitions.attach(loop)
        self.opener.attach(loop)
        self._load()
        config = self.config
        self._server = Server(
            loop,
            Dispatcher(self),
            replies=self.replies,
            requests=self.requests,
            max_request_bytes=config.socket_request_max_bytes,
            max_connections=self._descriptors.connections,
            max_idle_ms=config.connections_max_idle_ms,
        )
        try:
            port = await self._server.listen(config.listen_host, config.listen_port)
        except OSError as problem:
            raise cannot_listen(config.listen_host, config.listen_port, problem) from problem
        listening = _address(config.listen_host, port)
        advertised = _address(*config.advertised(port))
        try:
            self.controller.register(*config.advertised(port))
            load_coordinators(self)
        except OSError as problem:
            raise self._not_loaded(problem) from problem
        if not self.controller.has_offline:
            # Offline partitions have been neither synced nor compared with the other logs.
            self.layout.trust_session(sync=self.partitions.fsync)
        self._removal.start(loop, self.layout.deleted_folders())
        self.housekeeping.start()
        self.scrub.start()
        self.flusher.save_soon()
        if advertised != listening:
            log.info("listening on %s; advertised to clients as %s", listening, advertised)
        return advertised if config.listen_host in ANY_HOST else listening

    def descriptors(self) -> list[int]:
        """The descriptors of all sockets."""
        return [] if self._server is None else self._server.descriptors()

    def _load(self) -> None:
        """Loads the directory; a disk that fails is a StorageError with a sentence."""
        self._patient_disk.set_starting(True)
        try:
            self.layout.load()
            self.controller.load()
        except OSError as problem:
            raise self._not_loaded(problem) from problem
        finally:
            self._patient_disk.set_starting(False)
        self._loaded = True

    def _not_loaded(self, problem: OSError) -> StorageError:
        return StorageError(
            f"{self.config.data} could not be loaded: {problem}. Nothing was lost by this "
            "attempt; start again when the disk can be read and written."
        )

    def load_coordinators(self, *, held: bool = False) -> None:
        """Loads groups and transactions from the internal topics, if these exist.

        With `held` all of them are loaded when this returns, and nothing that was found is
        finished.
        """
        for topic, service in (
            (CONSUMER_OFFSETS_TOPIC, self.groups),
            (TRANSACTION_STATE_TOPIC, self.transactions),
        ):
            for index in range(self.metadata.partition_count(topic)):
                partition = self.partition(topic, index)
                if partition is not None:
                    service.load(index, partition, held=held)

    async def stop(self, *, clean: bool = True) -> None:
        """Closes the connections and the logs; if all succeeds, marks the stop as clean."""
        self.housekeeping.stop()
        self.scrub.stop()
        self.flusher.stop()
        self.controller.stop()
        if self._server is not None:
            await self._server.close()
        self.opener.close()
        await self.partitions.settle()
        await self._removal.stop()
        await self.background.settle()
        self.groups.close()
        self.transactions.close()
        if self._loaded:
            self._close_partitions(clean)
        if self.trace is not None:
            self.trace.close()

    def _close_partitions(self, clean: bool) -> None:
        partitions = list(self.partitions.by_name.values())
        if clean:
            clean = self._sync_at_once(partitions)
        for partition in partitions:
            try:
                partition.close(clean=clean)
            except StorageError as problem:
                log.error("closing %s failed: %s", partition.name, problem)
                clean = False
        if not clean:
            return
        try:
            self.layout.save_checkpoints(partitions)
            self.layout.mark_clean()
        except (OSError, StorageError) as problem:
            log.error("the stop is not recorded as clean: %s", problem)

    def _sync_at_once(self, partitions: list[Partition]) -> bool:
        """Syncs many logs with one sync of the whole volume; few are synced as they are closed.

        False when that sync failed. A second sync of the same files could succeed although their
        bytes are lost, so nothing is synced after that, and the next start reads the logs as after
        a crash.
        """
        try:
            unsynced = [each.log for each in partitions if each.prepare_close()]
        except StorageError as problem:
            log.warning("the logs are closed one by one: %s", problem)
            return True
        if len(unsynced) < SYNCED_AT_ONCE_FROM:
            return True
        syncs = [(each, each.prepare_sync()) for each in unsynced]
        try:
            is_synced = self.disk.sync_all(self.config.data)
        except OSError as problem:
            log.critical(
                "the disk did not confirm a sync of %s: %s. The stop is not recorded as clean; "
                "check the disk before the next start, which reads the logs as after a crash",
                self.config.data,
                problem,
            )
            return False
        if is_synced:
            for each, sync in syncs:
                each.complete_sync(sync)
        return True

    # -- partitions -------------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition | None:
        """The partition of this name, if this node leads it."""
        return self.partitions.get(topic, index)

    def open_partition(
        self, name: TopicPartition, topic_id: bytes, leader_epoch: int, config: LogConfig
    ) -> Partition:
        """Opens or creates the log of a partition, and registers the partition."""
        opened = self._open_log(name, topic_id, config)
        partition = Partition(
            name, topic_id, leader_epoch, opened, durable_at_append=not self.partitions.fsync
        )
        if self.partitions.fsync:
            # Records that a crash left in the page cache become readable now, so they must be on
            # the disk first. So must the transaction indexes that the partition has just rebuilt:
            # the recovery point moves past them.
            opened.sync()
        self.partitions.add(partition, self.flusher.sealed)
        if opened.needs_flush:
            self.flusher.sealed(partition)
        return partition

    def _open_log(self, name: TopicPartition, topic_id: bytes, config: LogConfig) -> Log:
        now_ms = self.clock.now_ms()
        fsync = self.partitions.fsync
        if not fsync and self.layout.is_new(name):
            # In fsync mode the folder is created and synced now, so that the first write need not
            # wait for it.
            return unborn_log(
                self.disk,
                self.layout.folder_of(name),
                config,
                now_ms=now_ms,
                make_folder=lambda: self._make_folder(name, topic_id),
                open_segments=self._open_segments,
            )
        opened = open_log(
            self.disk,
            self.layout.claim(name, topic_id, sync=fsync),
            config,
            now_ms=now_ms,
            clean=self.layout.clean,
            recovery_point=self.layout.recovery_point(name),
            log_start_offset=self.layout.log_start_offset(name),
            open_segments=self._open_segments,
            lost_power=self.layout.lost_power,
        )
        opened.first_dirty_offset = max(
            opened.first_dirty_offset, self.layout.first_dirty_offset(name)
        )
        return opened

    def _make_folder(self, name: TopicPartition, topic_id: bytes) -> None:
        self.layout.claim(name, topic_id)

    def close_partition(self, name: TopicPartition, *, delete: bool) -> None:
        """Closes a partition; with `delete` removes its folder."""
        partition = self.partitions.remove(name)
        if partition is not None:
            partition.close(clean=not delete)
        if delete:
            self._removal.add(self.layout.delete(name))

    def open_metadata_log(self) -> Partition:
        """Opens the metadata log, which no topic record describes."""
        name, topic_id = TopicPartition(CLUSTER_METADATA_TOPIC, 0), bytes(15) + b"\x01"
        # First, because it removes the mark of a clean stop: from here on the directory is in use.
        self.layout.claim(name, topic_id, sync=self.partitions.fsync)
        return self.open_partition(name, topic_id, 0, LogConfig())

    # -- time and durability ----------------------------------------------------------------------

    def when_durable(
        self, partition: Partition, end_offset: int, callback: Callable[[], None]
    ) -> None:
        """Calls back once everything below `end_offset` is durable, at once if it is already."""
        self.partitions.when_durable(partition, end_offset, callback)

    def steady_ms(self) -> int:
        """The time for timeouts, see `Runtime.steady_ms`."""
        return self.runtime.steady_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        """Sets a timer of the loop."""
        return self.runtime.call_later(delay_ms, callback)


def cannot_listen(host: str, port: int, problem: OSError) -> ConfigError:
    """The error for an address that cannot be listened on."""
    # The loop's own message repeats the address; an unknown host name has no positive errno.
    number = problem.errno or 0
    reason = os.strerror(number) if number > 0 else problem.strerror
    return ConfigError(
        f"{_address(host, port)} cannot be listened on: {reason}. "
        "Choose another address with --listen; port 0 picks a free port."
    )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
