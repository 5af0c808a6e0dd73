"""The context of one request: what a handler may use besides the request's body."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from fencepost.broker.authorization import Authorizer
    from fencepost.broker.controller.controller import Controller
    from fencepost.broker.controller_port import ControllerPort, InternalTopics
    from fencepost.broker.groups.coordinator import GroupCoordinator
    from fencepost.broker.housekeeping import Housekeeping
    from fencepost.broker.metadata.follower import MetadataFollower
    from fencepost.broker.network.memory import MemoryBudget
    from fencepost.broker.network.presence import Presence
    from fencepost.broker.partitions.batch_opener import Opener
    from fencepost.broker.partitions.local_partitions import LocalPartitions
    from fencepost.broker.runtime import Runtime
    from fencepost.broker.security.audit import Audit
    from fencepost.broker.security.sessions import Session
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.broker.storage.partition_layout import PartitionLayout
    from fencepost.broker.transactions.coordinator import TransactionCoordinator
    from fencepost.broker.transactions.markers import MarkerWriter
    from fencepost.wire.apis import ApiKey


class Services:
    """The services of one broker that handlers call."""

    __slots__ = (
        "audit",
        "authorizer",
        "batch_opener",
        "config",
        "controller_port",
        "follower",
        "groups",
        "housekeeping",
        "internal_topics",
        "layout",
        "markers",
        "metadata",
        "partitions",
        "replies",
        "runtime",
        "transactions",
    )

    def __init__(
        self,
        *,
        runtime: Runtime,
        config: BrokerConfig,
        authorizer: Authorizer,
        audit: Audit,
        partitions: LocalPartitions,
        batch_opener: Opener,
        replies: MemoryBudget,
        layout: PartitionLayout,
        follower: MetadataFollower,
        controller: ControllerPort,
        internal_topics: InternalTopics,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        markers: MarkerWriter,
        housekeeping: Housekeeping,
    ) -> None:
        self.runtime = runtime
        self.config = config
        self.authorizer = authorizer
        self.audit = audit
        self.partitions = partitions
        self.batch_opener = batch_opener
        self.replies = replies
        self.layout = layout
        self.follower = follower
        self.metadata = follower.state
        self.controller_port = controller
        self.internal_topics = internal_topics
        self.groups = groups
        self.transactions = transactions
        self.markers = markers
        self.housekeeping = housekeeping

    @property
    def controller(self) -> Controller:
        """The controller of the cluster, for requests that only its process serves."""
        assert self.controller_port.forward is None, "the request should have been forwarded"
        return cast("Controller", self.controller_port)


class Context:
    """The services, and the header and connection of one request."""

    __slots__ = (
        "api",
        "api_version",
        "client_address",
        "client_host",
        "client_id",
        "client_software",
        "correlation_id",
        "listener",
        "presence",
        "principal",
        "received_at",
        "services",
        "session",
    )

    def __init__(
        self,
        services: Services,
        api_version: int,
        client_id: str | None,
        client_host: str,
        correlation_id: int = 0,
        principal: str = "User:ANONYMOUS",
        client_address: str | None = None,
        client_software: str = "",
        listener: str = "PLAINTEXT",
        api: ApiKey | None = None,
        session: Session | None = None,
        presence: Presence | None = None,
    ) -> None:
        self.services = services
        self.api_version = api_version
        self.client_id = client_id
        self.client_host = client_host
        self.correlation_id = correlation_id
        self.principal = principal
        self.listener = listener
        """The name of the listener that the client is connected to."""
        self.session = session
        """The login of the connection, on a listener with SASL."""
        self.client_address = client_address or client_host
        """Host and port, if the client is connected to this process."""
        self.client_software = client_software
        """The name that the client sent with ApiVersions; empty without one."""
        self.api = api
        """The request's API, for the audit log."""
        self.presence = presence
        """Whether the client is connected, if it is connected to this process."""
        self.received_at = 0.0
        """When the request was dispatched, if requests are timed."""

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a topic, for a fault of a test."""
        topic = self.services.metadata.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def authorize(self, operation: str, resource_type: str, resource_name: str) -> bool:
        """Whether the client may do what it asks for; a denial is in the audit log."""
        services = self.services
        if services.authorizer.authorize(
            self.principal, self.client_host, operation, resource_type, resource_name
        ):
            return True
        services.audit.denied(self, operation, resource_type, resource_name)
        return False

    def may(self, operation: str, resource_type: str, resource_name: str) -> bool:
        """The same, but a denial is not logged.

        For replies that leave out what the client may not see, and for the first of two rights of
        which one is enough.
        """
        return self.services.authorizer.authorize(
            self.principal, self.client_host, operation, resource_type, resource_name
        )
