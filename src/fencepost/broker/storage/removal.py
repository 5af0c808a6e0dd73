"""Removes the folders of deleted partitions, in a thread, a few at a time.

A deleted partition loses its name on the loop, at once (`Layout.delete`); what takes long is to
remove its files. Nobody waits for that. What is left when the broker stops or dies has a name that
ends in -delete, and the next start goes on with it.
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
"""Folders of one job: a stop waits for one job."""


class Removal:
    """The folders that are still to go."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: deque[str] = deque()
        self._running: asyncio.Future[list[str]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    def start(self, loop: asyncio.AbstractEventLoop, left_over: Iterable[str]) -> None:
        self._loop = loop
        self.add(left_over)

    def add(self, folders: Iterable[str]) -> None:
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
            log.warning("%s; the next start tries again", problem)
        self._next()

    async def stop(self) -> None:
        """Returns when no job is under way; what has not begun is left to the next start."""
        self._stopped = True
        if self._running is not None:
            await asyncio.wait((self._running,))


def _remove(disk: Disk, folders: Sequence[str]) -> list[str]:
    """Runs in a thread, and touches nothing but the disk; what did not go, in sentences."""
    problems = []
    for folder in folders:
        try:
            disk.remove_tree(folder)
        except OSError as problem:
            problems.append(f"{folder} cannot be removed: {problem}")
    return problems
