"""The local port of each broker.

The first listener is for bootstrapping: it leads to the addresses of --to. Every broker whose
address a reply names gets its own port, once and for the run: the ports after the first one as
far as they are free, else any free one. If --to is a single address and a broker has exactly that
one, the first port is the broker's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Final

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.client.options import Endpoint

MAX_LISTENERS: Final = 500
"""A cluster with more brokers, or one whose addresses change all the time, is refused."""
_TRIED_PORTS: Final = 200
_BACKLOG: Final = 512

OpenListener = Callable[[socket.socket, Sequence[Endpoint]], None]
"""Starts to accept connections that lead to the first of these brokers that can be reached."""


class Addresses:
    """All listeners of one tap."""

    def __init__(self, listen: Endpoint, to: Sequence[Endpoint], start: OpenListener) -> None:
        """Listens at once; ConfigError if the first port is taken."""
        self._host = listen.host
        self._start = start
        self._ports: dict[Endpoint, int] = {}
        self._nodes: dict[Endpoint, int] = {}
        try:
            first = _listener(listen.host, listen.port)
        except OSError as problem:
            raise ConfigError(_cannot_listen(listen, problem)) from problem
        self.first: Final[int] = first.getsockname()[1]
        self._next = self.first + 1 if listen.port else 0
        if len(to) == 1:
            self._ports[to[0]] = self.first
        start(first, to)

    def local_port(self, broker: Endpoint, node_id: int) -> int:
        """Returns the local port of a broker, and opens it if it is new."""
        if node_id >= 0:
            self._nodes[broker] = node_id
        port = self._ports.get(broker)
        if port is None:
            if len(self._ports) >= MAX_LISTENERS:
                raise FencepostError(f"more than {MAX_LISTENERS} addresses of brokers were named")
            opened = self._open_next()
            port = self._ports[broker] = opened.getsockname()[1]
            self._start(opened, [broker])
        return port

    def node_id(self, broker: Endpoint) -> int | None:
        """Returns the id of a broker, if a reply has named it."""
        return self._nodes.get(broker)

    def _open_next(self) -> socket.socket:
        if self._next:
            for port in range(self._next, min(self._next + _TRIED_PORTS, 65536)):
                try:
                    opened = _listener(self._host, port)
                except OSError:
                    continue
                self._next = port + 1
                return opened
        return _listener(self._host, 0)


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(_BACKLOG)
        opened.setblocking(False)
    except BaseException:
        opened.close()
        raise
    return opened


def _cannot_listen(listen: Endpoint, problem: OSError) -> str:
    number = problem.errno or 0
    reason = os.strerror(number) if number > 0 else problem.strerror
    return (
        f"Cannot listen on {listen}: {reason}. Choose another port with --listen HOST:PORT, or "
        "port 0 for a free one."
    )
