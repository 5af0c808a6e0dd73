"""Opens batches: short ones at once, large ones beside the loop's other work, one at a time.

A batch may unpack to hundreds of megabytes and hold millions of records. A thread decompresses and
compresses what is more than `SHORT_BYTES`. The loop checks the records, some in each turn, so that
other requests are served in between: in a thread this work would hold the interpreter lock, and
compiled code would hold it until the end. Only one large batch is open at a time, because each may
decompress to `MAX_DECOMPRESSED_BYTES`.

Until then the request holds back the requests behind it on its connection: the batches of a
producer are appended in its order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from fencepost.broker.turns import Turn
from fencepost.partition.opening import SHORT_BYTES, Opening

log = logging.getLogger(__name__)

Callback = Callable[[], None]


class Opener:
    """The worker and its queue."""

    def __init__(self, on_fatal: Callable[[str], None]) -> None:
        self._on_fatal = on_fatal
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs: deque[tuple[Sequence[Opening], Callback]] = deque()
        self._batches: deque[Opening] = deque()
        """Those of the first job that are not open yet."""
        self._is_busy = False
        self._is_closed = False
        self.scratch: Final = bytearray(SHORT_BYTES)
        """Where short batches are unpacked, one after the other."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the loop that the work runs in."""
        self._loop = loop

    def close(self) -> None:
        """Stops opening and calling back: the logs are about to close."""
        self._is_closed = True

    def open(self, openings: Sequence[Opening], opened: Callback) -> None:
        """Opens these batches, of which some may be open already, then calls back."""
        self._jobs.append((openings, opened))
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        self._is_busy = True
        self._batches.extend(self._jobs[0][0])
        self._unpack()

    def _unpack(self) -> None:
        assert self._loop is not None
        if self._batches[0].is_unpacked:
            self._loop.call_soon(self._step)
        else:
            self._run(self._batches[0].unpack, self._step)

    def _step(self) -> None:
        assert self._loop is not None
        if self._is_closed:
            return
        batch = self._batches[0]
        turn = Turn()
        while not batch.step():
            if turn.is_over():
                self._loop.call_soon(self._step)
                return
        if batch.must_pack:
            self._run(batch.pack, self._packed)
        else:
            batch.pack()
            self._packed()

    def _packed(self) -> None:
        self._batches.popleft()
        if self._batches:
            self._unpack()
            return
        _, opened = self._jobs.popleft()
        try:
            opened()
        except Exception as problem:
            log.critical("a batch was opened, but its request could not continue", exc_info=True)
            self._on_fatal(f"a request could not continue: {type(problem).__name__}: {problem}")
            return
        # Not before: the request that went on may have let another one in, which has queued its
        # batches.
        self._is_busy = False
        if self._jobs:
            self._begin()

    def _run(self, work: Callback, then: Callback) -> None:
        """Does the work in a thread, then continues in the loop."""
        assert self._loop is not None

        def done(future: asyncio.Future[None]) -> None:
            if self._is_closed or future.cancelled():
                return
            problem = future.exception()
            if problem is not None:
                log.critical("a batch could not be opened", exc_info=problem)
                self._on_fatal(f"a batch could not be opened: {type(problem).__name__}: {problem}")
                return
            then()

        self._loop.run_in_executor(None, work).add_done_callback(done)
