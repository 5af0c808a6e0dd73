"""Opens and closes partitions: from a folder of the data directory to a registered `Partition`.

Theory of operation
-------------------
The order in which a partition is opened matters after a crash:

1. The folder is claimed for the topic id. A folder of another topic is set aside. The first claim
   of a start also removes the mark of a clean stop.
2. The log is recovered, from the recovery point after a power loss and from the saved point
   after a kill, and the producer states and the transaction indexes are rebuilt.
3. In `fsync` mode all of it is synced.
4. The partition is registered, and can be read and written from now on.

In `os` mode a partition without records has no folder. Its first batch creates it.

A partition that another broker will lead is closed in this order: it takes no more appends
(`withdraw`), all that was appended is durable, producers and indexes are written, everything is
synced in a thread, the log is closed, and the offsets are saved. The next leader opens it after
that, and need not scan the log. If a step fails, the log is closed as it is, and the next leader
scans it from the recovery point. A sync that fails ends the process, as everywhere.

A broker that already serves clients opens a partition over several turns of the loop (`opening`).
Nothing is registered before the last one. To give up in between, close the generator: that closes
all files, and the next open begins again.

When all partitions are closed at a clean stop, every log is on the disk before the offsets are
saved, and the mark of a clean stop is written last. A step that fails leaves the directory without
the mark, and the next start reads the logs as after a crash. If that step is a sync, nothing more
is synced, and the process ends as after any failed sync.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from fencepost.base.failures import StorageError, SyncError
from fencepost.base.ids import CLUSTER_METADATA_TOPIC, TopicPartition
from fencepost.broker.storage.recovery_report import RecoveryReport
from fencepost.broker.turns import Turn
from fencepost.log.config import LogConfig
from fencepost.log.durability import sync_volume
from fencepost.log.opening import opening_log, run_to_end, unborn_log
from fencepost.partition.partition import Partition

if TYPE_CHECKING:
    from fencepost.base.seams import Disk
    from fencepost.broker.partitions.local_partitions import LocalPartitions
    from fencepost.broker.runtime import Runtime
    from fencepost.broker.storage.background import Background, Flusher
    from fencepost.broker.storage.partition_layout import PartitionLayout
    from fencepost.broker.storage.removal import Removal
    from fencepost.log.durability import PendingSync
    from fencepost.log.log import Log
    from fencepost.log.segment.open_segments import OpenSegments

    Wait = Callable[[Callable[[Exception | None], None]], None]
    """Starts something, and calls back once when it has ended, with its failure if there is one."""

log = logging.getLogger(__name__)

SYNCED_AT_ONCE_FROM: Final = 50
"""With this many logs to sync, a stop syncs the whole volume at once. With fewer, a sync of what
other processes have written to the volume might take longer."""

T = TypeVar("T")

_METADATA_LOG: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
_METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"


class PartitionStore:
    """The partitions of one data directory, as this process opens and closes them."""

    def __init__(
        self,
        runtime: Runtime,
        layout: PartitionLayout,
        partitions: LocalPartitions,
        open_segments: OpenSegments,
        flusher: Flusher,
        background: Background,
        removal: Removal | None,
    ) -> None:
        """Without a `removal` somebody else removes the folders of deleted partitions."""
        self._runtime = runtime
        self._layout = layout
        self._partitions = partitions
        self._open_segments = open_segments
        self._flusher = flusher
        self._background = background
        self._removal = removal
        self.recovery: Final = RecoveryReport()
        """What this process has recovered."""
        self._leaving: dict[TopicPartition, Partition] = {}
        """Partitions that are withdrawn and not closed yet."""
        self._unclean: set[TopicPartition] = set()
        """Partitions that could not be closed cleanly for another broker, until they are opened."""
        self._openings: WeakValueDictionary[TopicPartition, Generator[None, None, Partition]] = (
            WeakValueDictionary()
        )

    # -- open -------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Call before a batch of openings: other brokers may have saved offsets since the last."""
        self._layout.refresh()

    def open(
        self, name: TopicPartition, topic_id: bytes, leader_epoch: int, config: LogConfig
    ) -> Partition:
        """Opens or creates the log of a partition, and registers the partition."""
        return run_to_end(self.opening(name, topic_id, leader_epoch, config))

    def opening(
        self, name: TopicPartition, topic_id: bytes, leader_epoch: int, config: LogConfig
    ) -> Generator[None, None, Partition]:
        """The same in slices of about 2 ms; the generator returns the registered partition.

        `delete` closes a generator that has not ended.
        """
        assert name not in self._leaving, f"{name} is opened before it is closed"
        steps = self._opening(name, topic_id, leader_epoch, config)
        self._openings[name] = steps
        return steps

    def _opening(
        self, name: TopicPartition, topic_id: bytes, leader_epoch: int, config: LogConfig
    ) -> Generator[None, None, Partition]:
        fsync = self._partitions.fsync
        opened = yield from _in_slices(self._opening_log(name, topic_id, leader_epoch, config))
        partition = Partition(
            name, topic_id, leader_epoch, opened, durable_at_append=not fsync, recover=False
        )
        try:
            yield from _in_slices(partition.recovery())
            if fsync:
                # Records that a crash left in the page cache become readable now, so they must be
                # on the disk first. So must the transaction indexes that the partition has just
                # rebuilt: the recovery point moves past them.
                opened.sync()
        except BaseException:  # Also when the generator is closed.
            partition.close(clean=False)
            raise
        self._unclean.discard(name)
        self.recovery.opened(partition)
        self._partitions.add(partition, self._flusher.sealed)
        if opened.needs_flush:
            self._flusher.sealed(partition)
        return partition

    def _opening_log(
        self, name: TopicPartition, topic_id: bytes, leader_epoch: int, config: LogConfig
    ) -> Generator[None, None, Log]:
        layout, disk = self._layout, self._runtime.disk
        now_ms = self._runtime.clock.now_ms()
        fsync = self._partitions.fsync
        if not fsync and layout.is_new(name, topic_id):
            # In fsync mode the folder is created and synced now, so that the first write need not
            # wait for it.
            return unborn_log(
                disk,
                layout.folder_of(name),
                config,
                now_ms=now_ms,
                make_folder=partial(self._make_folder, name, topic_id),
                open_segments=self._open_segments,
            )
        folder = layout.claim(name, topic_id, sync=fsync)
        saved = layout.saved(name, topic_id, leader_epoch)
        opened = yield from opening_log(
            disk,
            folder,
            config,
            now_ms=now_ms,
            clean=saved.is_clean and name not in self._unclean,
            recovery_point=saved.recovery_point,
            log_start_offset=saved.log_start_offset,
            open_segments=self._open_segments,
            lost_power=layout.lost_power,
        )
        opened.first_dirty_offset = max(opened.first_dirty_offset, saved.first_dirty_offset)
        return opened

    def _make_folder(self, name: TopicPartition, topic_id: bytes) -> None:
        self._layout.claim(name, topic_id)

    def open_metadata_log(self) -> Partition:
        """Opens the metadata log, which no topic record describes."""
        # First, because it removes the mark of a clean stop: from here on the directory is in use.
        self._layout.claim(_METADATA_LOG, _METADATA_TOPIC_ID, sync=self._partitions.fsync)
        return self.open(_METADATA_LOG, _METADATA_TOPIC_ID, 0, LogConfig())

    # -- close ------------------------------------------------------------------------------------

    def delete(self, name: TopicPartition, topic_id: bytes) -> None:
        """Closes a partition and removes its folder; a partition that is not open has one, too."""
        self._unclean.discard(name)
        steps = self._openings.pop(name, None)
        if steps is not None:
            steps.close()
        partition = self._partitions.remove(name)
        if partition is not None:
            partition.close(clean=False)
        folders = self._layout.delete(name, topic_id)
        if self._removal is not None:
            self._removal.add(folders)

    def withdraw(self, name: TopicPartition) -> Partition | None:
        """Stops serving a partition that another broker will lead; `closing` closes its log."""
        partition = self._partitions.withdraw(name)
        if partition is not None:
            self._leaving[name] = partition
        return partition

    def closing(
        self, partitions: Sequence[Partition]
    ) -> Generator[Wait | None, Exception | None, None]:
        """Closes the logs of withdrawn partitions, and saves their offsets with one write.

        Yields before each piece of work, and what has to be waited for. The caller sends back how
        the wait has ended.
        """
        for partition in partitions:
            if partition.high_watermark < partition.log_end_offset:
                yield partial(self._when_durable, partition)
        failed: dict[Partition, Exception] = {}
        syncs: list[tuple[Partition, PendingSync]] = []
        for partition in partitions:
            yield None
            try:
                if partition.prepare_close():
                    syncs.append((partition, partition.log.prepare_sync()))
            except (OSError, StorageError) as problem:
                failed[partition] = problem
        if syncs:
            sync = partial(_sync_all, self._runtime.disk, self._layout.folder, syncs, failed)
            outcome = yield partial(self._background.run, sync)
            assert outcome is None, "failures are in `failed`; a failed sync ends the process"
        for partition, done in syncs:
            if partition not in failed:
                partition.log.complete_sync(done)
        for partition in partitions:
            yield None
            self._close_moved(partition, failed.get(partition))
        yield partial(self._save_closed, partitions)

    def _when_durable(self, partition: Partition, done: Callable[[Exception | None], None]) -> None:
        self._partitions.when_durable(partition, partition.log_end_offset, partial(done, None))

    def _save_closed(
        self, partitions: Sequence[Partition], done: Callable[[Exception | None], None]
    ) -> None:
        closed = {each: each.name not in self._unclean for each in partitions}
        self._flusher.save_closed(closed, partial(done, None))

    def _close_moved(self, partition: Partition, problem: Exception | None) -> None:
        if partition.name not in self._leaving:
            return  # The broker stops, and has closed it.
        try:
            partition.close(clean=problem is None)
        except SyncError:
            raise
        except (OSError, StorageError) as failed:
            problem = failed
        if problem is not None:
            log.warning(
                "%s moves to another broker, but was not closed cleanly: %s. Nothing is lost; the "
                "next leader scans its log",
                partition.name,
                problem,
            )
            self._unclean.add(partition.name)
        del self._leaving[partition.name]
        self._partitions.forget(partition)

    def close_all(self, *, clean: bool, settled: bool) -> None:
        """Closes every partition at the end; if all succeeds, marks the stop as clean.

        `settled` is whether this start has settled what the last stop left.
        """
        partitions = [*self._partitions.by_name.values(), *self._leaving.values()]
        self._leaving.clear()
        clean = clean and not self._partitions.has_ended
        if clean:
            clean = self._sync_at_once(partitions)
        for partition in partitions:
            try:
                partition.close(clean=clean)
            except SyncError as problem:
                self._partitions.sync_failed(problem)
                clean = False
            except StorageError as problem:
                log.error("closing %s failed: %s", partition.name, problem)
                clean = False
        if not clean or (self._unclean and not self._layout.is_shared):
            return
        try:
            self._layout.record_stop(partitions, settled=settled)
        except SyncError as problem:
            self._partitions.sync_failed(problem)
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
            is_synced = sync_volume(self._runtime.disk, self._layout.folder)
        except SyncError as problem:
            self._partitions.sync_failed(problem)
            return False
        if is_synced:
            for each, sync in syncs:
                each.complete_sync(sync)
        return True


def _sync_all(
    disk: Disk,
    folder: str,
    syncs: Sequence[tuple[Partition, PendingSync]],
    failed: dict[Partition, Exception],
) -> None:
    """Runs in a thread and touches only the disk; many logs share one sync of the volume.

    Logs that could not be opened are added to `failed`. A sync that fails is a SyncError.
    """
    if len(syncs) >= SYNCED_AT_ONCE_FROM and sync_volume(disk, folder):
        return
    for partition, sync in syncs:
        try:
            sync.run()
        except SyncError:
            raise
        except StorageError as problem:
            failed[partition] = problem


def _in_slices(steps: Generator[None, None, T]) -> Generator[None, None, T]:
    """The same steps, with a yield only when a short turn is over."""
    turn = Turn(is_short=True)
    try:
        while True:
            try:
                next(steps)
            except StopIteration as done:
                value: T = done.value
                return value
            if turn.is_over():
                yield
                turn = Turn(is_short=True)
    finally:
        steps.close()
