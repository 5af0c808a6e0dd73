"""How the tasks of a barrier stage find each other, through the driver.

Every task connects to the driver and sends its address and its attempt. When all have connected,
each receives the addresses and attempts of all. Spark's own `allGather` does this too, but answers
a second late. A task that connects a second time is refused: there must never be two attempts of
one task.

    task   -> driver   one line: [task, tasks, host, port, attempt]
    driver -> task     one line: [[host, port, attempt], ...], or an error message
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, Self

from fencepost.spark.failures import CountsDisagree, PeerLost
from fencepost.spark.ways.meeting.driver_listener import DriverListener, LineConnection


class Peer(NamedTuple):
    """A task of the stage: where it listens (port 0: nowhere), and which attempt it is."""

    host: str
    port: int
    task_attempt_id: int


class Rendezvous:
    """The driver's side, for the duration of the job."""

    def __init__(self, host: str, bind_host: str, secret: bytes) -> None:
        self._listener = DriverListener(host, bind_host, secret, self._serve, "rendezvous")
        self.address = self._listener.address
        self.callers: dict[int, Peer] = {}
        """The tasks that have connected."""
        self._changed = threading.Condition()
        self._is_closed = False

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects the tasks that are still waiting."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._listener.close()

    def _serve(self, caller: LineConnection) -> None:
        """Answers one task when all have connected."""
        task, tasks, *peer = caller.read()
        with self._changed:
            if task in self.callers:
                caller.send(f"task {task} of the write stage runs for a second time")
                return
            self.callers[task] = Peer(*peer)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self.callers) == tasks or self._is_closed)
            everybody = [peer for _, peer in sorted(self.callers.items())]
        if len(everybody) == tasks:
            caller.send(everybody)


class RendezvousCall:
    """A task's side."""

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        self._driver = LineConnection.to_driver(address, secret)
        self.local_host = self._driver.local_host
        """The address of this machine as the driver sees it."""

    def meet(self, task: int, tasks: int, me: Peer) -> list[Peer]:
        """All tasks, in order; waits until all have connected."""
        with self._driver as driver:
            driver.send([task, tasks, *me])
            # The others may wait for a free slot; Spark kills this task if they never come.
            driver.wait_without_limit()
            try:
                found: Any = driver.read()
            except PeerLost:
                raise PeerLost("the driver has hung up before all tasks were there") from None
        if isinstance(found, str):
            raise CountsDisagree(found)
        return [Peer(*one) for one in found]
