"""The APIs and their versions in Apache Kafka 4.3.

The classes of an API are imported on first use: a tool that uses three APIs does not pay for forty.
"""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class ApiKey(IntEnum):
    """The number of an API in a request header."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79


NEVER: Final = 1 << 15
"""The first flexible version of an API that has none."""


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

    def __init__(
        self,
        key: ApiKey,
        versions: tuple[int, int],
        flexible_from: int,
        advertised_min: int | None = None,
    ) -> None:
        self.key = key
        self.name = "".join(word.capitalize() for word in key.name.split("_"))
        self.min_version, self.max_version = versions
        self.flexible_from = flexible_from
        self.advertised_min = versions[0] if advertised_min is None else advertised_min

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


_TABLE: Final = (
    # Produce advertises 0 as its first version, because librdkafka infers features from that
    # (KAFKA-18659); 0 to 2 are refused all the same.
    Api(ApiKey.PRODUCE, (3, 13), 9, advertised_min=0),
    Api(ApiKey.FETCH, (4, 18), 12),
    Api(ApiKey.LIST_OFFSETS, (1, 11), 6),
    Api(ApiKey.METADATA, (0, 13), 9),
    Api(ApiKey.OFFSET_COMMIT, (2, 10), 8),
    Api(ApiKey.OFFSET_FETCH, (1, 10), 6),
    Api(ApiKey.FIND_COORDINATOR, (0, 6), 3),
    Api(ApiKey.JOIN_GROUP, (0, 9), 6),
    Api(ApiKey.HEARTBEAT, (0, 4), 4),
    Api(ApiKey.LEAVE_GROUP, (0, 5), 4),
    Api(ApiKey.SYNC_GROUP, (0, 5), 4),
    Api(ApiKey.DESCRIBE_GROUPS, (0, 6), 5),
    Api(ApiKey.LIST_GROUPS, (0, 5), 3),
    Api(ApiKey.SASL_HANDSHAKE, (0, 1), NEVER),
    Api(ApiKey.API_VERSIONS, (0, 4), 3),
    Api(ApiKey.CREATE_TOPICS, (2, 7), 5),
    Api(ApiKey.DELETE_TOPICS, (1, 6), 4),
    Api(ApiKey.DELETE_RECORDS, (0, 2), 2),
    # The schema has version 6 (two-phase commit, KIP-939), which Kafka 4.3 calls unstable and does
    # not offer.
    Api(ApiKey.INIT_PRODUCER_ID, (0, 5), 2),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, (2, 4), 4),
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, (0, 5), 3),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, (0, 4), 3),
    Api(ApiKey.END_TXN, (0, 5), 3),
    Api(ApiKey.WRITE_TXN_MARKERS, (1, 2), 1),
    Api(ApiKey.TXN_OFFSET_COMMIT, (0, 5), 3),
    Api(ApiKey.DESCRIBE_ACLS, (1, 3), 2),
    Api(ApiKey.CREATE_ACLS, (1, 3), 2),
    Api(ApiKey.DELETE_ACLS, (1, 3), 2),
    Api(ApiKey.DESCRIBE_CONFIGS, (1, 4), 4),
    Api(ApiKey.ALTER_CONFIGS, (0, 2), 2),
    Api(ApiKey.DESCRIBE_LOG_DIRS, (1, 5), 2),
    Api(ApiKey.SASL_AUTHENTICATE, (0, 2), 2),
    Api(ApiKey.CREATE_PARTITIONS, (0, 3), 2),
    Api(ApiKey.DELETE_GROUPS, (0, 2), 2),
    Api(ApiKey.ELECT_LEADERS, (0, 2), 2),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1), 1),
    Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 1), 0),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, (0, 0), 0),
    Api(ApiKey.OFFSET_DELETE, (0, 0), NEVER),
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, (0, 1), 1),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), 0),
    Api(ApiKey.DESCRIBE_QUORUM, (0, 2), 0),
    Api(ApiKey.DESCRIBE_CLUSTER, (0, 2), 0),
    Api(ApiKey.DESCRIBE_PRODUCERS, (0, 0), 0),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, (0, 0), 0),
    Api(ApiKey.LIST_TRANSACTIONS, (0, 2), 0),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, (0, 1), 0),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, (0, 1), 0),
    Api(ApiKey.LIST_CONFIG_RESOURCES, (0, 1), 0),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, (0, 0), 0),
    Api(ApiKey.SHARE_GROUP_HEARTBEAT, (1, 1), 0),
    # Not served: their replies hold addresses, which `fencepost tap` rewrites.
    Api(ApiKey.SHARE_FETCH, (1, 2), 0),
    Api(ApiKey.SHARE_ACKNOWLEDGE, (1, 2), 0),
)

API: Final[Mapping[ApiKey, Api]] = MappingProxyType({api.key: api for api in _TABLE})
BY_NUMBER: Final[Mapping[int, Api]] = MappingProxyType({int(api.key): api for api in _TABLE})
"""The same table by the plain number in a header."""

OTHER_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        34: "AlterReplicaLogDirs",
        38: "CreateDelegationToken",
        39: "RenewDelegationToken",
        40: "ExpireDelegationToken",
        41: "DescribeDelegationToken",
        49: "AlterClientQuotas",
        51: "AlterUserScramCredentials",
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
