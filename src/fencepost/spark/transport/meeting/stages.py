"""Where the tasks of all direct writes of `route()` find each other: one rendezvous for all stages.

A routed DataFrame runs in any number of jobs, and nobody could say when it runs for the last time.
So its tasks call a listener that ends with the driver's process, or when a later application of the
same process opens its own. A line names the stage:

    task   -> driver   [number, task, tasks, host, port, attempt], else as in `rendezvous.py`

Spark gives every stage of an application its own number, and a barrier stage that fails fails the
job. A task that waits for others which never come is disconnected after a while.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.spark.transport.exchange import Meeting
from fencepost.spark.transport.meeting.driver_listener import DriverListener, LineConnection
from fencepost.spark.transport.meeting.handshake import make_secret
from fencepost.spark.transport.meeting.rendezvous import Gathering

if TYPE_CHECKING:
    from collections.abc import Callable

GATHERING_SECONDS: Final = 60.0
"""How long a task waits for the others of its stage, which Spark starts at the same time."""


class StagesAddress(NamedTuple):
    """How the tasks of all stages reach the driver."""

    host: str
    port: int
    secret: bytes

    def meeting(self, stage: int, hosts: tuple[str, ...]) -> Meeting:
        """How the tasks of one stage meet.

        Their secret is that of the stage: what an earlier stage has left running does not have it,
        if it calls a port that now belongs to another task.
        """
        name = f"stage {stage}".encode("ascii")
        secret = hmac.new(self.secret, name, hashlib.sha256).digest()
        return Meeting((self.host, self.port), secret, hosts, (stage, self.secret))


class StageRendezvous:
    """The driver's side."""

    def __init__(self, host: str, bind_host: str) -> None:
        secret = make_secret()
        self._listener = DriverListener(host, bind_host, secret, self._serve, "stages")
        self.address = StagesAddress(*self._listener.address, secret)
        self._lock = threading.Lock()
        self._gatherings: dict[int, Gathering] = {}
        """The tasks of each stage that is starting."""
        self._listener.start()

    def close(self) -> None:
        """Disconnects everybody."""
        with self._lock:
            gatherings = list(self._gatherings.values())
        for gathering in gatherings:
            gathering.close()
        self._listener.close()

    def _serve(self, caller: LineConnection) -> None:
        stage, *content = caller.read()
        with self._lock:
            gathering = self._gatherings.setdefault(stage, Gathering())
        try:
            gathering.serve(caller, *content, seconds=GATHERING_SECONDS)
        finally:
            with self._lock:
                if gathering.is_over:
                    self._gatherings.pop(stage, None)


_open: Final[dict[str, StageRendezvous]] = {}
"""The rendezvous of this process, by its application."""
_opening: Final = threading.Lock()


def rendezvous_of(application: str, place: Callable[[], tuple[str, str]]) -> StageRendezvous:
    """That of this application, opened at the first call."""
    with _opening:
        found = _open.get(application)
        if found is None:
            # A process has one application at a time.
            while _open:
                _open.popitem()[1].close()
            found = _open[application] = StageRendezvous(*place())
        return found
