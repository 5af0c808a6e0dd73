"""Records of `__cluster_metadata`, byte for byte those of Kafka's KRaft.

    key    null
    value  uvarint frame version 1, uvarint record type, uvarint record version, flexible body

    type  record                        meaning
    0     RegisterBrokerRecord          a broker has started, with its addresses
    1     UnregisterBrokerRecord        a broker was removed
    2     TopicRecord                   a topic exists, under this id
    3     PartitionRecord               one of its partitions: copies, leader, epochs
    4     ConfigRecord                  a setting of a resource; a null value removes it
    5     PartitionChangeRecord         a change of a partition; a leader raises its leader epoch
    9     RemoveTopicRecord             a topic, its partitions and its settings were removed
    11    UserScramCredentialRecord     a user may log in with this SCRAM mechanism
    12    FeatureLevelRecord            a feature of the cluster and its level
    15    ProducerIdsRecord             the first producer id that no block has reserved yet
    17    BrokerRegistrationChangeRecord  a broker was fenced (1), is back (-1), or shuts down
    18    AccessControlEntryRecord      an ACL exists, under this id
    19    RemoveAccessControlEntryRecord  an ACL was removed
    20    NoOpRecord                    nothing
    22    RemoveUserScramCredentialRecord  a user's credential was removed

Kafka's DumpLogSegments --cluster-metadata-decoder prints them. A record of another type is refused,
not skipped: an incomplete state is worse than a broker that does not start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fencepost.base.failures import WireError
from fencepost.wire.compile import reader, writer
from fencepost.wire.reading import read_varint
from fencepost.wire.schema import field, message, struct, versions_of

FRAME_VERSION: Final = 1

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
CLIENT_METRICS_RESOURCE: Final = 16
GROUP_RESOURCE: Final = 32
"""Resource types with settings, as in ConfigRecord and the config requests."""

CLUSTER_DEFAULT: Final = ""
"""The resource name for the settings of all brokers."""

NO_LEADER_CHANGE: Final = -2
FENCED: Final = 1
UNFENCED: Final = -1
IN_CONTROLLED_SHUTDOWN: Final = 1


@struct
class BrokerEndpoint:
    """One address of a broker."""

    name: str = field("string")
    host: str = field("string")
    port: int = field("uint16")
    security_protocol: int = field("int16")


@struct
class BrokerFeature:
    """A feature that a broker supports."""

    name: str = field("string")
    min_supported_version: int = field("int16")
    max_supported_version: int = field("int16")


@message(versions="0-3", flexible="0+")
class RegisterBrokerRecord:
    """A broker has started."""

    broker_id: int = field("int32")
    is_migrating_zk_broker: bool = field("bool", versions="2+")
    incarnation_id: bytes = field("uuid")
    broker_epoch: int = field("int64")
    end_points: list[BrokerEndpoint] = field("[]BrokerEndpoint")
    features: list[BrokerFeature] = field("[]BrokerFeature")
    rack: str | None = field("string", nullable="0+", default=None)
    fenced: bool = field("bool", default=True)
    in_controlled_shutdown: bool = field("bool", versions="1+")
    log_dirs: list[bytes] = field("[]uuid", versions="3+", tag=0)


@message(versions="0", flexible="0+")
class UnregisterBrokerRecord:
    """A broker was removed."""

    broker_id: int = field("int32")
    broker_epoch: int = field("int64")


@message(versions="0", flexible="0+")
class TopicRecord:
    """A topic exists."""

    name: str = field("string")
    topic_id: bytes = field("uuid")


@message(versions="0-2", flexible="0+")
class PartitionRecord:
    """A partition exists."""

    partition_id: int = field("int32", default=-1)
    topic_id: bytes = field("uuid")
    replicas: list[int] = field("[]int32")
    isr: list[int] = field("[]int32")
    removing_replicas: list[int] = field("[]int32")
    adding_replicas: list[int] = field("[]int32")
    leader: int = field("int32", default=-1)
    leader_recovery_state: int = field("int8", tag=0, default=0)
    leader_epoch: int = field("int32", default=-1)
    partition_epoch: int = field("int32", default=-1)
    directories: list[bytes] = field("[]uuid", versions="1+")
    eligible_leader_replicas: list[int] | None = field(
        "[]int32", versions="2+", nullable="2+", tag=1, default=None
    )
    last_known_elr: list[int] | None = field(
        "[]int32", versions="2+", nullable="2+", tag=2, default=None
    )


@message(versions="0", flexible="0+")
class ConfigRecord:
    """A setting; a null value removes it."""

    resource_type: int = field("int8")
    resource_name: str = field("string")
    name: str = field("string")
    value: str | None = field("string", nullable="0+")


@message(versions="0-2", flexible="0+")
class PartitionChangeRecord:
    """A change of a partition; absent fields stay."""

    partition_id: int = field("int32", default=-1)
    topic_id: bytes = field("uuid")
    isr: list[int] | None = field("[]int32", nullable="0+", tag=0, default=None)
    leader: int = field("int32", tag=1, default=NO_LEADER_CHANGE)
    replicas: list[int] | None = field("[]int32", nullable="0+", tag=2, default=None)
    removing_replicas: list[int] | None = field("[]int32", nullable="0+", tag=3, default=None)
    adding_replicas: list[int] | None = field("[]int32", nullable="0+", tag=4, default=None)
    leader_recovery_state: int = field("int8", tag=5, default=-1)
    eligible_leader_replicas: list[int] | None = field(
        "[]int32", versions="2+", nullable="2+", tag=6, default=None
    )
    last_known_elr: list[int] | None = field(
        "[]int32", versions="2+", nullable="2+", tag=7, default=None
    )
    directories: list[bytes] | None = field(
        "[]uuid", versions="1+", nullable="1+", tag=8, default=None
    )


@message(versions="0", flexible="0+")
class RemoveTopicRecord:
    """A topic was removed."""

    topic_id: bytes = field("uuid")


@message(versions="0", flexible="0+")
class FeatureLevelRecord:
    """A feature of the cluster, and its level; 0 turns it off."""

    name: str = field("string")
    feature_level: int = field("int16")


@message(versions="0", flexible="0+")
class ProducerIdsRecord:
    """A broker has reserved the producer ids below this one."""

    broker_id: int = field("int32")
    broker_epoch: int = field("int64", default=-1)
    next_producer_id: int = field("int64")


@message(versions="0-2", flexible="0+")
class BrokerRegistrationChangeRecord:
    """A broker was fenced or unfenced, or has begun a controlled shutdown."""

    broker_id: int = field("int32")
    broker_epoch: int = field("int64")
    fenced: int = field("int8", tag=0, default=0)
    in_controlled_shutdown: int = field("int8", versions="1+", tag=1, default=0)
    log_dirs: list[bytes] = field("[]uuid", versions="2+", tag=2)


@message(versions="0", flexible="0+")
class AccessControlEntryRecord:
    """An ACL exists; the numbers are those of CreateAcls (`coordinator.acl`)."""

    id: bytes = field("uuid")
    resource_type: int = field("int8")
    resource_name: str = field("string")
    pattern_type: int = field("int8")
    principal: str = field("string")
    host: str = field("string")
    operation: int = field("int8")
    permission_type: int = field("int8")


@message(versions="0", flexible="0+")
class RemoveAccessControlEntryRecord:
    """An ACL was removed."""

    id: bytes = field("uuid")


@message(versions="0", flexible="0+")
class NoOpRecord:
    """Nothing; Kafka's controller writes it as a sign of life."""


@message(versions="0", flexible="0+")
class UserScramCredentialRecord:
    """What the cluster knows of a user's password, for one mechanism."""

    name: str = field("string")
    mechanism: int = field("int8")
    salt: bytes = field("bytes")
    stored_key: bytes = field("bytes")
    server_key: bytes = field("bytes")
    iterations: int = field("int32")


@message(versions="0", flexible="0+")
class RemoveUserScramCredentialRecord:
    """A user's credential for one mechanism was removed."""

    name: str = field("string")
    mechanism: int = field("int8")


MetadataRecord = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | NoOpRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
)

_WRITTEN: Final[dict[type[MetadataRecord], tuple[int, int]]] = {
    RegisterBrokerRecord: (0, 3),
    UnregisterBrokerRecord: (1, 0),
    TopicRecord: (2, 0),
    PartitionRecord: (3, 1),
    ConfigRecord: (4, 0),
    PartitionChangeRecord: (5, 0),
    RemoveTopicRecord: (9, 0),
    FeatureLevelRecord: (12, 0),
    ProducerIdsRecord: (15, 0),
    BrokerRegistrationChangeRecord: (17, 0),
    AccessControlEntryRecord: (18, 0),
    RemoveAccessControlEntryRecord: (19, 0),
    NoOpRecord: (20, 0),
    UserScramCredentialRecord: (11, 0),
    RemoveUserScramCredentialRecord: (22, 0),
}
"""The type and the version of each record when it is written."""

_SHUTDOWN_VERSION: Final = 1
"""The version of a BrokerRegistrationChangeRecord for a controlled shutdown, as Kafka writes it."""

_BY_TYPE: Final[dict[int, type[MetadataRecord]]] = {
    record_type: form for form, (record_type, _) in _WRITTEN.items()
}


def encode_record(record: MetadataRecord) -> bytes:
    """The value of a record of the log."""
    form = type(record)
    record_type, version = _WRITTEN[form]
    if isinstance(record, BrokerRegistrationChangeRecord) and record.in_controlled_shutdown:
        version = _SHUTDOWN_VERSION
    # All three numbers are below 128, where an unsigned varint is one byte.
    data = bytearray((FRAME_VERSION, record_type, version))
    return bytes(writer(form, version)(record, data, None))


_readers: Final[dict[bytes, Callable[[bytes, int], tuple[MetadataRecord, int]]]] = {}
"""Readers by the three bytes in front of a record, which nearly always are one each. A takeover
decodes a record for every partition in one turn of the loop."""


def decode_record(data: bytes) -> MetadataRecord:
    """The record in a value; WireError for other bytes or an unknown type."""
    read = _readers.get(data[:3])
    if read is not None:
        return read(data, 3)[0]
    try:
        frame_version, position = read_varint(data, 0)
        if frame_version != FRAME_VERSION:
            raise WireError(f"a metadata record has frame version {frame_version}")
        record_type, position = read_varint(data, position)
        version, position = read_varint(data, position)
    except IndexError:
        raise WireError("a metadata record ends within its frame") from None
    form = _BY_TYPE.get(record_type)
    if form is None or version not in versions_of(form):
        raise WireError(f"a metadata record of type {record_type} and version {version} is unknown")
    read = reader(form, version)
    if position == 3:
        _readers[data[:3]] = read
    return read(data, position)[0]
