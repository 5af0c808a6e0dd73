"""Faults in front of any cluster: a proxy that looks at whole requests.

    client --frames--> proxy: meets the faults --> broker
    client <--in order-- proxy: addresses are its own <-- broker

A request is read to its end before any of it is forwarded. If it meets a fault, that decides: it is
answered here, lost, held, or forwarded and its reply changed or lost. Which fault it meets, and the
reply with an error, is the code of the broker (`broker.faults`).

    slots      one per request, in the order in which the client gets its replies
    asked      the slots of what was forwarded, in the order in which the broker replies
    behind     requests that wait: the broker is being reached, or one before them is held

A cut ends the client's connection. What was forwarded before takes effect all the same, and so does
what is held: the broker's side is closed when nothing is left to forward and to answer.

Every broker that a reply names gets a local port, so that clients never go around the proxy.
ApiVersions offers no version that is unknown here, so all requests of known APIs can be read.
Unknown APIs pass as they are.

`fencepost tap` is another proxy, and must be: it forwards bytes before it looks at them
(docs/decisions/0036).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, cast

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError, WireError
from fencepost.base.seams import Buffer
from fencepost.broker.faults import faults as mechanism
from fencepost.broker.faults.failed_replies import add_brokers, failed_reply
from fencepost.broker.faults.injection import throttled_reply
from fencepost.broker.handlers.api_versions import unsupported_version_reply
from fencepost.client.options import Endpoint, parse_bootstrap
from fencepost.wire.apis import BY_NUMBER, ApiKey
from fencepost.wire.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_correlation_id,
    read_request_header,
)
from fencepost.wire.framing import FrameBuffer
from fencepost.wire.schema import Form

_HOST: Final = "127.0.0.1"
_BACKLOG: Final = 512
_MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
"""Of requests and replies: more than brokers accept, and less than TLS looks like."""
_START_SECONDS: Final = 10.0
_CALL_SECONDS: Final = 60.0
_SIZE: Final = struct.Struct(">i")

_ADDRESSES: Final = {
    ApiKey.METADATA: "brokers",
    ApiKey.FIND_COORDINATOR: "coordinators",
    ApiKey.DESCRIBE_CLUSTER: "brokers",
    ApiKey.PRODUCE: "node_endpoints",
    ApiKey.FETCH: "node_endpoints",
    ApiKey.SHARE_FETCH: "node_endpoints",
    ApiKey.SHARE_ACKNOWLEDGE: "node_endpoints",
}
"""Where replies name brokers by host and port."""
_CHANGED: Final = frozenset({*_ADDRESSES, ApiKey.API_VERSIONS, ApiKey.CREATE_TOPICS})


class FaultProxy:
    """A proxy in front of a cluster, in a thread of its own; it carries `faults`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.on_problem: Callable[[BaseException], None] | None = None
        """Receives what goes wrong here, in the thread of the proxy."""
        self._servers = parse_bootstrap(bootstrap_servers)
        self.faults = mechanism.Faults()
        self.topic_names: dict[bytes, str] = {}
        """By topic id, from the replies that have named both."""
        self.address = ""
        """Where clients connect first."""
        self._ports: dict[Endpoint, int] = {}
        self._listeners: list[asyncio.Server] = []
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listens; FencepostError if no broker of the cluster accepts connections."""
        _require_reachable(self._servers)
        ready: Future[str] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="fencepost-faults", daemon=True
        )
        self._thread.start()
        self.address = ready.result(_START_SECONDS)

    def close(self) -> None:
        """Cuts all connections."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join()

    def call(self, function: Callable[[Any], None]) -> None:
        """Runs `function(proxy)` on the thread of the proxy."""
        if self._thread is None or self._loop is None:
            raise FencepostError("The proxy in front of the cluster is closed.")
        if threading.current_thread() is self._thread:
            function(self)
            return
        done: Future[None] = Future()

        def run() -> None:
            try:
                function(self)
                done.set_result(None)
            except BaseException as problem:  # noqa: BLE001 - raised to the caller
                done.set_exception(problem)

        self._loop.call_soon_threadsafe(run)
        done.result(_CALL_SECONDS)

    # -- on its thread

    def _run(self, ready: Future[str]) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve(ready))
        except BaseException as problem:
            if ready.done():
                raise
            ready.set_exception(problem)

    async def _serve(self, ready: Future[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        first = self._listen(self._servers)
        if len(self._servers) == 1:
            self._ports[self._servers[0]] = first
        await asyncio.gather(*self._tasks)
        ready.set_result(f"{_HOST}:{first}")
        await self._stopping.wait()
        for task in list(self._tasks):
            task.cancel()
        for server in self._listeners:
            server.close()
        for link in list(self._links):
            link.abort()

    def local_port(self, broker: Endpoint) -> int:
        """The port that leads to a broker."""
        if broker not in self._ports:
            self._ports[broker] = self._listen((broker,))
        return self._ports[broker]

    def _listen(self, brokers: Sequence[Endpoint]) -> int:
        """Accepts connections that lead to the first of these brokers that can be reached."""
        listener = socket.create_server((_HOST, 0), backlog=_BACKLOG)

        async def accept() -> None:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(lambda: self._link(brokers), sock=listener)
            self._listeners.append(server)

        self._start(accept())
        port: int = listener.getsockname()[1]
        return port

    def _link(self, brokers: Sequence[Endpoint]) -> _Side:
        link = Link(self)
        self._links.add(link)
        self._start(self._reach(link, brokers))
        return link.client

    async def _reach(self, link: Link, brokers: Sequence[Endpoint]) -> None:
        loop = asyncio.get_running_loop()
        for broker in brokers:
            with contextlib.suppress(OSError):
                await loop.create_connection(lambda: link.broker, *broker)
                link.resume()
                return
        link.abort()

    def _start(self, work: Any) -> None:
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def later(self, delay_ms: int, run: Callable[[], None]) -> None:
        """Runs something in so many milliseconds."""
        assert self._loop is not None
        self._loop.call_later(delay_ms / 1000, run)

    def forget(self, link: Link) -> None:
        """A connection has ended."""
        self._links.discard(link)


class Asked:
    """A request, and what faults want to know of it beside its body."""

    __slots__ = ("_names", "api", "api_version", "body", "client_id", "correlation_id", "frame")

    def __init__(self, frame: memoryview, names: dict[bytes, str]) -> None:
        """WireError if it cannot be read."""
        header = read_request_header(frame)
        self.frame = frame
        self.api = header.api_key
        self.api_version = header.api_version
        self.client_id = header.client_id
        self.correlation_id = header.correlation_id
        self._names = names
        if not header.api.serves(self.api_version):
            raise WireError(f"version {self.api_version} of {header.api.name} is not known here")
        self.body = decode_request(self.api, self.api_version, frame, header.body_offset)

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a topic, if a reply has had it."""
        return self._names.get(topic_id)

    @property
    def gets_reply(self) -> bool:
        """Whether the broker replies to it."""
        return self.api is not ApiKey.PRODUCE or self.body.acks != 0

    def reply(self, body: object, version: int | None = None) -> list[Buffer]:
        """The frame of a reply."""
        if version is None:
            version = self.api_version
        return encode_response(self.api, version, self.correlation_id, body)


class _Slot:
    """The place of a reply."""

    __slots__ = ("asked", "cuts", "error", "is_silent", "reply", "throttle_ms")

    def __init__(self, asked: Asked | None) -> None:
        self.asked = asked
        """None for a request that cannot be read."""
        self.reply: list[Buffer] | None = None
        self.cuts = False
        """Whether the connection is cut in the place of the reply."""
        self.is_silent = False
        """Whether the reply, and so all after it, never comes."""
        self.throttle_ms = 0
        self.error = ErrorCode.NONE
        """For Metadata: the error that a healthy reply gets."""


class Link:
    """A client's connection, and the one to the broker behind it."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self.client = _Side(self._from_client, self._client_has_left)
        self.broker = _Side(self._from_broker, self.abort)
        self._behind: deque[memoryview] = deque()
        self._slots: deque[_Slot] = deque()
        self._asked: deque[_Slot] = deque()
        self._holds = 1  # Until the broker is reached.
        self._has_left = False

    # -- requests

    def _from_client(self, frame: memoryview) -> None:
        self._behind.append(frame)
        self._look()

    def _look(self) -> None:
        try:
            while self._behind and not self._holds:
                self._meet(self._behind.popleft())
        except Exception as problem:  # noqa: BLE001 - reported
            self._fail_link(problem)
        self._close_if_done()

    def _meet(self, frame: memoryview) -> None:
        try:
            asked = Asked(frame, self._proxy.topic_names)
        except WireError:
            self._forward(frame, _Slot(None))
            return
        fault = None
        if self._proxy.faults:
            fault = self._proxy.faults.take(asked.api, asked.body, asked)
        if fault is None:
            self._forward(frame, _Slot(asked))
        else:
            self._carry_out(fault, asked)

    def _carry_out(self, fault: mechanism.Fault, asked: Asked) -> None:
        slot = _Slot(asked)
        match fault.action:
            case mechanism.FAIL:
                self._fail(asked, fault.error)
            case mechanism.LOSE_REQUEST:
                self._lose(slot, disconnect=fault.disconnect)
            case mechanism.LOSE_REPLY:
                slot.cuts, slot.is_silent = fault.disconnect, not fault.disconnect
                self._forward(asked.frame, slot)
                if not asked.gets_reply:
                    self._lose(slot, disconnect=fault.disconnect)
            case mechanism.THROTTLE:
                slot.throttle_ms = fault.delay_ms
                self._forward(asked.frame, slot)
                self._holds += 1
                self._proxy.later(fault.delay_ms, self.resume)
            case mechanism.DO:
                self._do(fault, asked)
            case mechanism.DELAY:
                self._holds += 1
                self._proxy.later(fault.delay_ms, lambda: self._release(asked))
            case mechanism.HOLD:
                assert fault.hold is not None
                self._holds += 1
                fault.hold(lambda: self._release(asked))
            case action:
                raise AssertionError(f"a proxy cannot {action}")

    def _fail(self, asked: Asked, error: ErrorCode) -> None:
        slot = _Slot(asked)
        if not asked.gets_reply:
            self.cut()  # The only way to show an error to a client that waits for none.
        elif asked.api is ApiKey.METADATA:
            self._ask_for_brokers(slot, error)
        elif asked.api is ApiKey.API_VERSIONS and error is ErrorCode.UNSUPPORTED_VERSION:
            self._answer(slot, asked.reply(unsupported_version_reply(), 0))
        else:
            failed = failed_reply(asked.api, asked.api_version, asked.body, error)
            self._answer(slot, asked.reply(failed))

    def _ask_for_brokers(self, slot: _Slot, error: ErrorCode) -> None:
        """The failed reply needs the brokers. The broker is asked for them, and creates nothing."""
        asked = slot.asked
        assert asked is not None
        slot.error = error
        body = type(asked.body)(
            # Version 0 cannot ask for none.
            topics=None if asked.body.topics is None or asked.api_version == 0 else [],
            allow_auto_topic_creation=False,
        )
        chunks = encode_request(
            asked.api, asked.api_version, asked.correlation_id, asked.client_id, body
        )
        self._forward(memoryview(b"".join(chunks))[_SIZE.size :], slot)

    def _do(self, fault: mechanism.Fault, asked: Asked) -> None:
        assert fault.run is not None
        answer = fault.run(asked.body, asked)
        if isinstance(answer, ErrorCode):
            self._fail(asked, answer)
        elif isinstance(answer, Form):
            self._answer(_Slot(asked), asked.reply(answer))
        else:
            self._forward(asked.frame, _Slot(asked))

    def _forward(self, frame: memoryview, slot: _Slot) -> None:
        if slot.asked is None or slot.asked.gets_reply:
            self._slots.append(slot)
            self._asked.append(slot)
        self.broker.write([_SIZE.pack(len(frame)), frame])

    def _release(self, asked: Asked) -> None:
        """Lets a held request take effect, although its client may have left."""
        self._forward(asked.frame, _Slot(asked))
        self.resume()

    def resume(self) -> None:
        """One reason to wait has gone."""
        self._holds -= 1
        self._look()

    # -- replies

    def _from_broker(self, frame: memoryview) -> None:
        if not self._asked:
            self.abort()  # A reply to nothing: its bytes are not Kafka's.
            return
        slot = self._asked.popleft()
        try:
            if not slot.is_silent:
                self._answer_placed(slot, self._changed(slot, frame))
        except Exception as problem:  # noqa: BLE001 - reported
            self._fail_link(problem)
        self._close_if_done()

    def _answer(self, slot: _Slot, reply: list[Buffer]) -> None:
        self._slots.append(slot)
        self._answer_placed(slot, reply)

    def _answer_placed(self, slot: _Slot, reply: list[Buffer]) -> None:
        slot.reply = reply
        while self._slots and (first := self._slots[0]).reply is not None:
            self._slots.popleft()
            if first.cuts:
                self.cut()
                return
            self.client.write(first.reply)

    def _lose(self, slot: _Slot, *, disconnect: bool) -> None:
        if disconnect:
            self.cut()
        else:
            self._slots.append(slot)  # It keeps its place for ever.

    def _changed(self, slot: _Slot, frame: memoryview) -> list[Buffer]:
        """The reply for the client."""
        as_it_is: list[Buffer] = [_SIZE.pack(len(frame)), frame]
        asked = slot.asked
        if asked is None or not (asked.api in _CHANGED or slot.throttle_ms):
            return as_it_is
        assert read_correlation_id(frame) == asked.correlation_id
        _, body = decode_response(asked.api, asked.api_version, frame)
        self._learn(asked.api, body)
        if asked.api is ApiKey.API_VERSIONS:
            if body.error_code == ErrorCode.UNSUPPORTED_VERSION:
                return as_it_is
            body.api_keys = [each for each in body.api_keys if _limit(each)]
        is_changed = asked.api is ApiKey.API_VERSIONS or self._translate(asked.api, body)
        if slot.error is not ErrorCode.NONE:
            failed = failed_reply(asked.api, asked.api_version, asked.body, slot.error)
            add_brokers(asked.body, failed, body, slot.error)
            body = failed
        elif slot.throttle_ms:
            body = throttled_reply(body, slot.throttle_ms)
        elif not is_changed:
            return as_it_is
        return asked.reply(body)

    def _translate(self, api: ApiKey, body: Any) -> bool:
        """Replaces the addresses of brokers by those that lead to them through the proxy."""
        found = False
        for each in getattr(body, _ADDRESSES[api]) if api in _ADDRESSES else ():
            if each.host and each.port > 0:  # Otherwise it is no broker, but an error.
                each.port = self._proxy.local_port(Endpoint(each.host, each.port))
                each.host = _HOST
                found = True
        return found

    def _learn(self, api: ApiKey, body: Any) -> None:
        """Notes the ids of topics, by which later requests name them."""
        if api in (ApiKey.METADATA, ApiKey.CREATE_TOPICS):
            for topic in body.topics:
                if topic.name and any(topic.topic_id):
                    self._proxy.topic_names[bytes(topic.topic_id)] = topic.name

    # -- the end

    def cut(self) -> None:
        """Ends the client's connection; what was forwarded takes effect all the same."""
        self._behind.clear()
        self.client.close()
        self._client_has_left()

    def _client_has_left(self) -> None:
        self._has_left = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._has_left and not (self._asked or self._holds or self._behind):
            self.abort()

    def _fail_link(self, problem: Exception) -> None:
        """A mistake of the proxy, or a reply that it cannot read: the test must not pass."""
        assert self._proxy.on_problem is not None
        self._proxy.on_problem(problem)
        self.abort()

    def abort(self) -> None:
        """Closes both sides."""
        self.client.close()
        self.broker.close()
        self._proxy.forget(self)


class _Side(asyncio.BufferedProtocol):
    """One of the two sockets of a link."""

    def __init__(self, receive: Callable[[memoryview], None], ended: Callable[[], None]) -> None:
        self._receive = receive
        self._ended = ended
        self._frames = FrameBuffer(_MAX_FRAME_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._is_closed:
            transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._frames.buffer_updated(nbytes)
        except WireError:
            self.close()  # Not Kafka's protocol, or TLS.
            return
        for frame in frames:
            if not self._is_closed:
                self._receive(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self._ended()

    def write(self, chunks: list[Buffer]) -> None:
        """Sends a frame, unless the socket is closed."""
        if self._transport is not None and not self._is_closed:
            self._transport.writelines(chunks)

    def close(self) -> None:
        """Closes the socket after what was written."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()


def _limit(offered: Any) -> bool:
    """Limits the versions of an API to those that are known here; False if there is none."""
    known = BY_NUMBER.get(offered.api_key)
    if known is not None:
        offered.max_version = min(offered.max_version, known.max_version)
    return bool(offered.min_version <= offered.max_version)


def _require_reachable(servers: Sequence[Endpoint]) -> None:
    reasons = []
    for server in servers:
        try:
            socket.create_connection(server, _START_SECONDS).close()
        except OSError as problem:
            reasons.append(f"{server}: {problem.strerror or problem}")
        else:
            return
    raise FencepostError(f"No broker of the cluster under test answers ({'; '.join(reasons)}).")
