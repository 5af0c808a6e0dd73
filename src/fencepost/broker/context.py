"""The context of one request: what a handler may use besides the request's body."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencepost.broker.node import Node


class Context:
    """The node, and the header and connection of one request."""

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
        """Whether the node's authorizer permits the operation."""
        return self.node.authorizer.authorize(
            self.principal, operation, resource_type, resource_name
        )
