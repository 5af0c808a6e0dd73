"""From a frame to a handler and back. Every request passes here.

There is one `Route` per API and version, created with the first such request. The dispatcher checks
the version, writes the trace, and injects the faults of tests. A handler receives a request in the
form of its newest version and returns a reply or a `Parked`.

A handler answers a client's mistake with an error code. Bytes that are not the protocol raise
`WireError` and close the connection. A failed assertion means that the state in memory cannot be
trusted: the process ends, and the next start recovers from the log.
"""

from __future__ import annotations

import importlib
import logging
import struct
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import WireError
from fencepost.base.seams import Buffer
from fencepost.broker.context import Context, Services
from fencepost.broker.faults.faults import Faults
from fencepost.broker.handlers import CONTROLLER_APIS, HANDLERS, max_served_version
from fencepost.broker.handlers.api_versions import unsupported_version_reply
from fencepost.broker.metrics.requests import ApiCounters, RequestCounters
from fencepost.broker.waiting import NoReply, Parked
from fencepost.wire.apis import BY_NUMBER, ApiKey
from fencepost.wire.codec import (
    MessageReader,
    MessageWriter,
    encode_response,
    read_client,
    request_reader,
    response_writer,
)

if TYPE_CHECKING:
    from fencepost.broker.network.connection import Connection
    from fencepost.broker.trace import Trace

log = logging.getLogger(__name__)

API_VERSIONS: Final = ApiKey.API_VERSIONS
_KEY_AND_VERSION: Final = struct.Struct(">hh")
FRAME_SIZE_BYTES: Final = 4
"""The size before a frame, which the frame does not have."""
_SMALLEST_HEADER_BYTES: Final = 8
"""The key, version and correlation id, with which every request begins."""

Handler = Callable[[Any, Context], object]

Forward = Callable[[ApiKey, Any, Context], Parked]
"""Sends a request to the controller of the cluster; the parked reply is the controller's."""


class Route:
    """The handler of one version of one API."""

    __slots__ = ("api", "counters", "handle", "reader", "version", "writer")

    def __init__(
        self, api: ApiKey, version: int, handle: Handler, counters: ApiCounters | None
    ) -> None:
        self.api = api
        self.version = version
        self.reader: MessageReader = request_reader(api, version)
        self.writer: MessageWriter = response_writer(api, version)
        self.handle = handle
        self.counters = counters


class Dispatcher:
    """All routes of one node."""

    def __init__(
        self,
        services: Services,
        faults: Faults,
        trace: Trace | None,
        on_fatal: Callable[[str], None],
        forward: Forward | None = None,
        counters: RequestCounters | None = None,
    ) -> None:
        """Requests are counted and timed if there are `counters`."""
        self._services = services
        self._faults = faults
        self._trace = trace
        self._on_fatal = on_fatal
        self._forward = forward
        self._counters = counters
        self._routes: dict[tuple[int, int], Route] = {}

    def dispatch(self, connection: Connection, frame: memoryview) -> None:
        """Serves one request; never raises because of what a client sent."""
        try:
            self._serve(connection, frame)
        except WireError as problem:
            connection.close(str(problem))
        except AssertionError:
            log.critical("an internal assertion failed; stopping", exc_info=True)
            self._on_fatal("an internal assertion failed")
        except Exception:
            log.exception("a request from %s failed", connection.client_name)
            connection.close("an internal error")

    def _serve(self, connection: Connection, frame: memoryview) -> None:
        if len(frame) < _SMALLEST_HEADER_BYTES:
            raise WireError(f"a frame of {len(frame)} bytes is too short for a request header")
        key_and_version = _KEY_AND_VERSION.unpack_from(frame)
        session = connection.session
        if session is not None and not session.admits(key_and_version[0]):
            # Before anything else of a stranger's request is read.
            raise WireError(f"a request of API {key_and_version[0]} {session.why_not()}")
        route = self._routes.get(key_and_version)
        if route is None:
            route = self._make_route(*key_and_version)
            if route is None:
                self._answer_unsupported_api_versions(connection, frame)
                return
        reader = route.reader
        correlation_id, client_id, body_offset = read_client(frame, has_tags=reader.has_tags)
        request = reader.decode(frame, body_offset)
        if route.api is API_VERSIONS:
            connection.client_software = request.client_software_name
        context = Context(
            self._services,
            route.version,
            client_id,
            connection.client_host,
            correlation_id,
            connection.principal,
            client_address=connection.client_name,
            client_software=connection.client_software,
            listener=connection.listener,
            api=route.api,
            session=session,
            presence=connection.presence,
        )
        if route.counters is not None:
            context.received_at = perf_counter()
            route.counters.received_bytes += len(frame)
        if self._trace is not None:
            size = len(frame) + FRAME_SIZE_BYTES
            self._trace.request(route.api, request, context, connection.client_name, size)
        fault = self._faults.take(route.api, request, context) if self._faults else None
        if fault is not None:
            from fencepost.broker.faults.injection import inject

            inject(self, connection, route, request, context, fault)
        else:
            self.run(connection, route, request, context)

    def _make_route(self, key: int, version: int) -> Route | None:
        """Returns None for ApiVersions in an unsupported version, which still gets a reply."""
        module_name = HANDLERS.get(key)  # type: ignore[call-overload]
        if module_name is None:
            raise WireError(f"the API key {key} is not supported")
        api = BY_NUMBER[key]
        newest = max_served_version(api.key)
        if not api.min_version <= version <= newest:
            if api.key is API_VERSIONS:
                return None
            raise WireError(
                f"{api.name} is supported in versions {api.min_version} to {newest}, not {version}"
            )
        if self._forward is not None and api.key in CONTROLLER_APIS:
            handle: Handler = partial(self._forward, api.key)
        else:
            handle = importlib.import_module(f"fencepost.broker.handlers.{module_name}").handle
        counters = None if self._counters is None else self._counters.of(api.key)
        route = Route(api.key, version, handle, counters)
        self._routes[key, version] = route
        return route

    def _answer_unsupported_api_versions(self, connection: Connection, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
        reply = unsupported_version_reply()
        connection.send(encode_response(API_VERSIONS, 0, correlation_id, reply))

    def run(self, connection: Connection, route: Route, request: object, context: Context) -> None:
        """Lets the handler serve a request, and sends its reply."""
        reply = route.handle(request, context)
        if isinstance(reply, Parked):
            if not reply.answered:
                self.park(connection, route, context, reply)
                return
            reply = reply.reply
        if not isinstance(reply, NoReply):
            self.send(connection, route, context, reply)
            return
        if route.counters is not None:
            self._count(route, context, None, ())
        if reply.problem is not None:
            connection.close(reply.problem)

    def send(self, connection: Connection, route: Route, context: Context, reply: object) -> None:
        """Sends the reply to the request that is being dispatched."""
        connection.send(self._encode(connection, route, context, reply))

    def _encode(
        self, connection: Connection, route: Route, context: Context, reply: object
    ) -> list[Buffer]:
        chunks = route.writer.encode_response(context.correlation_id, reply)
        if self._trace is not None:
            self._trace.reply(
                route.api, reply, context, connection.client_name, sum(map(len, chunks))
            )
        if route.counters is not None:
            self._count(route, context, reply, chunks)
        return chunks

    def _count(
        self, route: Route, context: Context, reply: object, chunks: Sequence[Buffer]
    ) -> None:
        """Counts a reply, or a request that gets none."""
        assert route.counters is not None
        assert self._counters is not None
        route.counters.seconds.observe(perf_counter() - context.received_at)
        for chunk in chunks:
            route.counters.sent_bytes += len(chunk)
        if reply is not None:
            self._counters.count_errors(route.api, reply)

    def park(self, connection: Connection, route: Route, context: Context, parked: Parked) -> None:
        """Keeps the place of a reply that comes later."""
        slot = connection.reserve(parked.promised_bytes)
        slot.abandon = parked.abandon

        def answer(reply: object) -> None:
            if isinstance(reply, NoReply):
                if route.counters is not None:
                    self._count(route, context, None, ())
                connection.fill(slot, [])
                if reply.problem is not None:
                    connection.close(reply.problem)
                return
            connection.fill(slot, self._encode(connection, route, context, reply))

        if parked.holds_followers:
            connection.hold()
            parked.when_released(connection.release)
        parked.when_answered(answer)
