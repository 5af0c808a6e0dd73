"""Authorization as handlers use it: the authorizer's interface, and how replies show rights.

Without `authorizer.class.name` a broker allows everything (`AllowAll`); with it,
`broker/security/authorizer.py` decides by ACLs. Names of operations and resource types are Kafka's
(WRITE, TRANSACTIONAL_ID ...).
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
    """Decides what a principal, who is at this host, may do with a resource."""

    def authorize(
        self, principal: str, host: str, operation: str, resource_type: str, resource_name: str
    ) -> bool: ...

    def authorize_by_type(
        self, principal: str, host: str, operation: str, resource_type: str
    ) -> bool:
        """Whether the operation is allowed on some resource of the type, existing or not."""


class AllowAll:
    """The default: there is no authorizer."""

    def authorize(
        self, principal: str, host: str, operation: str, resource_type: str, resource_name: str
    ) -> bool:
        return True

    def authorize_by_type(
        self, principal: str, host: str, operation: str, resource_type: str
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
        if context.may(operation, resource_type, name)
    )


def cluster_operations(context: Context) -> int:
    """The same for the cluster, to clients that may describe it; none to others."""
    if not context.authorize("DESCRIBE", CLUSTER, CLUSTER_NAME):
        return 0
    return authorized_operations(context, CLUSTER, CLUSTER_NAME)


def may_create_topic(context: Context, name: str) -> bool:
    """Whether the client may create a topic, by a right on the cluster or on the name."""
    return context.may("CREATE", CLUSTER, CLUSTER_NAME) or context.authorize("CREATE", TOPIC, name)


# -- ACLs
# ------------------------------------------------------------------------------------------------

_NO_AUTHORIZER: Final = Refusal(
    ErrorCode.SECURITY_DISABLED,
    "No Authorizer is configured: set authorizer.class.name to have ACLs.",
)


def refuse_acls(context: Context, operation: str) -> Refusal | None:
    """Why a request about ACLs is refused: not authorized, or no authorizer; None if it is not."""
    if not context.authorize(operation, CLUSTER, CLUSTER_NAME):
        return Refusal(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"Not authorized to {operation.lower()} the cluster.",
        )
    if not context.services.config.authorizer_class_name:
        return _NO_AUTHORIZER
    return None
