"""A partition on a disk in memory that can be crashed and opened again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.log.config import LogConfig
from fencepost.log.opening import open_log
from fencepost.partition.partition import Partition
from fencepost.simulation.disk import UnsyncedDisk

FOLDER = "/data/t-0"


class PartitionStage:
    """One partition and its disk."""

    def __init__(self, *, durable_at_append: bool = True, **config: object) -> None:
        self.disk = UnsyncedDisk()
        self.disk.make_dir(FOLDER)
        self.config = LogConfig(**config)  # type: ignore[arg-type]
        self._durable_at_append = durable_at_append
        self.partition = self._open(clean=True)

    def _open(self, *, clean: bool, recovery_point: int = 0) -> Partition:
        log = open_log(
            self.disk, FOLDER, self.config, now_ms=0, clean=clean, recovery_point=recovery_point
        )
        return Partition(
            TopicPartition("t", 0), bytes(16), 0, log, durable_at_append=self._durable_at_append
        )

    def kill(self) -> Partition:
        """Kills and restarts the process: all writes survive, nothing was closed."""
        self.disk.kill()
        point = self.partition.log.saved_recovery_point
        self.partition = self._open(clean=False, recovery_point=point)
        return self.partition

    def restart(self) -> Partition:
        """A clean stop and start."""
        self.partition.close(clean=True)
        self.partition = self._open(clean=True)
        return self.partition


@pytest.fixture
def new_world() -> Callable[..., PartitionStage]:
    return PartitionStage


def retain(partition: Partition, now_ms: int) -> int:
    """Runs all steps of retention; returns the number of removed segments."""
    steps = partition.retention(now_ms)
    try:
        while True:
            next(steps).run()
    except StopIteration as done:
        return int(done.value)
