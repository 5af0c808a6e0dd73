"""Servers that a client cannot use, each in its own way."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def mute() -> Iterator[str]:
    """Accepts connections and never answers, like a stopped process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def unreachable() -> Iterator[str]:
    """Never accepts: the queue of connections is full, so that packets are dropped."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def closed() -> Iterator[str]:
    """Refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    yield address


SILENT: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "mute": mute,
    "unreachable": unreachable,
    "closed": closed,
}
