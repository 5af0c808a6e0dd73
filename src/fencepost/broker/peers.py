"""The other brokers of the cluster, as the services of this one see them.

A service reaches another broker through `Peers`: `cluster/peers.py` in a cluster, `NO_PEERS` in a
single broker. `PeerRequests` is the other direction: it serves what other brokers ask. Such a
request passes through the same handlers as a client's, with `Context.from_peer` set. The link that
it came on proves that a broker has sent it, so it needs no authorization.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from fencepost.broker.context import Context
from fencepost.broker.handlers import HANDLERS
from fencepost.broker.waiting import Parked
from fencepost.wire.apis import ApiKey

if TYPE_CHECKING:
    from fencepost.broker.context import Services
    from fencepost.broker.trace import Trace

Done = Callable[[Any], None]
"""Called once with the reply, or with None if the peer's process is dead or unknown."""

Handler = Callable[[Any, Context], object]

PEER_APIS: Final = frozenset({ApiKey.WRITE_TXN_MARKERS, ApiKey.ADD_PARTITIONS_TO_TXN})
CLIENT_ID: Final = "fencepost-peer"
HOST: Final = "peer"


class Peers(Protocol):
    """Sends requests to other brokers."""

    @property
    def is_cluster(self) -> bool:
        """Whether there can be other brokers."""
        ...

    def request(self, broker_id: int, api: ApiKey, version: int, form: Any, done: Done) -> None:
        """Sends a request once; calls `done` once, at once if there is no such peer.

        None means that no copy of the request can be served any more: what the peer did before it
        died is in its logs.
        """
        ...


class NoPeers:
    """The peers of a single broker: there are none."""

    is_cluster: Final = False

    def request(self, broker_id: int, api: ApiKey, version: int, form: Any, done: Done) -> None:
        """Answers that there is no such broker."""
        done(None)


NO_PEERS: Final = NoPeers()


class PeerRequests:
    """Serves the requests of other brokers."""

    def __init__(self, services: Services, trace: Trace | None = None) -> None:
        self._services: Final = services
        self._trace: Final = trace
        self._handlers: Final[dict[ApiKey, Handler]] = {}

    def serve(self, api: ApiKey, version: int, form: Any, done: Done) -> Callable[[], None]:
        """Serves one request; returns what stops it if its link is closed before the reply."""
        assert api in PEER_APIS, f"brokers do not send each other {api.name}"
        context = Context(self._services, version, CLIENT_ID, HOST, from_peer=True)
        if self._trace is not None:
            self._trace.request(api, form, context, HOST)
        reply = self._handler(api)(form, context)
        if not isinstance(reply, Parked):
            self._answer(api, context, done, reply)
            return _nothing_to_stop
        reply.when_answered(lambda ready: self._answer(api, context, done, ready))
        return reply.abandon

    def _handler(self, api: ApiKey) -> Handler:
        handler = self._handlers.get(api)
        if handler is None:
            module = importlib.import_module(f"fencepost.broker.handlers.{HANDLERS[api]}")
            handler = self._handlers[api] = module.handle
        return handler

    def _answer(self, api: ApiKey, context: Context, done: Done, reply: Any) -> None:
        if self._trace is not None:
            self._trace.reply(api, reply, context, HOST)
        done(reply)


def _nothing_to_stop() -> None:
    """The request has been answered."""
