"""Users of a stopped data directory: its metadata log is read and written without a broker.

For a cluster that has no users yet, or none who can log in. Only the metadata log is opened, so it
does not matter how many brokers used the directory, nor how they stopped. A clean stop is still one
afterwards; after a crash the next start recovers everything as it would have. What is written is
synced before this returns.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from fencepost.base.failures import ConfigError, StorageError, SyncError
from fencepost.base.seams import Clock, Disk
from fencepost.broker.controller.metadata_log import MetadataLog
from fencepost.broker.metadata.follower import MetadataFollower
from fencepost.broker.partitions.partition_host import PartitionHost
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.storage.directory_lock import DirectoryLock, refuse_used
from fencepost.broker.storage.layout import Layout
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.coordinator.metadata.users import UserChange, UserOutcome, decide_alter_users

T = TypeVar("T")


def alter_offline(
    clock: Clock, disk: Disk, folder: str, changes: Sequence[UserChange]
) -> list[UserOutcome]:
    """Changes users; ConfigError or StorageError if the directory cannot be used."""

    def alter(metadata_log: MetadataLog, state: MetadataState) -> list[UserOutcome]:
        decision, outcomes = decide_alter_users(state, changes)
        if decision.records:
            metadata_log.commit_now(decision)
        return outcomes

    return _with_log(clock, disk, folder, alter)


def users_offline(clock: Clock, disk: Disk, folder: str) -> dict[str, dict[int, int]]:
    """The users, and the iterations of each of their mechanisms."""
    return _with_log(
        clock,
        disk,
        folder,
        lambda _, state: {
            user: {number: each.iterations for number, each in sorted(credentials.items())}
            for user, credentials in sorted(state.users.items())
        },
    )


def with_lock(folder: str, work: Callable[[str], T]) -> T:
    """Runs the work while no broker uses the directory."""
    refuse_used(folder)
    folder = folder.rstrip("/") or "/"
    if not os.path.exists(f"{folder}/meta.properties"):
        raise ConfigError(
            f"{folder} is not a data directory yet. Start a broker on it with "
            "`fencepost serve --init-admin NAME`, which creates the first user."
        )
    lock = DirectoryLock(folder, advice="Users are written to it.")
    try:
        return work(folder)
    except OSError as problem:
        raise StorageError(
            f"{folder} could not be read or written: {problem}. Nothing was lost; try again when "
            "the disk works."
        ) from problem
    finally:
        lock.release()


def _with_log(
    clock: Clock, disk: Disk, folder: str, work: Callable[[MetadataLog, MetadataState], T]
) -> T:
    return asyncio.run(_run(clock, disk, folder, work))


async def _run(
    clock: Clock, disk: Disk, folder: str, work: Callable[[MetadataLog, MetadataState], T]
) -> T:
    # In fsync mode the marks of the directory say no less after this than before.
    config = BrokerConfig({"log.dirs": folder, "durability": "fsync"})
    host = PartitionHost(
        config,
        lambda patient: Layout(patient, folder),
        clock=clock,
        disk=disk,
        on_fatal=_on_fatal,
    )
    host.attach(asyncio.get_running_loop())
    host.layout.load()
    # Checkpoints of several brokers are merged by the next start, not here.
    is_clean = host.layout.clean and not host.layout.has_cluster_files
    follower = MetadataFollower()
    metadata_log = MetadataLog(
        host.runtime, host.layout, host.store, host.background, host.flusher, follower
    )
    is_done = False
    try:
        metadata_log.load()
        result = work(metadata_log, follower.state)
        is_done = True
        return result
    finally:
        host.flusher.stop()
        await host.finish_work()
        host.store.close_all(clean=is_done and is_clean, settled=is_clean)


def _on_fatal(reason: str) -> None:
    raise SyncError(reason)
