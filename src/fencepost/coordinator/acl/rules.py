"""A rule, and the words of which it is made, with Kafka's numbers for them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

ALL_NAMES: Final = "*"
"""The literal name that matches all resources of a type."""
ALL_HOSTS: Final = "*"
EVERYONE: Final = "User:*"
"""The principal that matches all principals."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class ResourceType(IntEnum):
    """What a rule is about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of a rule is compared; ANY and MATCH are for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is done with a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether a rule allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


SUPPORTED: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        Operation.WRITE,
        Operation.DESCRIBE,
        Operation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that each type of resource has. As in Kafka, a rule with another one is kept, and
never asked about; the commands refuse to add it."""

_IMPLIED: Final[dict[Operation, Operation]] = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}
"""What a rule that allows an operation allows, too."""

_EVERY: Final = frozenset(Operation)


class Rule(NamedTuple):
    """One ACL."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def operations(self) -> frozenset[Operation]:
        """The operations that this rule allows or denies."""
        if self.operation is Operation.ALL:
            return _EVERY
        implied = _IMPLIED.get(self.operation)
        if implied is None or self.permission is Permission.DENY:
            return frozenset((self.operation,))
        return frozenset((self.operation, implied))

    def __str__(self) -> str:
        prefix = "prefixed " if self.pattern_type is PatternType.PREFIXED else ""
        host = "" if self.host == ALL_HOSTS else f" from {self.host}"
        return (
            f"{self.permission.name} {self.principal}{host} {self.operation.name} on "
            f"{prefix}{self.resource_type.name}:{self.resource_name}"
        )


def canonical_host(host: str) -> str:
    """An address as the operating system prints it: Java prints IPv6 addresses in full."""
    if ":" not in host:
        return host
    # Here, because it takes a while to import, and few brokers need it.
    from ipaddress import ip_address

    try:
        return str(ip_address(host))
    except ValueError:
        return host


def why_no_client_is_at(host: str) -> str | None:
    """Why a rule with this host would never match, as a sentence; None if it may.

    If such a rule denies, its author feels safe. Kafka keeps it all the same.
    """
    from ipaddress import ip_address

    if host == ALL_HOSTS:
        return None
    try:
        address = ip_address(host)
    except ValueError:
        return (
            f"The host {host!r} is no address: a rule is for one address such as 10.0.0.7 or ::1, "
            "or for all (*); brokers compare neither names nor networks."
        )
    mapped = getattr(address, "ipv4_mapped", None)
    if mapped is not None:
        return f"No client has the address {host}: brokers know it as {mapped}."
    if address.is_unspecified or address.is_multicast:
        return f"No client has the address {host}; the host of a rule for all of them is *."
    if "%" in host:
        return f"Brokers know an address without its zone: write {host.partition('%')[0]}."
    return None


def javas_host(host: str) -> str:
    """A host as Apache Kafka compares it, as text: addresses of IPv6 in full, 0:0:0:0:0:0:0:1."""
    from ipaddress import IPv6Address

    if ":" not in host:
        return host
    parts = IPv6Address(host).exploded.split(":")
    return ":".join(f"{int(part, 16):x}" for part in parts)
