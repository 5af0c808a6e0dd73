"""Carries out the fault that a request has met.

An effect without its reply is durable before the connection is cut: the reply is ready by then, and
is thrown away. A reply that never comes keeps its place, so that later requests of the connection
take effect and are not answered either, as behind a broker that hangs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fencepost.base.errors import ErrorCode
from fencepost.broker.faults.failed_replies import add_brokers, failed_reply
from fencepost.broker.faults.faults import (
    CRASH,
    DELAY,
    DO,
    FAIL,
    HOLD,
    LOSE_REPLY,
    LOSE_REQUEST,
    THROTTLE,
    Fault,
)
from fencepost.broker.handlers.api_versions import unsupported_version_reply
from fencepost.broker.waiting import NoReply, Parked
from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import encode_response
from fencepost.wire.schema import Form

if TYPE_CHECKING:
    from fencepost.broker.context import Context
    from fencepost.broker.dispatch import Dispatcher, Route
    from fencepost.broker.network.connection import Connection

log = logging.getLogger(__name__)

_CUT = "an injected fault"


def inject(
    dispatcher: Dispatcher,
    connection: Connection,
    route: Route,
    request: Any,
    context: Context,
    fault: Fault,
) -> None:
    """Serves a request as the fault wants it."""
    action = fault.action
    if action == FAIL:
        _fail(dispatcher, connection, route, request, context, fault.error)
    elif action == LOSE_REQUEST:
        _lose(connection, disconnect=fault.disconnect)
    elif action == LOSE_REPLY:
        _lose_reply(connection, route, request, context, disconnect=fault.disconnect)
    elif action == THROTTLE:
        _throttle(dispatcher, connection, route, request, context, fault.delay_ms)
    elif action == DO:
        _do(dispatcher, connection, route, request, context, fault)
    elif action == CRASH:
        assert fault.crash is not None
        fault.crash()
    else:
        connection.hold()

        def resume() -> None:
            dispatcher.run(connection, route, request, context)
            connection.release()

        if action == DELAY:
            context.services.runtime.call_later(fault.delay_ms, resume)
        else:
            assert action == HOLD
            assert fault.hold is not None
            fault.hold(resume)


def _fail(
    dispatcher: Dispatcher,
    connection: Connection,
    route: Route,
    request: Any,
    context: Context,
    error: ErrorCode,
) -> None:
    if route.api is ApiKey.PRODUCE and request.acks == 0:
        connection.close(_CUT)  # The only way to show an error to a client that waits for none.
        return
    if route.api is ApiKey.API_VERSIONS and error is ErrorCode.UNSUPPORTED_VERSION:
        reply = unsupported_version_reply()
        connection.send(encode_response(route.api, 0, context.correlation_id, reply))
        return
    answer = failed_reply(route.api, context.api_version, request, error)
    if route.api is ApiKey.METADATA:
        from fencepost.broker.handlers.metadata import brokers_and_topic_names

        add_brokers(request, answer, brokers_and_topic_names(context), error)
    dispatcher.send(connection, route, context, answer)


def _lose(connection: Connection, *, disconnect: bool) -> None:
    if disconnect:
        connection.close(_CUT)
    else:
        connection.reserve(0)


def _lose_reply(
    connection: Connection, route: Route, request: Any, context: Context, *, disconnect: bool
) -> None:
    parked = route.handle(request, context)
    if not isinstance(parked, Parked) or parked.answered:
        _lose(connection, disconnect=disconnect)
        return
    slot = connection.reserve(parked.promised_bytes)
    slot.abandon = parked.abandon
    if parked.holds_followers:
        connection.hold()
        parked.when_released(connection.release)

    def answered(_reply: object) -> None:
        if disconnect:
            connection.close(_CUT)

    parked.when_answered(answered)


def _throttle(
    dispatcher: Dispatcher,
    connection: Connection,
    route: Route,
    request: Any,
    context: Context,
    throttle_ms: int,
) -> None:
    """As Kafka does since 2.0: the reply comes at once, and nothing is read for that time."""
    reply = route.handle(request, context)
    connection.hold()
    context.services.runtime.call_later(throttle_ms, connection.release)
    parked = reply if isinstance(reply, Parked) else Parked()
    throttled = Parked(promised_bytes=parked.promised_bytes)
    throttled.when_abandoned(parked.abandon)

    def answered(found: object) -> None:
        throttled.answer(
            found if isinstance(found, NoReply) else throttled_reply(found, throttle_ms)
        )

    dispatcher.park(connection, route, context, throttled)
    if parked is reply:
        if parked.holds_followers:
            connection.hold()
            parked.when_released(connection.release)
        parked.when_answered(answered)
    else:
        answered(reply)


def throttled_reply(reply: Any, throttle_ms: int) -> object:
    """A copy: a handler may give the same reply again."""
    values = {each.name: getattr(reply, each.name) for each in reply.form_fields}
    if "throttle_time_ms" in values:
        values["throttle_time_ms"] = throttle_ms
    return type(reply)(**values)


def _do(
    dispatcher: Dispatcher,
    connection: Connection,
    route: Route,
    request: Any,
    context: Context,
    fault: Fault,
) -> None:
    assert fault.run is not None
    answer = fault.run(request, context)
    if isinstance(answer, ErrorCode):
        _fail(dispatcher, connection, route, request, context, answer)
    elif isinstance(answer, Form):
        dispatcher.send(connection, route, context, answer)
    else:
        dispatcher.run(connection, route, request, context)
