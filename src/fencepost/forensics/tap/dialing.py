"""Opens connections to brokers, with TLS if the cluster wants it.

A client behind the tap cannot choose among the servers of --to: the tap chooses for it. Of several
it takes the first that answers ApiVersions, on its own connection, which is closed again. A port
that accepts connections is not enough: a stopped process still does, and a client would be led to
it for ever. The last one is not asked, because there is no other to use instead.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

from fencepost.base.failures import FencepostError
from fencepost.client.conversation import versions_request
from fencepost.client.options import Endpoint
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.codec import encode_request

CONNECT_SECONDS: Final = 10.0
"""How long a broker may take to accept a connection, TLS included."""
CLIENT_ID: Final = "fencepost-tap"
"""The client id of the tap's own requests."""
ANSWER_SECONDS: Final = 1.0
"""How long one of several brokers may take to answer."""


async def reach(
    brokers: Sequence[Endpoint], tls: ssl.SSLContext | None, seconds: float = CONNECT_SECONDS
) -> tuple[socket.socket, Endpoint]:
    """Connects to a broker, of several to the first that answers.

    FencepostError says why none did.
    """
    reasons = []
    if len(brokers) > 1:
        seconds = min(seconds, ANSWER_SECONDS)
    for number, endpoint in enumerate(brokers, start=1):
        waits_for = "connection"
        try:
            async with asyncio.timeout(seconds):
                connection = await _dial(endpoint, tls)
                if number == len(brokers):
                    return connection, endpoint
                waits_for = "answer"
                with connection:
                    await _greet(connection)
                return await _dial(endpoint, tls), endpoint
        except TimeoutError:
            reasons.append(f"{endpoint}: no {waits_for} within {seconds:.2g} s")
        except ssl.SSLCertVerificationError as problem:
            reasons.append(f"{endpoint}: its certificate is not trusted, {problem.verify_message}")
        except ssl.SSLError as problem:
            reasons.append(f"{endpoint}: TLS failed, {problem.reason or problem}")
        except OSError as problem:
            reasons.append(f"{endpoint}: {_reason(problem)}")
    raise FencepostError(f"no broker can be reached ({'; '.join(reasons)})")


async def _greet(connection: socket.socket) -> None:
    """Asks for ApiVersions, and waits for the first byte of the reply."""
    for chunk in encode_request(API[ApiKey.API_VERSIONS], 0, 0, CLIENT_ID, versions_request()):
        connection.send(chunk)
    loop = asyncio.get_running_loop()
    while True:
        try:
            if not connection.recv(1):
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            return
        except (BlockingIOError, ssl.SSLWantReadError):
            await _ready(connection, loop.add_reader, loop.remove_reader)


async def _dial(endpoint: Endpoint, tls: ssl.SSLContext | None) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(*endpoint, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(found, start=1):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(connection, address)
            return connection if tls is None else await _secure(connection, endpoint.host, tls)
        except OSError:
            connection.close()
            if number == len(found):
                raise
        except BaseException:
            connection.close()
            raise
    raise FencepostError(f"{endpoint.host} has no address")


async def _secure(connection: socket.socket, host: str, tls: ssl.SSLContext) -> ssl.SSLSocket:
    loop = asyncio.get_running_loop()
    secured = tls.wrap_socket(connection, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                secured.do_handshake()
                return secured
            except ssl.SSLWantReadError:
                await _ready(secured, loop.add_reader, loop.remove_reader)
            except ssl.SSLWantWriteError:
                await _ready(secured, loop.add_writer, loop.remove_writer)
    except BaseException:
        secured.close()
        raise


async def _ready(
    connection: socket.socket, add: Callable[..., Any], remove: Callable[..., Any]
) -> None:
    """Waits until the socket can be read, or written."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(connection, wake)
    try:
        await ready
    finally:
        remove(connection)


def _reason(problem: OSError) -> str:
    # The loop's own message repeats the address; an unknown host name has no positive errno.
    number = problem.errno or 0
    return os.strerror(number) if number > 0 else str(problem.strerror or problem)
