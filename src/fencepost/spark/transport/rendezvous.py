"""How the tasks of a barrier stage find each other, through the driver.

Every task connects to the driver and sends its address and its attempt. When all have connected,
each receives the addresses and attempts of all. Spark's own `allGather` does this too, but answers
a second late. A task that connects a second time is refused: there must never be two attempts of
one task.

    task   -> driver   a handshake (`handshake.py`), then a line: [task, tasks, host, port, attempt]
    driver -> task     a line: [[host, port, attempt], ...], or an error message

The driver is reached at the address at which Spark's executors reach it (`spark.driver.host`) and
listens where Spark's driver listens (`spark.driver.bindAddress`).
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

from fencepost.spark.failures import CountsDisagree, PeerLost
from fencepost.spark.transport.handshake import admit, connect

CALL_SECONDS: Final = 30.0
_MAX_LINE_BYTES: Final = 64 * 1024


class Peer(NamedTuple):
    """A task of the stage: where it listens (port 0: nowhere), and which attempt it is."""

    host: str
    port: int
    task_attempt_id: int


class Rendezvous:
    """The driver's side, for the duration of the job."""

    def __init__(self, host: str, bind_host: str, secret: bytes) -> None:
        """`host` is how tasks reach the driver; `bind_host`, where it listens."""
        self._secret = secret
        family = socket.AF_INET6 if ":" in bind_host else socket.AF_INET
        self._listener = socket.create_server((bind_host, 0), family=family, backlog=64)
        self.address: tuple[str, int] = (host, self._listener.getsockname()[1])
        self.callers: dict[int, tuple[Peer, socket.socket]] = {}
        self._changing = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="rendezvous", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects the tasks that are still waiting."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        with self._changing:
            self._is_closed = True
            for _, caller in self.callers.values():
                with suppress(OSError):
                    caller.shutdown(socket.SHUT_RDWR)
                caller.close()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            # A thread for each: a stranger that says nothing must not keep the tasks waiting.
            threading.Thread(
                target=self._welcome, args=(caller,), name="rendezvous", daemon=True
            ).start()

    def _welcome(self, caller: socket.socket) -> None:
        # A caller that is not a task of ours, or is gone already.
        with suppress(OSError, ValueError, PeerLost):
            if admit(caller, self._secret) and self._register(caller):
                return
        caller.close()

    def _register(self, caller: socket.socket) -> bool:
        """Whether the task now waits for the others, or has its answer."""
        caller.settimeout(CALL_SECONDS)
        with caller.makefile("rb") as stream:
            task, tasks, *peer = json.loads(stream.readline(_MAX_LINE_BYTES))
        with self._changing:
            if self._is_closed:
                return False
            if task in self.callers:
                caller.sendall(_line(f"task {task} of the write stage runs for a second time"))
                return False
            self.callers[task] = (Peer(*peer), caller)
            if len(self.callers) == tasks:
                self._introduce()
        return True

    def _introduce(self) -> None:
        everybody = _line([peer for _, (peer, _) in sorted(self.callers.items())])
        for _, caller in self.callers.values():
            with suppress(OSError):
                caller.sendall(everybody)


class RendezvousCall:
    """A task's side."""

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        host, port = address
        try:
            self._socket = connect(address, secret)
        except (OSError, PeerLost) as problem:
            raise PeerLost(
                f"the driver cannot be reached at {host}:{port} (spark.driver.host): {problem}"
            ) from None
        self.local_host: str = self._socket.getsockname()[0]
        """The address of this machine as the driver sees it."""

    def meet(self, task: int, tasks: int, me: Peer) -> list[Peer]:
        """All tasks, in order; waits until all have connected."""
        with self._socket, self._socket.makefile("rb") as stream:
            self._socket.sendall(_line([task, tasks, *me]))
            # The others may wait for a free slot; Spark kills this task if they never come.
            self._socket.settimeout(None)
            answer = stream.readline(_MAX_LINE_BYTES)
        if not answer:
            raise PeerLost("the driver has hung up before all tasks were there")
        found: Any = json.loads(answer)
        if isinstance(found, str):
            raise CountsDisagree(found)
        return [Peer(*one) for one in found]


def _line(content: object) -> bytes:
    return json.dumps(content).encode("utf-8") + b"\n"
