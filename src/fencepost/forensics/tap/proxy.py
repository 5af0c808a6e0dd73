"""All connections of a tap, on the running asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fencepost.base.failures import FencepostError
from fencepost.client.options import Endpoint
from fencepost.forensics.tap.addresses import Addresses
from fencepost.forensics.tap.decoding.conversation import Conversation
from fencepost.forensics.tap.dialing import reach
from fencepost.forensics.tap.relay import WOULD_BLOCK, Relay
from fencepost.forensics.tap.sinks import Sink
from fencepost.records.trace import TAP_STOPPED, Body, opening_line

_ACCEPT_PAUSE_SECONDS: Final = 0.2
"""After a failed accept: the process has too many open files."""
_ACCEPTS_IN_TURN: Final = 64
WAITING_SECONDS: Final = 1.0
"""How often a line says that requests wait. Without it, the trace of a client that hangs would end
with its last request, and not show for how long it has been hanging."""


@dataclass(frozen=True, slots=True)
class TapOptions:
    """Where a tap listens, and the cluster behind it."""

    listen: Endpoint
    to: tuple[Endpoint, ...]
    tls: ssl.SSLContext | None = None
    keeps_bytes: bool = False
    """Whether the trace has the first bytes of requests."""


class MicrosecondClock:
    """Wall time that does not jump: read once, then counted on by the monotonic clock."""

    def __init__(self) -> None:
        self._start_us = time.time_ns() // 1000 - time.perf_counter_ns() // 1000

    def __call__(self) -> int:
        return self._start_us + time.perf_counter_ns() // 1000


class Tally:
    """Counts what passes: requests, errors by name, bytes and connections."""

    def __init__(self) -> None:
        self.requests = 0
        self.undecoded = 0
        self.errors: Counter[str] = Counter()
        self.request_bytes = 0
        self.reply_bytes = 0
        self.connections = 0

    def add(self, line: Body) -> None:
        """Counts one line."""
        kind = line["kind"]
        if kind == "request":
            self.requests += 1
            self.undecoded += line.get("decoded") is False
            self.request_bytes += line["size_bytes"]
        elif kind == "reply":
            self.reply_bytes += line["size_bytes"]
            self.errors.update(line.get("errors", ()))
        elif line.get("event") == "opened":
            self.connections += 1

    def as_line(self, now_us: int) -> Body:
        """Returns the last line of a trace."""
        return {"time_us": now_us, "kind": "summary", **self.fields()}

    def fields(self) -> dict[str, Any]:
        """Returns the counts."""
        return {
            "requests": self.requests,
            "undecoded_requests": self.undecoded,
            "errors": dict(self.errors.most_common()),
            "request_bytes": self.request_bytes,
            "reply_bytes": self.reply_bytes,
            "connections": self.connections,
        }


class Proxy:
    """The listeners, and a relay for each connection."""

    def __init__(
        self,
        options: TapOptions,
        sinks: Sequence[Sink],
        announce: Callable[[Endpoint, Endpoint, int | None], None],
        now_us: Callable[[], int] | None = None,
    ) -> None:
        """`announce` receives the local address of each broker and its id, if it has one."""
        self._options = options
        self._sinks = sinks
        self._announce = announce
        self._now_us = now_us or MicrosecondClock()
        self._loop = asyncio.get_running_loop()
        self.tally: Final = Tally()
        self._relays: dict[Relay, Body] = {}
        self._listeners: list[socket.socket] = []
        self._dials: set[asyncio.Task[None]] = set()
        self._numbers = 0
        self._naming: int | None = None
        first = opening_line("tap", self._now_us(), to=[str(each) for each in options.to])
        for sink in sinks:
            sink.write(first)
        self.addresses: Final = Addresses(options.listen, options.to, self._listen)
        self._report = self._loop.call_later(WAITING_SECONDS, self._report_waiting)

    def close(self) -> None:
        """Closes everything, and writes the summary."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._report.cancel()
        for dial in self._dials:
            dial.cancel()
        for relay in list(self._relays):
            relay.close(TAP_STOPPED)
        for sink in self._sinks:
            sink.write(self.tally.as_line(self._now_us()))

    # Listeners.

    def _listen(self, listener: socket.socket, brokers: Sequence[Endpoint]) -> None:
        self._listeners.append(listener)
        self._loop.add_reader(listener, self._accept, listener, brokers)
        local = Endpoint(*listener.getsockname()[:2])
        line: Body = {
            "time_us": self._now_us(),
            "kind": "listener",
            "listen": str(local),
            "to": [str(each) for each in brokers],
        }
        if self._naming is not None:
            line["broker"] = self._naming
        self._write(line)
        for broker in brokers:
            self._announce(local, broker, self._naming)

    def _accept(self, listener: socket.socket, brokers: Sequence[Endpoint]) -> None:
        for _ in range(_ACCEPTS_IN_TURN):
            try:
                client, _ = listener.accept()
            except WOULD_BLOCK:
                return
            except OSError as problem:
                self._pause(listener, brokers, problem)
                return
            self._numbers += 1
            dial = self._loop.create_task(self._connect(client, brokers, self._numbers))
            self._dials.add(dial)
            dial.add_done_callback(self._dials.discard)

    def _pause(
        self, listener: socket.socket, brokers: Sequence[Endpoint], problem: OSError
    ) -> None:
        """Accepts again later, when connections have ended."""
        reason = f"a connection could not be accepted: {problem.strerror}"
        self._write(
            {
                "time_us": self._now_us(),
                "kind": "connection",
                "event": "refused",
                "reason": reason,
            }
        )
        self._loop.remove_reader(listener)

        def resume() -> None:
            if listener.fileno() >= 0:
                self._loop.add_reader(listener, self._accept, listener, brokers)

        self._loop.call_later(_ACCEPT_PAUSE_SECONDS, resume)

    # Connections.

    async def _connect(
        self, client: socket.socket, brokers: Sequence[Endpoint], number: int
    ) -> None:
        """Opens the connection to the broker; the client waits for it."""
        where = _describe(client, number)
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            local_host = client.getsockname()[0]
            broker, endpoint = await reach(brokers, self._options.tls)
        except (OSError, FencepostError) as problem:
            client.close()
            self._event(where, "failed", str(problem))
            return
        except BaseException:
            client.close()
            raise
        where["address"] = str(endpoint)
        through = str(Endpoint(*broker.getsockname()[:2]))
        self._event(where, "opened", through=through)
        self._relay(client, broker, endpoint, local_host, where)

    def _relay(
        self,
        client: socket.socket,
        broker: socket.socket,
        endpoint: Endpoint,
        local_host: str,
        where: Body,
    ) -> None:
        def translate(host: str, port: int, node_id: int) -> tuple[str, int]:
            self._naming = node_id if node_id >= 0 else None
            return local_host, self.addresses.local_port(Endpoint(host, port), node_id)

        def on_lines(lines: list[Body]) -> None:
            for line in lines:
                # Known once a reply has named the broker.
                self._write(_placed(line, where, self.addresses.node_id(endpoint)))

        relay = Relay(
            self._loop,
            client,
            broker,
            Conversation(translate, keeps_bytes=self._options.keeps_bytes),
            self._now_us,
            on_lines,
            self._ended,
        )
        self._relays[relay] = where
        relay.start()

    def _ended(self, relay: Relay, reason: str) -> None:
        where = self._relays.pop(relay)
        more = {
            "unanswered_requests": relay.conversation.unanswered,
            "request_bytes": relay.client.bytes_read,
            "reply_bytes": relay.broker.bytes_read,
        }
        self._event(where, "closed", reason, **more)

    # Lines.

    def _event(self, where: Body, event: str, reason: str | None = None, **more: Any) -> None:
        line: Body = {"time_us": self._now_us(), "kind": "connection", "event": event, **more}
        if reason is not None:
            line["reason"] = reason
        self._write(_placed(line, where, None))

    def _report_waiting(self) -> None:
        waiting = sum(relay.conversation.unanswered for relay in self._relays)
        if waiting:
            line = {"time_us": self._now_us(), "kind": "waiting", "unanswered_requests": waiting}
            self._write(line)
        self._report = self._loop.call_later(WAITING_SECONDS, self._report_waiting)

    def _write(self, line: Body) -> None:
        self.tally.add(line)
        for sink in self._sinks:
            sink.write(line)


def _describe(client: socket.socket, number: int) -> Body:
    with contextlib.suppress(OSError):
        return {"connection": number, "client": str(Endpoint(*client.getpeername()[:2]))}
    return {"connection": number, "client": None}


def _placed(line: Body, where: Body, node_id: int | None) -> Body:
    """A line with its connection and broker, in the order of the format."""
    placed: Body = {"time_us": line["time_us"], "kind": line["kind"], **where}
    if node_id is not None:
        placed["broker"] = node_id
    return placed | line
