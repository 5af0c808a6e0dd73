"""What a client may do with a resource, as the bits that Kafka's replies carry (KIP-430)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencepost.broker.context import Context

NOT_ASKED: Final = -(2**31)
"""Stands in a reply where the client did not ask for the operations."""

CLUSTER: Final = "CLUSTER"
TOPIC: Final = "TOPIC"
GROUP: Final = "GROUP"
CLUSTER_NAME: Final = "kafka-cluster"

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
"""Which operations a kind of resource has at all."""


def authorized_operations(context: Context, resource_type: str, name: str) -> int:
    """One bit for each operation that the client may do."""
    return sum(
        1 << _BITS[operation]
        for operation in _OPERATIONS[resource_type]
        if context.authorize(operation, resource_type, name)
    )
