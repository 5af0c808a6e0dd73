"""A broker of a cluster: a broker whose controller is another process.

Theory of operation
-------------------
The controller sends the metadata, first as a whole (STATE) and then batch by batch
(`following.py`). With the state the broker opens what it leads, in turns between which it sends
heartbeats, the logs of the transaction coordinators first. Then it listens, and reports that it
serves.

Requests that only the controller serves are forwarded as they are. Topics that a client or a
coordinator needs, and blocks of producer ids, are asked for. Markers and verifications for
partitions of other brokers go over links to them (`peers.py`).

The broker ends at once when its link to the controller ends: the controller is dead, or about to
start another process in its place. What it has acknowledged is in the page cache.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import (
    CONSUMER_OFFSETS_TOPIC,
    NO_NODE,
    TRANSACTION_STATE_TOPIC,
)
from fencepost.broker.core import BrokerCore
from fencepost.broker.handlers import incremental_alter_configs
from fencepost.broker.metadata.follower import MetadataFollower
from fencepost.broker.peers import PeerRequests
from fencepost.broker.settings.changes import alters_loggers
from fencepost.broker.waiting import NoReply, Parked
from fencepost.cluster import messages
from fencepost.cluster.broker.following import Following
from fencepost.cluster.broker.standstill import Standstill
from fencepost.cluster.messages import Body, Kind
from fencepost.cluster.peers import Peers
from fencepost.coordinator.metadata.effects import (
    Effect,
    LeadersChanged,
    PartitionChange,
    SettingsChanged,
)
from fencepost.records.metadata_log import BROKER_RESOURCE, CLUSTER_DEFAULT
from fencepost.wire.apis import ApiKey
from fencepost.wire.codec import decode_response, encode_request

if TYPE_CHECKING:
    from fencepost.base.seams import Randomness
    from fencepost.broker.context import Context
    from fencepost.broker.controller.controller import Outcomes
    from fencepost.broker.partitions.partition_host import PartitionHost
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.storage.broker_layout import BrokerLayout
    from fencepost.broker.trace import Trace
    from fencepost.cluster.broker.owners import Owners
    from fencepost.cluster.link import Link

log = logging.getLogger(__name__)


_LOADED_FIRST: Final = {TRANSACTION_STATE_TOPIC: 0, CONSUMER_OFFSETS_TOPIC: 1}
"""The topics that are opened before all others, in this order: coordinators take time to load."""


class ControllerClient:
    """The controller, as a broker reaches it over the link."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._numbers: Final = itertools.count(1)
        self._forwarded: Final[dict[int, tuple[ApiKey, int, Parked]]] = {}
        self._asked: Final[dict[int, Callable[[Any], None]]] = {}

    def attach(self, link: Link) -> None:
        """Sets the link."""
        self._link = link

    def send(self, kind: Kind, body: Body = ()) -> None:
        """Sends a message."""
        assert self._link is not None, "the link is attached first"
        self._link.send(kind, body)

    # -- requests ---------------------------------------------------------------------------------

    def forward(self, api: ApiKey, request: Any, context: Context) -> Parked:
        """Sends a client's request to the controller, whose reply is the client's."""
        if api is ApiKey.INCREMENTAL_ALTER_CONFIGS and alters_loggers(request):
            return incremental_alter_configs.handle(request, context)
        number = next(self._numbers)
        parked = Parked(holds_followers=True)
        version = context.api_version
        self._forwarded[number] = api, version, parked
        frame = encode_request(api, version, context.correlation_id, context.client_id, request)
        self.send(
            Kind.REQUEST,
            messages.encode_request(
                number, context.client_host, context.principal, context.listener, frame
            ),
        )
        return parked

    def replied(self, body: memoryview) -> None:
        """The controller has replied to a forwarded request."""
        number, frame = messages.decode_reply(body)
        api, version, parked = self._forwarded.pop(number)
        if frame:
            parked.answer(decode_response(api, version, frame)[1])
        else:
            parked.answer(NoReply("the controller failed"))

    def auto_create(self, names: Sequence[str], done: Callable[[Outcomes], None]) -> None:
        """Asks for topics with default settings; see `ControllerPort`."""
        # Here, because the controller is imported with it, which a broker does not need to start.
        from fencepost.broker.controller.controller import Outcome

        def answered(answer: list[tuple[str, int, str | None]]) -> None:
            done([Outcome(name, ErrorCode(error), why) for name, error, why in answer])

        self._ask({"create": list(names)}, answered)

    def reserve_block(self, done: Callable[[range | None], None]) -> None:
        """Asks for a block of producer ids."""

        def answered(answer: list[int] | None) -> None:
            done(None if answer is None else range(*answer))

        self._ask({"reserve": True}, answered)

    def on_damage(self) -> None:
        """Never called: a broker of a cluster has no metadata log."""
        raise AssertionError("a broker of a cluster has no metadata log")

    def _ask(self, question: dict[str, object], done: Callable[[Any], None]) -> None:
        number = next(self._numbers)
        self._asked[number] = done
        self.send(Kind.ASK, messages.encode_json({"number": number, **question}))

    def answered(self, body: memoryview) -> None:
        """The controller has answered a question."""
        answer = messages.decode_json(body)
        self._asked.pop(answer["number"])(answer["answer"])

    # -- reports ----------------------------------------------------------------------------------

    def released(self, end_offset: int) -> None:
        """See `following.Reports`."""
        self.send(Kind.RELEASED, messages.encode_offset(end_offset))

    def done(self, end_offset: int) -> None:
        """See `following.Reports`."""
        self.send(Kind.DONE, messages.encode_offset(end_offset))


class ClusterBroker(BrokerCore):
    """One broker of a cluster."""

    layout: BrokerLayout

    def __init__(
        self,
        config: BrokerConfig,
        host: PartitionHost[BrokerLayout],
        controller: ControllerClient,
        owners: Owners,
        *,
        randomness: Randomness,
        trace: Trace | None = None,
        counts_requests: bool = False,
    ) -> None:
        self.peers: Final = Peers(
            asyncio.get_running_loop(), lambda: self._peer_requests, self._applied_offset
        )
        super().__init__(
            config,
            host,
            MetadataFollower(),
            randomness=randomness,
            controller=controller,
            trace=trace,
            peers=self.peers,
            counts_requests=counts_requests,
        )
        self.following: Final = Following(self.follower, self.effects, controller, self._applied)
        self._peer_requests: Final = PeerRequests(self.services, trace)
        self._live: frozenset[int] = frozenset()
        self._owners: Final = owners
        self._pids: Final[dict[int, int]] = {}
        """The processes of the other brokers."""
        self._standstill: Final = Standstill(asyncio.get_running_loop(), self._stood_still)
        self._ports: list[int] = []
        self._load_began_at = 0.0

    def load(self, batch: messages.Batch, done: Callable[[], None]) -> None:
        """Takes the state, and opens what this broker leads; calls `done` at the end."""
        self._load_began_at = perf_counter()
        self.following.load(batch)
        self.layout.load()
        self.layout.keep_only(self.metadata.topics_by_id.keys())
        self.coordinators.load_all()  # From now on a coordinator is loaded when its log is opened.
        self.effects.open(self._everything(), done)

    def _everything(self) -> list[Effect]:
        """The settings, and all partitions that this broker leads, as if it had got them now."""
        led = [
            PartitionChange(
                topic.name, index, topic.topic_id, NO_NODE, found.leader, found.leader_epoch
            )
            for topic, index, found in self.metadata.led_by(self.config.node_id)
        ]
        led.sort(key=lambda change: _LOADED_FIRST.get(change.topic, len(_LOADED_FIRST)))
        return [SettingsChanged(BROKER_RESOURCE, CLUSTER_DEFAULT), LeadersChanged(tuple(led))]

    async def listen_on(self, sockets: Sequence[Sequence[socket.socket]]) -> None:
        """Serves clients on the sockets of each listener, which are bound already."""
        self._ports = [each[0].getsockname()[1] for each in sockets]
        recovery = self.host.store.recovery
        recovery.log_start(
            perf_counter() - self._load_began_at,
            after_crash=recovery.scanned_partitions > 0,
            open_transactions=self.transactions.open_count,
        )
        server = self.make_server()
        for listener, bound in zip(self.config.client_listeners, sockets, strict=True):
            await server.listen_on(bound, listener)
        self._standstill.start()

    def _stood_still(self, seconds: float, stale_until: float) -> None:
        assert self._server is not None, "it is watched while clients are served"
        log.warning("this broker stood still for %.1f s; its clients connect again", seconds)
        self._server.cut_off("this process stood still", stale_until=stale_until)

    async def go_down(self) -> None:
        """For tests: cuts the broker off from its clients. It stays alive and keeps leading."""
        if self._server is not None:
            await self._server.stop_listening()
            self._server.cut_off("a test took the broker down")

    async def come_up(self) -> None:
        """Lets clients reach the broker again, on the same ports."""
        if self._server is not None:
            await self._server.stop_listening()
            for listener, port in zip(self.config.client_listeners, self._ports, strict=True):
                await self._server.listen_on(bind(listener.at.host, [port]), listener)

    async def stop(self) -> None:
        """Closes the connections and the logs, all of them cleanly."""
        self._standstill.stop()
        await self.close_services()
        self.peers.close()
        self.host.store.close_all(clean=True, settled=True)
        self.close_trace()

    # -- the metadata, and the other brokers ------------------------------------------------------

    def _applied(self, end_offset: int) -> None:
        """The state has changed: brokers that are fenced now are dead, and must not be heard."""
        before, self._live = (
            self._live,
            frozenset(broker.node_id for broker in self.metadata.live_brokers()),
        )
        for broker_id in before - self._live:
            self._refuse_living(broker_id)
            self.peers.disconnect(broker_id)
        # Any broker forwards what only the controller serves, so any is as good. All show the same.
        reachable = [node for node in self._live if self.metadata.has_address(node)]
        self.follower.controller_id = min(reachable, default=NO_NODE)
        self.peers.applied(end_offset)

    def join(self, broker_id: int, pid: int, end: socket.socket) -> None:
        """Adds a link to another broker, which runs as this process."""
        self._pids[broker_id] = pid
        self.peers.connect(broker_id, end)

    def _refuse_living(self, broker_id: int) -> None:
        """Ends this process if a broker is fenced that still runs: two would write one log.

        The controller fences a broker after it has reaped its process, or when the broker is about
        to stop and has closed its partitions.
        """
        pid = self._pids.get(broker_id)
        if pid is not None and self._owners.holder_of(broker_id) == pid:
            self.fatal(
                f"broker {broker_id} is fenced, but its process {pid} still runs; nothing more is "
                "written by this broker"
            )

    def _applied_offset(self) -> int:
        return self.following.applied_offset


def bind(host: str, ports: Sequence[int]) -> list[socket.socket]:
    """Sockets on the first port that is free on every address of the host; port 0 always is.

    They do not listen yet: clients are refused until the broker is loaded.
    """
    problem: OSError | None = None
    for port in ports:
        try:
            return _bind(host, port)
        except OSError as refused:
            problem = refused
    assert problem is not None, "there is a port to try"
    raise problem


def _bind(host: str, port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            bound = socket.socket(family, kind, protocol)
            sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # With port 0 all addresses of the host get the port that the first one found.
            chosen = port or (sockets[0].getsockname()[1] if len(sockets) > 1 else 0)
            bound.bind((address[0], chosen, *address[2:]))
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets
