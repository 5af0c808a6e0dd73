"""The controller of a cluster: the metadata log, and the requests that only the controller serves.

It is built like a broker, because the handlers of these requests need a broker's services. But it
leads no partition except the metadata log, listens nowhere, and its requests come from brokers.
What the metadata log means for it, it carries out like a broker: the folders of deleted topics are
removed, and settings of the cluster are applied (`remote_followers.py`).
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from fencepost.base.failures import StorageError
from fencepost.base.seams import Buffer, Randomness
from fencepost.broker.context import Context
from fencepost.broker.controller.controller import Controller
from fencepost.broker.core import BrokerCore
from fencepost.broker.handlers import CONTROLLER_APIS, HANDLERS
from fencepost.broker.metadata.follower import MetadataFollower
from fencepost.broker.partitions.partition_host import PartitionHost
from fencepost.broker.security.authorizer import check_access
from fencepost.broker.security.first_administrator import Administrator, create_first
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.storage.cluster_checkpoints import known_partitions, partitions_to_open
from fencepost.broker.storage.identity import load_identity
from fencepost.broker.storage.parent_layout import ParentLayout
from fencepost.broker.waiting import Parked
from fencepost.cluster.messages import Request
from fencepost.cluster.parent.remote_followers import RemoteFollowers
from fencepost.wire.codec import decode_request, encode_response, read_request_header

log = logging.getLogger(__name__)

CONTROLLER_ID: Final = 0
"""The node id of the controller. Brokers have ids from 1 on."""

DELETE_AGAIN_MS: Final = 5_000
"""How often folders of deleted partitions that the disk has not let go are tried again."""


class ControllerNode(BrokerCore):
    """The controller of one cluster."""

    layout: ParentLayout

    def __init__(
        self,
        config: BrokerConfig,
        host: PartitionHost[ParentLayout],
        broker_ids: Sequence[int],
        *,
        randomness: Randomness,
    ) -> None:
        follower = MetadataFollower()
        self.brokers: Final = RemoteFollowers(follower, self._end_offset)
        self.controller: Final = Controller.on_host(
            host, config, randomness, self.brokers, broker_ids=broker_ids
        )
        super().__init__(
            config,
            host,
            follower,
            randomness=randomness,
            controller=self.controller,
        )
        self._randomness = randomness
        self._broker_ids: Final = tuple(broker_ids)
        self._is_loaded = False
        self._is_stopped = False

    def _end_offset(self) -> int:
        return self.controller.end_offset

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, from meta.properties."""
        return self.follower.cluster_id

    def load(self, administrator: Administrator | None = None) -> None:
        """Loads the directory and the metadata log, and hands the partitions to the brokers.

        The first administrator is created if there is no such user.
        """
        with self.host.ends_on_failed_sync():
            self._load(administrator)
        self._is_loaded = True
        self.runtime.call_later(DELETE_AGAIN_MS, self._delete_again)

    def _load(self, administrator: Administrator | None) -> None:
        disk, config = self.host.disk, self.config
        disk.set_starting(True)
        try:
            self.layout.load()
            assert not self.layout.may_disagree, "logs that may disagree are compared before"
            # The id of the first broker, which is also that of a single broker.
            first_id = self._broker_ids[0]
            identity = load_identity(disk, config.data, first_id, self._randomness)
            self.follower.cluster_id = identity.cluster_id
            self.controller.load()
            check_access(config, self.metadata.acls)
            if administrator is not None:
                create_first(self.controller, administrator, self._randomness)
            self.effects.open_all()  # It leads nothing; this applies the settings of the cluster.
            self.layout.begin_cluster(partitions_to_open(self.metadata), sync=self.partitions.fsync)
        except OSError as problem:
            raise StorageError(
                f"{config.data} could not be loaded: {problem}. Nothing was lost by this attempt; "
                "start again when the disk can be read and written."
            ) from problem
        finally:
            disk.set_starting(False)

    def _delete_again(self) -> None:
        """Renames folders of deleted partitions that could not be renamed, and goes on trying."""
        if not self._is_stopped:
            self.host.removal.add(self.layout.delete_again())
            self.runtime.call_later(DELETE_AGAIN_MS, self._delete_again)

    def opened(self) -> None:
        """Every broker has opened its partitions: recovery is complete."""
        self.layout.trust_session(sync=self.partitions.fsync)

    def serve(self, request: Request, answer: Callable[[Sequence[Buffer]], None]) -> None:
        """Serves a request that a broker has forwarded; the reply is a whole frame."""
        header = read_request_header(request.frame)
        api, version = header.api.key, header.api_version
        assert api in CONTROLLER_APIS, f"{header.api.name} is not a request for the controller"
        form = decode_request(header.api, version, request.frame, header.body_offset)
        context = Context(
            self.services,
            version,
            header.client_id,
            request.client_host,
            header.correlation_id,
            request.principal,
            listener=request.listener,
            api=api,
        )
        handler = importlib.import_module(f"fencepost.broker.handlers.{HANDLERS[api]}")
        reply = handler.handle(form, context)

        def send(reply: object) -> None:
            answer(encode_response(api, version, header.correlation_id, reply))

        if isinstance(reply, Parked):
            reply.when_answered(send)
        else:
            send(reply)

    async def stop(self, *, was_begun: bool) -> None:
        """Closes the metadata log; if every partition was closed cleanly, so is the stop.

        `was_begun` is whether brokers have got the state, and may have opened partitions.
        """
        self._is_stopped = True
        self.controller.stop()
        await self.close_services()
        if self._is_loaded:
            known = known_partitions if was_begun else partitions_to_open
            clean = not self.partitions.has_ended and self.layout.end_cluster(known(self.metadata))
            self.host.store.close_all(clean=clean, settled=True)
