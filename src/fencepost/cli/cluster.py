"""How a command reaches a cluster, and the options with which it is told which one."""

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
    str, typer.Option("--bootstrap-servers", help="Where the cluster is.", metavar="HOST:PORT,...")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
ClientConfig = Annotated[
    list[str],
    typer.Option(
        "--client-config", metavar="KEY=VALUE", help="A client setting, as Kafka names it."
    ),
]

PATIENCE_MS: Final = 10_000
"""Somebody sits at the terminal. Kafka's clients try for a minute before they say that nobody is
there."""

_KNOCK_SECONDS: Final = 3.0
"""How long one address may take to accept a connection."""

_SILENCE_SECONDS: Final = 1.0
"""After so long without an answer it is said who is waited for."""


@contextmanager
def connect(servers: str, client_config: list[str]) -> Iterator[Cluster]:
    """A client with the settings of the command line.

    Where nobody listens, that is said at once.
    """
    from fencepost.client.blocking import connect as connect_to

    options = {"client.id": "fencepost-cli", "default.api.timeout.ms": str(PATIENCE_MS)}
    for assignment in client_config:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise FencepostError(f"{assignment!r} is no setting; it must look like name=value.")
        options[name.strip()] = value.strip()
    with connect_to(servers, options) as cluster, _saying_who_is_waited_for(servers):
        _knock(cluster.options.bootstrap)
        yield cluster


def _knock(endpoints: tuple[Endpoint, ...]) -> None:
    """FencepostError where none of them accepts a connection.

    The client itself would try again until its deadline.
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
        "or say where it is with --bootstrap-servers HOST:PORT."
    )


def _reason(problem: OSError) -> str:
    if isinstance(problem, TimeoutError):
        return f"no connection within {_KNOCK_SECONDS:g} s"
    # A name that nobody knows has no number of the system.
    number = problem.errno or 0
    return os.strerror(number) if number > 0 else str(problem.strerror)


@contextmanager
def _saying_who_is_waited_for(servers: str) -> Iterator[None]:
    def say() -> None:
        print(f"fencepost: waiting for an answer of {servers} ...", file=sys.stderr, flush=True)

    timer = threading.Timer(_SILENCE_SECONDS, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
