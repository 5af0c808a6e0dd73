"""The disk side of a process: its data directory, the partitions open in it, and their syncs.

Every process that opens a log has one: a broker, and the controller of a cluster, whose only
partition is the metadata log. Clock and disk are arguments.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from fencepost.base.failures import SyncError
from fencepost.broker.partitions.local_partitions import LocalPartitions
from fencepost.broker.runtime import Runtime
from fencepost.broker.storage.background import Background, Flusher
from fencepost.broker.storage.descriptors import UNLIMITED, Descriptors, PatientDisk, share_out
from fencepost.broker.storage.partition_store import PartitionStore
from fencepost.broker.storage.removal import Removal
from fencepost.log.segment.open_segments import OpenSegments

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from fencepost.base.seams import Clock, Disk
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.storage.partition_layout import PartitionLayout


L = TypeVar("L", bound="PartitionLayout")


class PartitionHost(Generic[L]):
    """The directory and the open partitions of one process."""

    def __init__(
        self,
        config: BrokerConfig,
        make_layout: Callable[[Disk], L],
        *,
        clock: Clock,
        disk: Disk,
        on_fatal: Callable[[str], None],
        descriptors: Descriptors | None = None,
        removes_folders: bool = True,
    ) -> None:
        """`removes_folders` is False if another process removes those of deleted partitions."""
        self.descriptors = descriptors or share_out(UNLIMITED, config.max_connections)
        open_segments = OpenSegments(self.descriptors.sealed, self.descriptors.growing)
        self.disk = PatientDisk(disk, open_segments.make_room)
        self.partitions = LocalPartitions(fsync=config.durability == "fsync", on_fatal=on_fatal)
        self.runtime = Runtime(clock, self.disk, self.partitions)
        self.layout = make_layout(self.disk)
        self.background = Background(self.partitions.end)
        self.flusher = Flusher(self.runtime, self.partitions, self.layout, self.background)
        self.removal = Removal(self.disk)
        self.store = PartitionStore(
            self.runtime,
            self.layout,
            self.partitions,
            open_segments,
            self.flusher,
            self.background,
            self.removal if removes_folders else None,
        )

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the loop that runs timers and syncs."""
        self.runtime.attach(loop)
        self.partitions.attach(loop)

    @contextmanager
    def ends_on_failed_sync(self) -> Iterator[None]:
        """Around a start or a stop: ends the process if a sync of a log fails in it."""
        try:
            yield
        except SyncError as problem:
            self.partitions.sync_failed(problem)
            raise  # Where the process lives on.

    async def finish_work(self) -> None:
        """Waits until nothing touches the disk, so that the logs can be closed."""
        await self.partitions.finish_syncs()
        await self.removal.stop()
        await self.background.finish()
