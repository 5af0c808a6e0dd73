"""Blocking work in threads of the loop's executor: syncs of sealed segments, checkpoint files.

A thread touches only the disk; its result is processed on the loop. A failed sync ends the process,
as everywhere.

`Flusher` advances the recovery points. It syncs a sealed segment soon after the roll, with its
indexes, its snapshot and the names of its files. Then everything below the active segment is on the
disk, and the recovery point moves to the base of the active segment. Shortly after that, and at
regular intervals, it writes the recovery points to `recovery-point-offset-checkpoint`. After a
crash only the records above them are read. Partitions that were closed for another broker are in
the next save, too, and that broker opens them after it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import StorageError, SyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fencepost.broker.partitions.local_partitions import LocalPartitions
    from fencepost.broker.runtime import Runtime, TimerHandle
    from fencepost.broker.storage.partition_layout import PartitionLayout, Save
    from fencepost.log.durability import PendingSync
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

RETRY_FLUSH_MS: Final = 5_000
"""Pause before a retry for a segment that could not be opened, most likely for too many open
files."""
SAVE_DELAY_MS: Final = 1_000
"""From a flush to the next checkpoint; logs that roll at about the same time share one."""


class Background:
    """The jobs that run in threads."""

    def __init__(self, on_fatal: Callable[[str], None]) -> None:
        self._on_fatal = on_fatal
        self._running: set[asyncio.Future[None]] = set()
        self._stopped = False

    def run(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        """Runs `work` in a thread, then `done` on the loop, unless the failure ends the process."""
        if self._stopped:
            return
        future = asyncio.get_running_loop().run_in_executor(None, work)
        self._running.add(future)
        future.add_done_callback(partial(self._ended, done))

    def _ended(
        self, done: Callable[[Exception | None], None], future: asyncio.Future[None]
    ) -> None:
        self._running.discard(future)
        if future.cancelled():
            return
        problem = future.exception()
        if problem is None or (
            isinstance(problem, (OSError, StorageError)) and not isinstance(problem, SyncError)
        ):
            if not self._stopped or problem is None:
                done(problem)
            return
        self._on_fatal(f"{problem}; what the disk holds is unknown, stopping")

    async def finish(self) -> None:
        """Accepts no more work, and returns when all running jobs have ended."""
        self._stopped = True
        while self._running:
            await asyncio.wait(self._running)


class Flusher:
    """Syncs sealed segments, one log after the other, and saves recovery points."""

    def __init__(
        self,
        runtime: Runtime,
        partitions: LocalPartitions,
        layout: PartitionLayout,
        background: Background,
    ) -> None:
        self._runtime = runtime
        self._partitions = partitions
        self._layout = layout
        self._background = background
        self._sealed: dict[Partition, None] = {}
        self._written: set[Partition] = set()
        self._is_flushing = False
        self._is_saving = False
        self._save_timer: TimerHandle | None = None
        self._closed: dict[Partition, bool] = {}
        """Partitions that were closed since the last save, and are in the next one; whether they
        were closed cleanly."""
        self._when_saved: list[Callable[[], None]] = []

    def sealed(self, partition: Partition) -> None:
        """Schedules the flush of a segment that was just sealed."""
        if self._partitions.fsync:
            self.save_soon()  # The sync that acknowledges the next append covers the segment.
            return
        self._flush_soon(partition)

    def written(self, partition: Partition) -> None:
        """Schedules a sync of the whole log: without the metadata log no other log can be found."""
        if not self._partitions.fsync:
            self._written.add(partition)
            self._flush_soon(partition)

    def _flush_soon(self, partition: Partition) -> None:
        self._sealed[partition] = None
        if not self._is_flushing:
            self._is_flushing = True
            self._runtime.call_later(0, self._flush_next)

    def stop(self) -> None:
        """Cancels the pending save."""
        if self._save_timer is not None:
            self._save_timer.cancel()

    def _flush_next(self) -> None:
        while self._sealed:
            partition = next(iter(self._sealed))
            del self._sealed[partition]
            is_whole = partition in self._written
            self._written.discard(partition)
            if self._is_open(partition) and (is_whole or partition.log.needs_flush):
                opened = partition.log
                pending = opened.prepare_sync() if is_whole else opened.prepare_flush()
                self._background.run(pending.run, partial(self._flushed, partition, pending))
                return
        self._is_flushing = False

    def _flushed(
        self, partition: Partition, pending: PendingSync, problem: Exception | None
    ) -> None:
        if problem is None:
            partition.log.complete_sync(pending)
            self.save_soon()
        else:
            log.warning("%s could not be flushed and will be retried: %s", partition.name, problem)
            if pending.end_offset > partition.log.segments[-1].base_offset:
                self._written.add(partition)
            self._runtime.call_later(RETRY_FLUSH_MS, lambda: self._flush_again(partition))
        self._flush_next()

    def _flush_again(self, partition: Partition) -> None:
        if self._is_open(partition):
            self._flush_soon(partition)

    def _is_open(self, partition: Partition) -> bool:
        return self._partitions.by_name.get(partition.name) is partition

    # -- recovery points
    # ----------------------------------------------------------------------------------

    def save_soon(self) -> None:
        """Schedules a save of the recovery points in a second."""
        if self._save_timer is None:
            self._save_timer = self._runtime.call_later(SAVE_DELAY_MS, self.save)

    def save(self) -> None:
        """Saves the recovery points now; after a failure it tries again later."""
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None
        if self._is_saving:
            self.save_soon()
            return
        closed, self._closed = self._closed, {}
        then, self._when_saved = self._when_saved, []
        unclean = (each for each, is_clean in closed.items() if not is_clean)
        try:
            save = self._layout.prepare_checkpoints(
                [*self._partitions.by_name.values(), *unclean],
                sync=self._partitions.fsync,
                closed=[each for each, is_clean in closed.items() if is_clean],
            )
        except StorageError as problem:
            log.warning("%s; it is tried again later", problem)
            self.save_soon()
            _call_all(then)
            return
        if save is None:
            _call_all(then)
            return
        self._is_saving = True
        self._background.run(save.run, partial(self._saved, save, closed, then))

    def save_closed(self, partitions: Mapping[Partition, bool], done: Callable[[], None]) -> None:
        """Saves the offsets of partitions that were just closed; `done` even if that fails.

        Their next leader only takes longer to open them with outdated offsets. The values say
        whether a partition was closed cleanly.
        """
        self._closed.update(partitions)
        self._when_saved.append(done)
        if not self._is_saving:
            self.save()

    def _saved(
        self,
        save: Save,
        closed: Mapping[Partition, bool],
        then: list[Callable[[], None]],
        problem: Exception | None,
    ) -> None:
        self._is_saving = False
        if problem is None:
            try:
                if self._layout.complete_save(save):
                    self._background.run(self._layout.sync_names, partial(self._named, then))
                    return
                # A partition was deleted, so what was written is outdated.
                self._closed.update(closed)
                self._when_saved += then
                then = []
            except StorageError as refused:
                problem = refused
        if problem is not None:
            log.warning("%s; it is tried again later", problem)
        if self._when_saved:
            self.save()
        else:
            self.save_soon()
        _call_all(then)

    def _named(self, then: list[Callable[[], None]], problem: Exception | None) -> None:
        if problem is not None:
            log.warning("after a power loss, recovery may read more than needed: %s", problem)
        if self._when_saved and not self._is_saving:
            self.save()
        _call_all(then)


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()
