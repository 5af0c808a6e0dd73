"""Authorization: who may do what, and how replies show it.

fencepost keeps no ACLs. A broker that listens on loopback only allows everything (`AllowAll`); a
test can pass an `Authorizer` that decides otherwise. Names of operations and resource types are
Kafka's (WRITE, TRANSACTIONAL_ID ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from fencepost.base.errors import ErrorCode
from fencepost.base.refusal import Refusal
from fencepost.broker.context import Context

CLUSTER: Final = "CLUSTER"
TOPIC: Final = "TOPIC"
GROUP: Final = "GROUP"
CLUSTER_NAME: Final = "kafka-cluster"

NOT_REQUESTED: Final = -(2**31)
"""The bits of a reply to a client that did not request the authorized operations."""


class Authorizer(Protocol):
    """Decides what a principal may do with a resource."""

    def authorize(
        self, principal: str, operation: str, resource_type: str, resource_name: str
    ) -> bool: ...


class AllowAll:
    """The default authorizer: loopback only, one user."""

    def authorize(
        self, principal: str, operation: str, resource_type: str, resource_name: str
    ) -> bool:
        return True


# -- authorized operations, as the bits that replies carry (KIP-430)
# ------------------------------------------------------------------------------------------------

_BITS: Final[Mapping[str, int]] = {
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
}

_OPERATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    CLUSTER: (
        "CREATE",
        "ALTER",
        "DESCRIBE",
        "CLUSTER_ACTION",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
    ),
    TOPIC: (
        "READ",
        "WRITE",
        "CREATE",
        "DELETE",
        "ALTER",
        "DESCRIBE",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
    ),
    GROUP: ("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
}
"""The operations that each resource type supports."""


def authorized_operations(context: Context, resource_type: str, name: str) -> int:
    """One bit for each operation that the client may perform."""
    return sum(
        1 << _BITS[operation]
        for operation in _OPERATIONS[resource_type]
        if context.authorize(operation, resource_type, name)
    )


# -- ACLs
# ------------------------------------------------------------------------------------------------

_NO_ACLS: Final = Refusal(
    ErrorCode.SECURITY_DISABLED, "No Authorizer is configured: fencepost keeps no ACLs."
)


def refuse_acls(context: Context, operation: str) -> Refusal:
    """The answer to every ACL request: not authorized, or no ACLs here."""
    if context.authorize(operation, CLUSTER, CLUSTER_NAME):
        return _NO_ACLS
    return Refusal(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        f"Not authorized to {operation.lower()} the cluster.",
    )
