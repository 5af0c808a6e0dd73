"""The connection of a command to a cluster, and its options."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fencepost.base.failures import FencepostError

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster
    from fencepost.client.options import Endpoint

Servers = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers", help="The brokers of the cluster.", metavar="HOST:PORT,..."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
ClientConfig = Annotated[
    list[str],
    typer.Option("--client-config", metavar="KEY=VALUE", help="A client setting by Kafka's name."),
]

PATIENCE_MS: Final = 10_000
"""A user is waiting at the terminal; Kafka's clients would retry for a minute."""

_KNOCK_SECONDS: Final = 3.0
"""How long one address may take to accept a connection."""

_SILENCE_SECONDS: Final = 1.0
"""After this time without an answer, a line says which brokers the command is waiting for."""


@contextmanager
def connect(servers: str, client_config: list[str]) -> Iterator[Cluster]:
    """Yields a client with the settings of the command line.

    Fails at once if no broker accepts a connection.
    """
    from fencepost.client.blocking import connect as connect_to

    options = {"client.id": "fencepost-cli", "default.api.timeout.ms": str(PATIENCE_MS)}
    for assignment in client_config:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise FencepostError(f"{assignment!r} is not a setting: write name=value.")
        options[name.strip()] = value.strip()
    with connect_to(servers, options) as cluster, _reporting_a_wait(servers):
        _require_listener(cluster.options.bootstrap)
        yield cluster


def _require_listener(endpoints: tuple[Endpoint, ...]) -> None:
    """Raises FencepostError if no endpoint accepts a connection.

    The client itself would retry until its deadline.
    """
    reasons = []
    for endpoint in endpoints:
        try:
            socket.create_connection(endpoint, timeout=_KNOCK_SECONDS).close()
        except OSError as problem:
            reasons.append(f"{endpoint}: {_reason(problem)}")
        else:
            return
    raise FencepostError(
        f"No broker can be reached ({'; '.join(reasons)}). Start one with `fencepost serve`, "
        "or name one with --bootstrap-servers HOST:PORT."
    )


def _reason(problem: OSError) -> str:
    if isinstance(problem, TimeoutError):
        return f"no connection within {_KNOCK_SECONDS:g} s"
    # An unknown host name has no errno.
    number = problem.errno or 0
    return os.strerror(number) if number > 0 else str(problem.strerror)


@contextmanager
def _reporting_a_wait(servers: str) -> Iterator[None]:
    def say() -> None:
        print(f"fencepost: waiting for an answer from {servers} ...", file=sys.stderr, flush=True)

    timer = threading.Timer(_SILENCE_SECONDS, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
