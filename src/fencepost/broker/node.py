"""The single broker: a broker and its controller in one process.

Clock, disk and randomness are arguments; the network and the timers are those of the running
asyncio loop. So the same node runs in a process, in a thread of a test, and in a simulator that
moves the clock itself. The node and its base class build the services, start and stop them, and do
nothing else: each service gets the runtime and the neighbours that it calls, and no service knows
the node.

A start loads meta.properties, the metadata log (topics, ids, configs) and every partition that this
node leads, and opens the port. Then it loads the coordinators from the internal topics, and settles
what a crash has left. No request is served before that, but a coordinator with a long log may
still be loading.
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import TYPE_CHECKING

from fencepost.base.failures import StorageError
from fencepost.broker.controller.controller import Controller
from fencepost.broker.core import BrokerCore, address_of, endpoints_of
from fencepost.broker.metadata.follower import MetadataFollower
from fencepost.broker.partitions.partition_host import PartitionHost
from fencepost.broker.peers import NO_PEERS, Peers
from fencepost.broker.security.authorizer import check_access
from fencepost.broker.settings.listener import ANY_HOST
from fencepost.broker.storage.identity import load_identity
from fencepost.broker.storage.layout import Layout
from fencepost.broker.transactions.reconciliation import Reconciliation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencepost.base.seams import Clock, Disk, Randomness
    from fencepost.broker.authorization import Authorizer
    from fencepost.broker.security.first_administrator import Administrator
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.storage.descriptors import Descriptors
    from fencepost.broker.trace import Trace
    from fencepost.coordinator.metadata.state import Endpoint

log = logging.getLogger(__name__)


class Node(BrokerCore):
    """One broker that is its own controller."""

    layout: Layout

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        disk: Disk,
        randomness: Randomness,
        on_fatal: Callable[[str], None],
        authorizer: Authorizer | None = None,
        trace: Trace | None = None,
        descriptors: Descriptors | None = None,
        peers: Peers = NO_PEERS,
        counts_requests: bool = False,
    ) -> None:
        host = PartitionHost(
            config,
            lambda patient_disk: Layout(patient_disk, config.data),
            clock=clock,
            disk=disk,
            on_fatal=on_fatal,
            descriptors=descriptors,
        )
        follower = MetadataFollower()
        self.controller = Controller.on_host(host, config, randomness, follower)
        super().__init__(
            config,
            host,
            follower,
            randomness=randomness,
            controller=self.controller,
            authorizer=authorizer,
            trace=trace,
            peers=peers,
            counts_requests=counts_requests,
        )
        self._reconciliation = Reconciliation(
            self.runtime,
            self.layout,
            self.partitions,
            self.metadata,
            self.controller,
            self.coordinators,
            self.markers,
        )
        self._randomness = randomness
        self._loaded = False
        self._is_after_crash = False
        self._is_reconciled = False
        """Whether this start has settled what the last stop left."""

    async def start(self, administrator: Administrator | None = None) -> str:
        """Loads everything and serves; returns an address that local clients can connect to.

        The first administrator is created if there is no such user.
        """
        with self.host.ends_on_failed_sync():
            return await self._start(administrator)

    async def _start(self, administrator: Administrator | None) -> str:
        loop = asyncio.get_running_loop()
        self.attach(loop)
        started_at = perf_counter()
        await self._load()
        if administrator is not None:
            self._create_first(administrator)
        config = self.config
        ports = await self.listen()
        endpoints = endpoints_of(config, ports)
        try:
            self.controller.register(endpoints)
            self._reconcile()
        except OSError as problem:
            raise self._not_loaded(problem) from problem
        self.host.store.recovery.log_start(
            perf_counter() - started_at,
            after_crash=self._is_after_crash,
            open_transactions=self.transactions.open_count,
        )
        self.host.removal.start(loop, self.layout.deleted_folders())
        self.start_periodic_work()
        self._log_listeners(ports, endpoints)
        listening, advertised = address_of(config.listen_host, ports[0]), endpoints[0]
        if config.listen_host in ANY_HOST:
            return address_of(advertised.host, advertised.port)
        return listening

    def _log_listeners(self, ports: Sequence[int], endpoints: Sequence[Endpoint]) -> None:
        found = zip(self.config.client_listeners, ports, endpoints, strict=True)
        for listener, port, endpoint in found:
            listening = address_of(listener.at.host, port)
            advertised = address_of(endpoint.host, endpoint.port)
            if len(ports) > 1:
                log.info("%s listens on %s (%s)", listener.name, listening, listener.protocol)
            if advertised != listening:
                log.info("listening on %s; advertised to clients as %s", listening, advertised)

    async def _load(self) -> None:
        """Loads the directory; a disk that fails is a StorageError with a sentence."""
        disk, config = self.host.disk, self.config
        disk.set_starting(True)
        try:
            self.layout.load()
            identity = load_identity(disk, config.data, config.node_id, self._randomness)
            self.follower.cluster_id = identity.cluster_id
            self.controller.load()
            check_access(config, self.metadata.acls)
            self._is_after_crash = not self.layout.clean
            for _ in self.effects.opening_all(compares_logs=self.layout.may_disagree):
                await asyncio.sleep(0)
            if not self.layout.clean:
                self.controller.raise_epochs_above(self.effects.logged_epochs())
        except OSError as problem:
            raise self._not_loaded(problem) from problem
        finally:
            disk.set_starting(False)
        self._loaded = True

    def _create_first(self, administrator: Administrator) -> None:
        # Here, because most starts have none.
        from fencepost.broker.security.first_administrator import create_first

        create_first(self.controller, administrator, self._randomness)

    def _reconcile(self) -> None:
        """Loads the coordinators, and makes all logs agree."""
        self._reconciliation.load_coordinators()
        if not self.effects.has_offline:
            # Offline partitions have been neither synced nor compared with the other logs.
            self.layout.trust_session(sync=self.partitions.fsync)
            self._is_reconciled = True

    def _not_loaded(self, problem: OSError) -> StorageError:
        return StorageError(
            f"{self.config.data} could not be loaded: {problem}. Nothing was lost by this "
            "attempt; start again when the disk can be read and written."
        )

    async def recover(self) -> None:
        """Makes the logs of a directory agree, without serving anybody, and closes them cleanly.

        StorageError if one of them cannot be opened: nothing may be served that was not compared.
        """
        self.attach(asyncio.get_running_loop())
        try:
            with self.host.ends_on_failed_sync():
                await self._load()
                self._reconcile()
        finally:
            await self.stop()
        if not self._is_reconciled:
            unopened = ", ".join(map(str, sorted(self.partitions.offline)))
            raise StorageError(
                f"After a power loss all logs are compared before several brokers serve them, "
                f"but {unopened} could not be opened. Nothing was lost by this attempt. Start "
                "again when the disk can be read, or start one broker: it serves all others."
            )

    async def abandon(self) -> None:
        """Ends what runs, and writes nothing: the disk is cut off, and closes its files itself."""
        self.controller.stop()
        await self.close_services()
        self.close_trace()

    async def stop(self, *, clean: bool = True) -> None:
        """Closes the connections and the logs; if all succeeds, marks the stop as clean."""
        self.controller.stop()
        await self.close_services()
        if self._loaded:
            self.host.store.close_all(clean=clean, settled=self._is_reconciled)
        self.close_trace()
