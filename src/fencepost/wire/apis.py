"""The APIs and their versions in Apache Kafka 4.4.

The classes of an API are imported on first use: a tool that uses three APIs does not pay for forty.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, Self

NEVER: Final = 1 << 15
"""The first flexible version of an API that has none."""


class ApiKey(IntEnum):
    """The number of an API in a request header.

    Behind it stand the first and the last version, the first flexible one, and the first that is
    advertised, where that is another.
    """

    def __new__(
        cls,
        number: int,
        versions: tuple[int, int],
        flexible_from: int,
        advertised_min: int | None = None,
    ) -> Self:
        key = int.__new__(cls, number)
        key._value_ = number
        key.min_version, key.max_version = versions
        key.flexible_from = flexible_from
        key.advertised_min = versions[0] if advertised_min is None else advertised_min
        return key

    min_version: int
    max_version: int
    flexible_from: int
    advertised_min: int

    # Produce advertises 0 as its first version, because librdkafka infers features from that
    # (KAFKA-18659); 0 to 2 are refused all the same.
    PRODUCE = 0, (3, 13), 9, 0
    FETCH = 1, (4, 18), 12
    LIST_OFFSETS = 2, (1, 11), 6
    METADATA = 3, (0, 13), 9
    OFFSET_COMMIT = 8, (2, 10), 8
    OFFSET_FETCH = 9, (1, 10), 6
    FIND_COORDINATOR = 10, (0, 6), 3
    JOIN_GROUP = 11, (0, 9), 6
    HEARTBEAT = 12, (0, 4), 4
    LEAVE_GROUP = 13, (0, 5), 4
    SYNC_GROUP = 14, (0, 5), 4
    DESCRIBE_GROUPS = 15, (0, 6), 5
    LIST_GROUPS = 16, (0, 5), 3
    SASL_HANDSHAKE = 17, (0, 1), NEVER
    API_VERSIONS = 18, (0, 5), 3
    CREATE_TOPICS = 19, (2, 7), 5
    DELETE_TOPICS = 20, (1, 6), 4
    DELETE_RECORDS = 21, (0, 2), 2
    # The schema has version 6 (two-phase commit, KIP-939), which Kafka 4.4 calls unstable and does
    # not offer.
    INIT_PRODUCER_ID = 22, (0, 5), 2
    OFFSET_FOR_LEADER_EPOCH = 23, (2, 4), 4
    ADD_PARTITIONS_TO_TXN = 24, (0, 5), 3
    ADD_OFFSETS_TO_TXN = 25, (0, 4), 3
    END_TXN = 26, (0, 5), 3
    WRITE_TXN_MARKERS = 27, (1, 2), 1
    TXN_OFFSET_COMMIT = 28, (0, 6), 3
    DESCRIBE_ACLS = 29, (1, 3), 2
    CREATE_ACLS = 30, (1, 3), 2
    DELETE_ACLS = 31, (1, 3), 2
    DESCRIBE_CONFIGS = 32, (1, 4), 4
    ALTER_CONFIGS = 33, (0, 2), 2
    DESCRIBE_LOG_DIRS = 35, (1, 5), 2
    SASL_AUTHENTICATE = 36, (0, 2), 2
    CREATE_PARTITIONS = 37, (0, 3), 2
    DELETE_GROUPS = 42, (0, 3), 2
    ELECT_LEADERS = 43, (0, 2), 2
    INCREMENTAL_ALTER_CONFIGS = 44, (0, 1), 1
    ALTER_PARTITION_REASSIGNMENTS = 45, (0, 1), 0
    LIST_PARTITION_REASSIGNMENTS = 46, (0, 0), 0
    OFFSET_DELETE = 47, (0, 0), NEVER
    DESCRIBE_CLIENT_QUOTAS = 48, (0, 1), 1
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, (0, 0), 0
    ALTER_USER_SCRAM_CREDENTIALS = 51, (0, 0), 0
    DESCRIBE_QUORUM = 55, (0, 2), 0
    DESCRIBE_CLUSTER = 60, (0, 2), 0
    DESCRIBE_PRODUCERS = 61, (0, 0), 0
    DESCRIBE_TRANSACTIONS = 65, (0, 0), 0
    LIST_TRANSACTIONS = 66, (0, 2), 0
    CONSUMER_GROUP_HEARTBEAT = 68, (0, 1), 0
    CONSUMER_GROUP_DESCRIBE = 69, (0, 1), 0
    LIST_CONFIG_RESOURCES = 74, (0, 1), 0
    DESCRIBE_TOPIC_PARTITIONS = 75, (0, 0), 0
    SHARE_GROUP_HEARTBEAT = 76, (1, 1), 0
    # Not served: their replies hold addresses, which `fencepost tap` rewrites.
    SHARE_FETCH = 78, (1, 2), 0
    SHARE_ACKNOWLEDGE = 79, (1, 2), 0


class Api:
    """One API: its versions and, on first use, its two forms."""

    __slots__ = (
        "advertised_min",
        "flexible_from",
        "key",
        "max_version",
        "min_version",
        "name",
        "request",
        "response",
    )
    request: type[Any]
    response: type[Any]

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.name = "".join(word.capitalize() for word in key.name.split("_"))
        self.min_version, self.max_version = key.min_version, key.max_version
        self.flexible_from = key.flexible_from
        self.advertised_min = key.advertised_min

    def __getattr__(self, name: str) -> type[Any]:
        # Called once, while the slot is still empty.
        if name not in ("request", "response"):
            raise AttributeError(name)
        module = import_module(f"fencepost.wire.forms.{self.key.name.lower()}")
        self.request = getattr(module, f"{self.name}Request")
        self.response = getattr(module, f"{self.name}Response")
        return self.request if name == "request" else self.response

    def __repr__(self) -> str:
        return f"{self.name} ({int(self.key)}): v{self.min_version}-{self.max_version}"

    def serves(self, version: int) -> bool:
        """Whether requests of that version are served."""
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        """Whether that version has tagged fields, in the body and in the request header."""
        return version >= self.flexible_from

    def request_header_version(self, version: int) -> int:
        """2 has tagged fields after the client id, 1 does not."""
        return 2 if version >= self.flexible_from else 1

    def response_header_version(self, version: int) -> int:
        """1 has tagged fields, 0 is the correlation id alone.

        ApiVersions stays at 0 in all versions: its reader cannot know yet what the writer supports.
        """
        return 1 if version >= self.flexible_from and self.key is not ApiKey.API_VERSIONS else 0


API: Final[Mapping[ApiKey, Api]] = MappingProxyType({key: Api(key) for key in ApiKey})
BY_NUMBER: Final[Mapping[int, Api]] = MappingProxyType({int(key): api for key, api in API.items()})
"""The same table by the plain number in a header."""

OTHER_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        34: "AlterReplicaLogDirs",
        38: "CreateDelegationToken",
        39: "RenewDelegationToken",
        40: "ExpireDelegationToken",
        41: "DescribeDelegationToken",
        49: "AlterClientQuotas",
        57: "UpdateFeatures",
        71: "GetTelemetrySubscriptions",
        72: "PushTelemetry",
        77: "ShareGroupDescribe",
        88: "StreamsGroupHeartbeat",
        89: "StreamsGroupDescribe",
        90: "DescribeShareGroupOffsets",
        91: "AlterShareGroupOffsets",
        92: "DeleteShareGroupOffsets",
    }
)
"""APIs that clients use and whose messages we cannot read."""


def name_of_api(number: int) -> str:
    """Kafka's name of an API, or `API 123` for an unknown one."""
    api = BY_NUMBER.get(number)
    return api.name if api is not None else OTHER_NAMES.get(number, f"API {number}")
