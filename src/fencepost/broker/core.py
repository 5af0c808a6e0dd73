"""A broker without its controller: the services behind the requests, and the server in front.

The single broker (`node.py`) has its controller in the same process. A broker of a cluster
(`cluster/broker/broker.py`) reaches it over a link. Both are built on this class, which knows the
controller as a `ControllerPort`.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from fencepost.base.failures import ConfigError
from fencepost.broker.context import Services
from fencepost.broker.controller_port import ControllerPort, InternalTopics
from fencepost.broker.coordinators.by_topic import Coordinators
from fencepost.broker.dispatch import Dispatcher
from fencepost.broker.faults.faults import Faults
from fencepost.broker.groups.coordinator import GroupCoordinator
from fencepost.broker.housekeeping import Housekeeping
from fencepost.broker.metadata.effects import MetadataEffects
from fencepost.broker.metrics.requests import RequestCounters
from fencepost.broker.network.limits import ConnectionLimits
from fencepost.broker.network.memory import MemoryBudget
from fencepost.broker.network.server import Server
from fencepost.broker.partitions.batch_opener import Opener
from fencepost.broker.peers import NO_PEERS, Peers
from fencepost.broker.security.audit import Audit
from fencepost.broker.security.authorizer import make_authorizer
from fencepost.broker.security.logins import Logins
from fencepost.broker.security.tls import Certificates, read_tls_settings
from fencepost.broker.settings.kinds import parse_overrides
from fencepost.broker.settings.listener import PROTOCOLS
from fencepost.broker.storage.scrub import Scrub
from fencepost.broker.transactions.coordinator import TransactionCoordinator
from fencepost.broker.transactions.markers import MarkerWriter
from fencepost.broker.transactions.producer_ids import ProducerIds
from fencepost.coordinator.metadata.state import Endpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.base.seams import Randomness
    from fencepost.broker.authorization import Authorizer
    from fencepost.broker.metadata.follower import MetadataFollower
    from fencepost.broker.partitions.partition_host import PartitionHost
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.storage.partition_layout import PartitionLayout
    from fencepost.broker.trace import Trace


class BrokerCore:
    """The services and the server of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        host: PartitionHost[Any],
        follower: MetadataFollower,
        *,
        randomness: Randomness,
        controller: ControllerPort,
        authorizer: Authorizer | None = None,
        trace: Trace | None = None,
        peers: Peers = NO_PEERS,
        counts_requests: bool = False,
    ) -> None:
        """`counts_requests` is for metrics: it costs about a microsecond per request."""
        self.config = config
        on_fatal = host.partitions.end
        self.fatal = on_fatal
        self.trace = trace
        self.faults = Faults()
        self.host = host
        self.partitions = host.partitions
        self.runtime = host.runtime
        self.layout: PartitionLayout = host.layout
        self.background = host.background
        self.flusher = host.flusher
        self.follower = follower
        self.metadata = follower.state
        self._server: Server | None = None
        self._is_serving = False
        self._is_stopping = False

        # -- the coordinators
        self.groups = GroupCoordinator(self.runtime, config, randomness, self.metadata)
        self.markers = MarkerWriter(
            self.runtime, self.partitions, self.metadata, self.groups, peers, config.node_id
        )
        ids = ProducerIds(controller.reserve_block)
        self.transactions = TransactionCoordinator(
            self.runtime, config, self.metadata, ids, self.markers, peers
        )
        self.coordinators = Coordinators(
            self.metadata, self.partitions, self.groups, self.transactions
        )
        self.effects = MetadataEffects(
            self.runtime,
            config,
            follower,
            host.store,
            self.partitions,
            self.groups,
            self.coordinators,
        )
        follower.attach(self.effects)

        # -- periodic work
        self.housekeeping = Housekeeping(
            self.runtime,
            config,
            self.partitions,
            self.background,
            self.flusher,
            self.groups,
            self.transactions,
            on_fatal,
        )
        self.scrub = Scrub(
            self.runtime,
            self.partitions,
            self.background,
            controller.on_damage,
            self.groups,
            self.transactions,
        )

        # -- listeners
        self._certificates = {
            listener.name: Certificates(read_tls_settings(config, listener.name))
            for listener in config.client_listeners
            if listener.is_tls
        }

        # -- requests
        self.replies = MemoryBudget(config.queued_max_response_bytes)
        self.requests = MemoryBudget(config.queued_max_request_bytes)
        self._batch_opener = Opener(on_fatal)
        self.services = Services(
            runtime=self.runtime,
            config=config,
            authorizer=authorizer or make_authorizer(config, self.metadata.acls),
            audit=Audit(self.runtime, config, self.metadata.acls),
            partitions=self.partitions,
            batch_opener=self._batch_opener,
            replies=self.replies,
            layout=self.layout,
            follower=follower,
            controller=controller,
            internal_topics=InternalTopics(self.metadata, controller),
            groups=self.groups,
            transactions=self.transactions,
            markers=self.markers,
            housekeeping=self.housekeeping,
        )
        self.logins = Logins(self.runtime, config, follower, randomness)
        self.request_counters = RequestCounters() if counts_requests else None
        self.dispatcher = Dispatcher(
            self.services, self.faults, trace, on_fatal, controller.forward, self.request_counters
        )

    # -- start and stop ---------------------------------------------------------------------------

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the loop of everything that needs one."""
        self.host.attach(loop)
        self._batch_opener.attach(loop)
        self.logins.attach(loop)

    async def listen(self) -> list[int]:
        """Opens the ports of the listeners and returns them; requests are served from now on."""
        server = self.make_server()
        ports = []
        for listener in self.config.client_listeners:
            try:
                ports.append(await server.listen(listener))
            except OSError as problem:
                raise cannot_listen(listener.at.host, listener.at.port, problem) from problem
        return ports

    def make_server(self) -> Server:
        """The server, which listens nowhere yet."""
        config = self.config
        self._server = Server(
            asyncio.get_running_loop(),
            self.dispatcher,
            replies=self.replies,
            requests=self.requests,
            max_request_bytes=config.socket_request_max_bytes,
            limits=self._connection_limits(),
            max_idle_ms=config.connections_max_idle_ms,
            logins=self.logins,
            certificates=self._certificates,
            now_ms=self.runtime.clock.now_ms,
            line=self.runtime.line,
        )
        return self._server

    def _connection_limits(self) -> ConnectionLimits:
        config = self.config
        names = [listener.name for listener in config.client_listeners]
        own = self.host.descriptors.connections
        return ConnectionLimits(
            most=own,
            most_of_listener={
                name: min(own, config.of_listener(name, "max.connections")) for name in names
            },
            most_per_ip=config.max_connections_per_ip,
            overrides=parse_overrides(config.max_connections_per_ip_overrides),
            rate=config.max_connection_creation_rate,
            rate_of_listener={
                name: config.of_listener(name, "max.connection.creation.rate") for name in names
            },
        )

    def start_periodic_work(self) -> None:
        """Starts everything that the clock drives; clients are served by now."""
        self._is_serving = True
        self.housekeeping.start()
        self.scrub.start()
        self.flusher.save_soon()

    def descriptors(self) -> list[int]:
        """The descriptors of all sockets."""
        return [] if self._server is None else self._server.descriptors()

    def abort_connections(self) -> None:
        """Closes all connections now, and accepts no more: for a crash."""
        if self._server is not None:
            self._server.abort()

    def why_not_ready(self) -> str | None:
        """Why this broker does not serve everything that it should; None if it does."""
        if self._is_stopping:
            return "the broker is stopping"
        if not self._is_serving:
            return f"the logs are being recovered; {len(self.partitions.by_name)} are open"
        if self.transactions.is_loading:
            return "the transaction coordinator is loading its logs"
        if self.groups.is_loading:
            return "the group coordinator is loading its logs"
        return None

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return 0 if self._server is None else self._server.connection_count

    @property
    def client_addresses(self) -> set[str]:
        """Host and port of every client that is connected."""
        return set() if self._server is None else self._server.client_addresses

    @property
    def accepted_count(self) -> int:
        """How many connections were accepted since the start."""
        return 0 if self._server is None else self._server.accepted_count

    async def close_services(self) -> None:
        """Ends periodic work, connections and coordinators; the partitions stay open."""
        self._is_stopping = True
        self.housekeeping.stop()
        self.scrub.stop()
        self.flusher.stop()
        self.effects.stop()
        if self._server is not None:
            await self._server.close()
        self._batch_opener.close()
        self.logins.close()
        await self.host.finish_work()
        self.groups.close()
        self.transactions.close()

    def close_trace(self) -> None:
        """Closes the trace."""
        if self.trace is not None:
            self.trace.close()


def cannot_listen(host: str, port: int, problem: OSError) -> ConfigError:
    """The error for an address that cannot be listened on."""
    # The loop's own message repeats the address; an unknown host name has no positive errno.
    number = problem.errno or 0
    reason = os.strerror(number) if number > 0 else problem.strerror
    return ConfigError(
        f"{address_of(host, port)} cannot be listened on: {reason}. "
        "Choose another address with --listen; port 0 picks a free port."
    )


def endpoints_of(config: BrokerConfig, ports: Sequence[int]) -> list[Endpoint]:
    """The addresses to register, of listeners that are bound to these ports."""
    return [
        Endpoint(
            each.name,
            each.advertised.host,
            each.advertised.port or port,
            PROTOCOLS[each.protocol],
        )
        for each, port in zip(config.client_listeners, ports, strict=True)
    ]


def address_of(host: str, port: int) -> str:
    """A host and a port as one text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
