"""Where lines go: a file, or standard output.

A file gets each line in one write, so that it is complete after kill -9. A disk that fails ends the
writing and not the proxy.

Standard output may be slower than the traffic: a terminal, a pipe to `less`. Waiting for it would
stop all clients, so a thread writes, and what does not fit into its queue is dropped and counted.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Final, Protocol

from fencepost.base.failures import FencepostError
from fencepost.records.trace import Body, as_text

QUEUED_LINES: Final = 10_000
_STOP_SECONDS: Final = 2.0


class Sink(Protocol):
    """Receives the lines of a tap."""

    def write(self, line: Body) -> None: ...

    def close(self) -> None: ...


class FileSink:
    """Appends JSON lines to a new file."""

    def __init__(self, path: str, complain: Callable[[str], None]) -> None:
        self._path = path
        self._complain = complain
        self._descriptor: int | None = None
        try:
            # For its owner only: client ids, topics and groups are private.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as problem:
            raise FencepostError(f"Cannot write to {path}: {problem.strerror}.") from problem

    def write(self, line: Body) -> None:
        """Writes a line; after a failure it does nothing."""
        if self._descriptor is None:
            return
        data = as_text(line).encode()
        try:
            written = os.write(self._descriptor, data)
            if written != len(data):
                raise OSError(0, f"only {written} of {len(data)} bytes were written")
        except OSError as problem:
            self.close()
            self._complain(
                f"writing to {self._path} failed ({problem.strerror}); clients are still served, "
                "and no more lines are written"
            )

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class OutputSink:
    """Prints lines from a thread, in the format of `show`; drops lines if they are not read."""

    def __init__(
        self,
        show: Callable[[Body], str | None],
        lost: Callable[[int], str],
        descriptor: int,
    ) -> None:
        """`lost` formats the number of dropped lines."""
        self._show = show
        self._lost = lost
        self._descriptor = descriptor
        self._queue: queue.Queue[str | None] = queue.Queue(QUEUED_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="tap output", daemon=True)
        self._thread.start()

    def write(self, line: Body) -> None:
        """Prints a line soon."""
        text = self._show(line)
        if text is None:
            return
        try:
            if self._dropped:
                self._queue.put_nowait(self._lost(self._dropped))
                self._dropped = 0
            self._queue.put_nowait(text)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Prints what waits, but does not wait long for a reader that has stopped."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_STOP_SECONDS)
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while (text := self._queue.get()) is not None:
            data = memoryview(text.encode())
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                return  # The reader has gone. The queue fills up, and lines are dropped.


def lost_as_json(count: int) -> str:
    """The line that stands for dropped ones."""
    return as_text({"kind": "lost", "lines": count, "reason": "standard output is read too slowly"})
