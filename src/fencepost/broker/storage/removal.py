"""Removes the folders of deleted partitions in a thread, a few at a time.

The loop renames the folder of a deleted partition at once (`Layout.delete`). Removing its files
takes longer, and no request waits for it. Folders that are left when the broker stops or dies end
in -delete, and the next start removes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from fencepost.base.seams import Disk

log = logging.getLogger(__name__)

REMOVED_AT_ONCE: Final = 16
"""Folders per job; a stop waits for the running job."""


class Removal:
    """The queue of folders to remove."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: deque[str] = deque()
        self._running: asyncio.Future[list[str]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    def start(self, loop: asyncio.AbstractEventLoop, left_over: Iterable[str]) -> None:
        """Begins with the folders that earlier processes left."""
        self._loop = loop
        self.add(left_over)

    def add(self, folders: Iterable[str]) -> None:
        """Queues folders."""
        self._waiting.extend(folders)
        if self._running is None:
            self._next()

    def _next(self) -> None:
        if self._stopped or not self._waiting or self._loop is None:
            self._running = None
            return
        count = min(REMOVED_AT_ONCE, len(self._waiting))
        folders = [self._waiting.popleft() for _ in range(count)]
        self._running = self._loop.run_in_executor(None, _remove, self._disk, folders)
        self._running.add_done_callback(self._removed)

    def _removed(self, done: asyncio.Future[list[str]]) -> None:
        if done.cancelled():
            return
        for problem in done.result():
            log.warning("%s; the next start will try again", problem)
        self._next()

    async def stop(self) -> None:
        """Returns when no job is running; queued folders are left to the next start."""
        self._stopped = True
        if self._running is not None:
            await asyncio.wait((self._running,))


def _remove(disk: Disk, folders: Sequence[str]) -> list[str]:
    """Runs in a thread and touches only the disk; returns a message per folder that failed."""
    problems = []
    for folder in folders:
        try:
            disk.remove_tree(folder)
        except OSError as problem:
            problems.append(f"{folder} cannot be removed: {problem}")
    return problems
