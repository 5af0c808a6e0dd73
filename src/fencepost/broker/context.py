"""What a handler knows about the request besides its body, and the seam for authorization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fencepost.broker.node import Node


class Authorizer(Protocol):
    """Who may do what.

    Names of operations and resources are Kafka's (WRITE, TRANSACTIONAL_ID ...).
    """

    def authorize(
        self, principal: str, operation: str, resource_type: str, resource_name: str
    ) -> bool: ...


class AllowAll:
    """The default: loopback only, one user."""

    def authorize(
        self, principal: str, operation: str, resource_type: str, resource_name: str
    ) -> bool:
        return True


class Context:
    """One request's surroundings."""

    __slots__ = (
        "api_version",
        "client_host",
        "client_id",
        "correlation_id",
        "node",
        "principal",
    )

    def __init__(
        self,
        node: Node,
        api_version: int,
        client_id: str | None,
        client_host: str,
        correlation_id: int = 0,
        principal: str = "User:ANONYMOUS",
    ) -> None:
        self.node = node
        self.api_version = api_version
        self.client_id = client_id
        self.client_host = client_host
        self.correlation_id = correlation_id
        self.principal = principal

    def authorize(self, operation: str, resource_type: str, resource_name: str) -> bool:
        """Whether the authorizer of this node lets the client do that."""
        return self.node.authorizer.authorize(
            self.principal, operation, resource_type, resource_name
        )
