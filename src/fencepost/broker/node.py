"""The composition root: one broker, assembled from its parts.

Clock, disk and randomness are arguments; the network and the timers are those of the running
asyncio loop. So the same node runs in a process, in a thread of a test, and in a simulator that
moves the clock itself. The node builds the services, starts and stops them, and does nothing else:
each service gets the runtime and the neighbours that it calls, and no service knows the node.

A start loads meta.properties, the metadata log (topics, ids, configs) and every partition that this
node leads, and opens the port. Then it loads the coordinators from the internal topics, and settles
what a crash has left. No request is served before that, but a coordinator with a long log may
still be loading.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from fencepost.base.failures import ConfigError, StorageError
from fencepost.base.seams import Clock, Disk, Randomness
from fencepost.broker.authorization import AllowAll, Authorizer
from fencepost.broker.batch_opener import Opener
from fencepost.broker.context import Services
from fencepost.broker.controller.controller import Controller
from fencepost.broker.controller.metadata_log import MetadataLog
from fencepost.broker.coordinators import Coordinators
from fencepost.broker.dispatch import Dispatcher
from fencepost.broker.faults import Faults
from fencepost.broker.groups.coordinator import GroupCoordinator
from fencepost.broker.housekeeping import Housekeeping
from fencepost.broker.local_partitions import LocalPartitions
from fencepost.broker.memory import MemoryBudget
from fencepost.broker.metadata.effects import MetadataEffects
from fencepost.broker.metadata.follower import MetadataFollower
from fencepost.broker.metadata.internal_topics import InternalTopics
from fencepost.broker.peers import NO_PEERS, Peers
from fencepost.broker.runtime import Runtime
from fencepost.broker.server import Server
from fencepost.broker.settings.listener import ANY_HOST
from fencepost.broker.storage.background import Background, Flusher
from fencepost.broker.storage.descriptors import UNLIMITED, Descriptors, PatientDisk, share_out
from fencepost.broker.storage.identity import load_identity
from fencepost.broker.storage.layout import Layout
from fencepost.broker.storage.partition_store import PartitionStore
from fencepost.broker.storage.removal import Removal
from fencepost.broker.storage.scrub import Scrub
from fencepost.broker.transactions.coordinator import TransactionCoordinator
from fencepost.broker.transactions.markers import MarkerWriter
from fencepost.broker.transactions.producer_ids import ProducerIds
from fencepost.broker.transactions.reconciliation import Reconciliation
from fencepost.log.segment.open_segments import OpenSegments

if TYPE_CHECKING:
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.trace import Trace

log = logging.getLogger(__name__)


class Node:
    """One broker."""

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
    ) -> None:
        self.config = config
        self.fatal = on_fatal
        self.trace = trace
        self.faults = Faults()
        self._randomness = randomness
        self._server: Server | None = None
        self._loaded = False
        self._is_settled = False
        """Whether this start has settled what the last stop left."""

        # -- the directory and its partitions
        self._descriptors = descriptors or share_out(UNLIMITED, config.max_connections)
        open_segments = OpenSegments(self._descriptors.sealed, self._descriptors.growing)
        self._patient_disk = PatientDisk(disk, open_segments.make_room)
        self.partitions = LocalPartitions(fsync=config.durability == "fsync", on_fatal=on_fatal)
        self.runtime = Runtime(clock, self._patient_disk, self.partitions)
        self.layout = Layout(self._patient_disk, config.data)
        self.background = Background(on_fatal)
        self.flusher = Flusher(self.runtime, self.partitions, self.layout, self.background)
        self._removal = Removal(self._patient_disk)
        self._store = PartitionStore(
            self.runtime, self.layout, self.partitions, open_segments, self.flusher, self._removal
        )

        # -- the controller, and the broker that follows it
        self.follower = MetadataFollower()
        self.metadata = self.follower.state
        metadata_log = MetadataLog(
            self.runtime, self.layout, self._store, self.background, self.flusher, self.follower
        )
        self.controller = Controller(
            self.runtime, config, randomness, self.layout, metadata_log, self.follower
        )

        # -- the coordinators
        self.groups = GroupCoordinator(self.runtime, config, randomness, self.metadata)
        markers = MarkerWriter(
            self.runtime, self.partitions, self.metadata, self.groups, peers, config.node_id
        )
        producer_ids = ProducerIds(self.controller.reserve_block)
        self.transactions = TransactionCoordinator(
            self.runtime, config, self.metadata, producer_ids, markers, peers
        )
        self.coordinators = Coordinators(
            self.metadata, self.partitions, self.groups, self.transactions
        )
        self._reconciliation = Reconciliation(
            self.runtime,
            self.layout,
            self.partitions,
            self.metadata,
            self.controller,
            self.coordinators,
            markers,
        )
        self._effects = MetadataEffects(
            self.runtime,
            config,
            self.follower,
            self._store,
            self.partitions,
            self.groups,
            self.coordinators,
            on_fatal,
        )
        self.follower.attach(self._effects)

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
            self.controller,
            self.groups,
            self.transactions,
        )

        # -- requests
        self.replies = MemoryBudget(config.queued_max_response_bytes)
        self.requests = MemoryBudget(config.queued_max_request_bytes)
        self._batch_opener = Opener(on_fatal)
        self.services = Services(
            runtime=self.runtime,
            config=config,
            authorizer=authorizer or AllowAll(),
            partitions=self.partitions,
            batch_opener=self._batch_opener,
            replies=self.replies,
            layout=self.layout,
            follower=self.follower,
            controller=self.controller,
            internal_topics=InternalTopics(self.metadata, self.controller),
            groups=self.groups,
            transactions=self.transactions,
            markers=markers,
            housekeeping=self.housekeeping,
            in_cluster=peers.is_cluster,
        )
        self.dispatcher = Dispatcher(self.services, self.faults, trace, on_fatal)

    # -- start and stop ---------------------------------------------------------------------------

    async def start(self) -> str:
        """Loads everything and serves; returns an address that local clients can connect to."""
        loop = asyncio.get_running_loop()
        self.runtime.attach(loop)
        self.partitions.attach(loop)
        self._batch_opener.attach(loop)
        self._load()
        config = self.config
        self._server = Server(
            loop,
            self.dispatcher,
            replies=self.replies,
            requests=self.requests,
            max_request_bytes=config.socket_request_max_bytes,
            max_connections=self._descriptors.connections,
            max_idle_ms=config.connections_max_idle_ms,
        )
        try:
            port = await self._server.listen(config.listen_host, config.listen_port)
        except OSError as problem:
            raise cannot_listen(config.listen_host, config.listen_port, problem) from problem
        listening = _address(config.listen_host, port)
        advertised = _address(*config.advertised(port))
        try:
            self.controller.register(*config.advertised(port))
            self._reconciliation.load_coordinators()
        except OSError as problem:
            raise self._not_loaded(problem) from problem
        if not self._effects.has_offline:
            # Offline partitions have been neither synced nor compared with the other logs.
            self.layout.trust_session(sync=self.partitions.fsync)
            self._is_settled = True
        self._removal.start(loop, self.layout.deleted_folders())
        self.housekeeping.start()
        self.scrub.start()
        self.flusher.save_soon()
        if advertised != listening:
            log.info("listening on %s; advertised to clients as %s", listening, advertised)
        return advertised if config.listen_host in ANY_HOST else listening

    def descriptors(self) -> list[int]:
        """The descriptors of all sockets."""
        return [] if self._server is None else self._server.descriptors()

    def _load(self) -> None:
        """Loads the directory; a disk that fails is a StorageError with a sentence."""
        disk, config = self._patient_disk, self.config
        disk.set_starting(True)
        try:
            self.layout.load()
            identity = load_identity(disk, config.data, config.node_id, self._randomness)
            self.follower.cluster_id = identity.cluster_id
            self.controller.load()
            self._effects.open_all(compares_logs=self.layout.may_disagree)
            if not self.layout.clean:
                self.controller.raise_epochs_above(self._effects.logged_epochs())
        except OSError as problem:
            raise self._not_loaded(problem) from problem
        finally:
            disk.set_starting(False)
        self._loaded = True

    def _not_loaded(self, problem: OSError) -> StorageError:
        return StorageError(
            f"{self.config.data} could not be loaded: {problem}. Nothing was lost by this "
            "attempt; start again when the disk can be read and written."
        )

    async def stop(self, *, clean: bool = True) -> None:
        """Closes the connections and the logs; if all succeeds, marks the stop as clean."""
        self.housekeeping.stop()
        self.scrub.stop()
        self.flusher.stop()
        self.controller.stop()
        self._effects.stop()
        if self._server is not None:
            await self._server.close()
        self._batch_opener.close()
        await self.partitions.settle()
        await self._removal.stop()
        await self.background.settle()
        self.groups.close()
        self.transactions.close()
        if self._loaded:
            self._store.close_all(clean=clean, settled=self._is_settled)
        if self.trace is not None:
            self.trace.close()


def cannot_listen(host: str, port: int, problem: OSError) -> ConfigError:
    """The error for an address that cannot be listened on."""
    # The loop's own message repeats the address; an unknown host name has no positive errno.
    number = problem.errno or 0
    reason = os.strerror(number) if number > 0 else problem.strerror
    return ConfigError(
        f"{_address(host, port)} cannot be listened on: {reason}. "
        "Choose another address with --listen; port 0 picks a free port."
    )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
