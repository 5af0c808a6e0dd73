"""The matrix of rights: for each API one or more requests, the rights that each needs, and the
error without them.

A test fails for an API of the handler table that has no row here. `tests/compat/twin/test_acls.py`
sends the same rows to Apache Kafka.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.handlers import HANDLERS
from fencepost.wire.apis import API, ApiKey
from tests.broker.requests import batch_of

TOPIC, GROUP, CLUSTER, ID = "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"
NO_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_ID: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
DENIALS: Final = {int(each) for each in (NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_ID)}

Right = tuple[str, str, str]
"""An operation, a type of resource and a name."""


@dataclass(frozen=True)
class World:
    """The names that the requests are about, and what a broker has given to them."""

    topic: str = "orders"
    group: str = "readers"
    transactional_id: str = "writer"
    new: str = "unborn"
    producer_id: int = 0
    producer_epoch: int = 0
    topic_id: bytes = bytes(16)


@dataclass(frozen=True)
class Row:
    """One request, and the sets of rights of which each is enough."""

    api: ApiKey
    version: int
    body: Callable[[World], Mapping[str, Any]]
    enough: tuple[Mapping[Right, ErrorCode], ...] = ()
    """Each right with the error if it alone is missing; NONE if what it is about is left out."""
    note: str = ""
    hidden: Callable[[World], str] | None = field(default=None)
    """A name that is in the reply with the rights, and left out without."""

    def __str__(self) -> str:
        return f"{self.api.name}{f'-{self.note}' if self.note else ''}"

    def request(self, world: World) -> Any:
        return build(API[self.api].request, self.body(world))


def build(form: Any, body: Mapping[str, Any]) -> Any:
    """A message from nested dicts and lists."""
    module = sys.modules[form.__module__]
    values = {}
    for name, value in body.items():
        kind = str(form.__annotations__[name]).removeprefix("list[").split("]")[0].split(" |")[0]
        inner = getattr(module, kind, None)
        if isinstance(value, Mapping):
            value = build(inner, value)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            value = [build(inner, each) for each in value]
        values[name] = value
    return form(**values)


def fields_of(form: Any) -> Iterator[tuple[str, Any]]:
    """Every field of a message and of what is in it."""
    for name in getattr(type(form), "__annotations__", ()):
        value = getattr(form, name)
        yield name, value
        for each in value if isinstance(value, list) else [value]:
            if hasattr(type(each), "__annotations__"):
                yield from fields_of(each)


def errors_in(reply: Any) -> set[int]:
    """The error codes anywhere in a reply."""
    return {value for name, value in fields_of(reply) if name.endswith("error_code") and value}


def texts_in(reply: Any) -> set[str]:
    """The texts anywhere in a reply."""
    found = set()
    for _, value in fields_of(reply):
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                found.add(each)
    return found


WORLD: Final = World()


def on_topic(operation: str, error: ErrorCode = NO_TOPIC) -> dict[Right, ErrorCode]:
    return {(operation, TOPIC, WORLD.topic): error}


def on_new(operation: str) -> dict[Right, ErrorCode]:
    return {(operation, TOPIC, WORLD.new): NO_TOPIC}


def on_group(operation: str, error: ErrorCode = NO_GROUP) -> dict[Right, ErrorCode]:
    return {(operation, GROUP, WORLD.group): error}


def on_id(operation: str, error: ErrorCode = NO_ID) -> dict[Right, ErrorCode]:
    return {(operation, ID, WORLD.transactional_id): error}


def on_cluster(operation: str, error: ErrorCode = NO_CLUSTER) -> dict[Right, ErrorCode]:
    return {(operation, CLUSTER, "kafka-cluster"): error}


def _by_id(w: World, **more: Any) -> dict[str, Any]:
    return {"topic_id": w.topic_id, **more}


def _produce(w: World, transactional_id: str | None = None) -> dict[str, Any]:
    batch = (
        batch_of(b"v")
        if transactional_id is None
        else batch_of(
            b"v",
            producer_id=w.producer_id,
            epoch=w.producer_epoch,
            sequence=0,
            transactional=True,
        )
    )
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout_ms": 1000,
        "topic_data": [{"name": w.topic, "partition_data": [{"index": 0, "records": batch}]}],
    }


def _fetch(w: World, replica_id: int = -1) -> dict[str, Any]:
    asked = {"partition": 0, "current_leader_epoch": -1, "partition_max_bytes": 1000}
    return {
        "replica_id": replica_id,
        "max_wait_ms": 0,
        "max_bytes": 1000,
        "session_epoch": -1,
        "topics": [{"topic": w.topic, "partitions": [asked]}],
    }


def _produce_by_id(w: World) -> dict[str, Any]:
    (topic,) = _produce(w)["topic_data"]
    return {**_produce(w), "topic_data": [_by_id(w, partition_data=topic["partition_data"])]}


def _fetch_by_id(w: World, replica_id: int = -1) -> dict[str, Any]:
    (topic,) = _fetch(w)["topics"]
    return {
        **_fetch(w),
        "replica_state": {"replica_id": replica_id, "replica_epoch": -1},
        "topics": [_by_id(w, partitions=topic["partitions"])],
    }


def _metadata(*names: str, create: bool = False) -> dict[str, Any]:
    return {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": create}


def _commit(w: World) -> list[dict[str, Any]]:
    return [{"name": w.topic, "partitions": [{"partition_index": 0, "committed_offset": 0}]}]


def _acl_filter(w: World) -> dict[str, Any]:
    return {
        "resource_type_filter": 2,
        "resource_name_filter": f"{w.topic}-nobody",
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }


def _acl(w: World) -> dict[str, Any]:
    return {
        "resource_type": 2,
        "resource_name": f"{w.topic}-nobody",
        "principal": "User:nobody",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }


def _config(kind: int, name: str, **more: Any) -> dict[str, Any]:
    return {"resources": [{"resource_type": kind, "resource_name": name, **more}]}


def _incremental(kind: int, name: str, setting: str) -> dict[str, Any]:
    change = {"name": setting, "config_operation": 1, "value": None}
    return {**_config(kind, name, configs=[change]), "validate_only": True}


def _partitions(w: World) -> list[dict[str, Any]]:
    return [{"name": w.topic, "partitions": [0]}]


K = ApiKey
_ROWS: Final = (
    Row(K.PRODUCE, 11, _produce, (on_topic("WRITE"),)),
    Row(
        K.PRODUCE,
        11,
        lambda w: _produce(w, w.transactional_id),
        (on_id("WRITE") | on_topic("WRITE"),),
        "transactional",
    ),
    Row(K.PRODUCE, 13, _produce_by_id, (on_topic("WRITE"),), "by-id"),
    Row(K.FETCH, 12, _fetch, (on_topic("READ"),)),
    Row(K.FETCH, 17, _fetch_by_id, (on_topic("READ"),), "by-id"),
    Row(
        K.FETCH,
        17,
        lambda w: _fetch_by_id(w, 7),
        (on_cluster("CLUSTER_ACTION", NO_TOPIC),),
        "replica-by-id",
    ),
    Row(K.FETCH, 12, lambda w: _fetch(w, 7), (on_cluster("CLUSTER_ACTION", NO_TOPIC),), "replica"),
    Row(
        K.LIST_OFFSETS,
        7,
        lambda w: {
            "replica_id": -1,
            "topics": [
                {
                    "name": w.topic,
                    "partitions": [
                        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
                    ],
                }
            ],
        },
        (on_topic("DESCRIBE"),),
    ),
    Row(K.METADATA, 9, lambda w: _metadata(w.topic), (on_topic("DESCRIBE"),), "named"),
    Row(
        K.METADATA,
        12,
        lambda w: {"topics": [_by_id(w, name=None)]},
        (on_topic("DESCRIBE"),),
        "by-id",
    ),
    Row(
        K.METADATA,
        9,
        lambda w: {"topics": None},
        (on_topic("DESCRIBE", ErrorCode.NONE),),
        "all",
        lambda w: w.topic,
    ),
    Row(
        K.METADATA,
        9,
        lambda w: _metadata(w.new, create=True),
        (
            on_new("CREATE") | on_new("DESCRIBE"),
            on_cluster("CREATE", NO_TOPIC) | on_new("DESCRIBE"),
        ),
        "creating",
    ),
    Row(
        K.OFFSET_COMMIT,
        8,
        lambda w: {
            "group_id": w.group,
            "generation_id_or_member_epoch": -1,
            "topics": _commit(w),
        },
        (on_group("READ") | on_topic("READ"),),
    ),
    Row(
        K.OFFSET_COMMIT,
        10,
        lambda w: {
            "group_id": w.group,
            "generation_id_or_member_epoch": -1,
            "topics": [_by_id(w, partitions=_commit(w)[0]["partitions"])],
        },
        (on_group("READ") | on_topic("READ"),),
        "by-id",
    ),
    Row(
        K.OFFSET_FETCH,
        10,
        lambda w: {"groups": [{"group_id": w.group, "topics": [_by_id(w, partition_indexes=[0])]}]},
        (on_group("DESCRIBE") | on_topic("DESCRIBE"),),
        "by-id",
    ),
    Row(
        K.OFFSET_FETCH,
        8,
        lambda w: {
            "groups": [
                {
                    "group_id": w.group,
                    "topics": [{"name": w.topic, "partition_indexes": [0]}],
                }
            ]
        },
        (on_group("DESCRIBE") | on_topic("DESCRIBE"),),
        "named",
    ),
    Row(
        K.OFFSET_FETCH,
        8,
        lambda w: {"groups": [{"group_id": w.group, "topics": None}]},
        (on_group("DESCRIBE") | on_topic("DESCRIBE", ErrorCode.NONE),),
        "all",
        lambda w: w.topic,
    ),
    Row(
        K.FIND_COORDINATOR,
        4,
        lambda w: {"key_type": 0, "coordinator_keys": [w.group]},
        (on_group("DESCRIBE"),),
        "group",
    ),
    Row(
        K.FIND_COORDINATOR,
        4,
        lambda w: {"key_type": 1, "coordinator_keys": [w.transactional_id]},
        (on_id("DESCRIBE"),),
        "transaction",
    ),
    Row(
        K.FIND_COORDINATOR,
        6,
        lambda w: {"key_type": 2, "coordinator_keys": [f"{w.group}:AAAAAAAAAAAAAAAAAAAAAQ:0"]},
        (on_cluster("CLUSTER_ACTION"),),
        "share",
    ),
    Row(
        K.JOIN_GROUP,
        5,
        lambda w: {
            "group_id": w.group,
            "session_timeout_ms": 6000,
            "rebalance_timeout_ms": 6000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
        (on_group("READ"),),
    ),
    Row(K.HEARTBEAT, 3, lambda w: {"group_id": w.group, "member_id": "m"}, (on_group("READ"),)),
    Row(
        K.LEAVE_GROUP,
        3,
        lambda w: {"group_id": w.group, "members": [{"member_id": "m"}]},
        (on_group("READ"),),
    ),
    Row(K.SYNC_GROUP, 3, lambda w: {"group_id": w.group, "member_id": "m"}, (on_group("READ"),)),
    Row(K.DESCRIBE_GROUPS, 5, lambda w: {"groups": [w.group]}, (on_group("DESCRIBE"),)),
    Row(
        K.LIST_GROUPS,
        4,
        lambda w: {},
        (on_group("DESCRIBE", ErrorCode.NONE), on_cluster("DESCRIBE", ErrorCode.NONE)),
        "",
        lambda w: w.group,
    ),
    Row(
        K.API_VERSIONS,
        3,
        lambda w: {"client_software_name": "raw", "client_software_version": "1.0"},
    ),
    Row(
        K.CREATE_TOPICS,
        7,
        lambda w: {
            "topics": [{"name": w.new, "num_partitions": 1, "replication_factor": 1}],
            "timeout_ms": 10_000,
            "validate_only": True,
        },
        (
            on_new("CREATE") | {("DESCRIBE_CONFIGS", TOPIC, WORLD.new): NO_TOPIC},
            on_cluster("CREATE", NO_TOPIC) | {("DESCRIBE_CONFIGS", TOPIC, WORLD.new): NO_TOPIC},
        ),
    ),
    Row(
        K.DELETE_RECORDS,
        2,
        lambda w: {
            "topics": [{"name": w.topic, "partitions": [{"partition_index": 0, "offset": 0}]}],
            "timeout_ms": 10_000,
        },
        (on_topic("DELETE"),),
    ),
    Row(
        K.INIT_PRODUCER_ID,
        4,
        lambda w: {"transactional_id": None, "transaction_timeout_ms": 60_000},
        (
            on_cluster("IDEMPOTENT_WRITE"),
            {("WRITE", TOPIC, "some-other-topic"): NO_CLUSTER},
        ),
        "idempotent",
    ),
    Row(
        K.INIT_PRODUCER_ID,
        4,
        lambda w: {
            "transactional_id": f"{w.transactional_id}-2",
            "transaction_timeout_ms": 60_000,
        },
        ({("WRITE", ID, f"{WORLD.transactional_id}-2"): NO_ID},),
        "transactional",
    ),
    Row(
        K.OFFSET_FOR_LEADER_EPOCH,
        4,
        lambda w: {
            "replica_id": -2,
            "topics": [
                {
                    "topic": w.topic,
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
                }
            ],
        },
        (on_topic("DESCRIBE"), on_cluster("CLUSTER_ACTION", NO_TOPIC)),
    ),
    Row(
        K.ADD_PARTITIONS_TO_TXN,
        3,
        lambda w: {
            "v3_and_below_transactional_id": w.transactional_id,
            "v3_and_below_producer_id": w.producer_id,
            "v3_and_below_producer_epoch": w.producer_epoch,
            "v3_and_below_topics": _partitions(w),
        },
        (on_id("WRITE") | on_topic("WRITE"),),
        "client",
    ),
    Row(
        K.ADD_PARTITIONS_TO_TXN,
        4,
        lambda w: {
            "transactions": [
                {
                    "transactional_id": w.transactional_id,
                    "producer_id": w.producer_id,
                    "producer_epoch": w.producer_epoch,
                    "verify_only": True,
                    "topics": _partitions(w),
                }
            ]
        },
        (on_cluster("CLUSTER_ACTION"),),
        "broker",
    ),
    Row(
        K.ADD_OFFSETS_TO_TXN,
        3,
        lambda w: {
            "transactional_id": w.transactional_id,
            "producer_id": w.producer_id,
            "producer_epoch": w.producer_epoch,
            "group_id": w.group,
        },
        (on_id("WRITE") | on_group("READ"),),
    ),
    Row(
        K.TXN_OFFSET_COMMIT,
        3,
        lambda w: {
            "transactional_id": w.transactional_id,
            "group_id": w.group,
            "producer_id": w.producer_id,
            "producer_epoch": w.producer_epoch,
            "topics": _commit(w),
        },
        (on_id("WRITE") | on_group("READ") | on_topic("READ"),),
    ),
    Row(
        K.END_TXN,
        3,
        lambda w: {
            "transactional_id": w.transactional_id,
            "producer_id": w.producer_id,
            "producer_epoch": w.producer_epoch,
            "committed": True,
        },
        (on_id("WRITE"),),
    ),
    Row(
        K.DESCRIBE_ACLS,
        2,
        _acl_filter,
        (on_cluster("DESCRIBE"),),
    ),
    Row(K.CREATE_ACLS, 2, lambda w: {"creations": [_acl(w)]}, (on_cluster("ALTER"),)),
    Row(K.DELETE_ACLS, 2, lambda w: {"filters": [_acl_filter(w)]}, (on_cluster("ALTER"),)),
    Row(
        K.DESCRIBE_CONFIGS,
        4,
        lambda w: _config(2, w.topic),
        (on_topic("DESCRIBE_CONFIGS"),),
        "topic",
    ),
    Row(
        K.DESCRIBE_CONFIGS,
        4,
        lambda w: _config(4, "1"),
        (on_cluster("DESCRIBE_CONFIGS"),),
        "broker",
    ),
    Row(
        K.DESCRIBE_CONFIGS,
        4,
        lambda w: _config(32, w.group),
        (on_group("DESCRIBE_CONFIGS"),),
        "group",
    ),
    Row(
        K.DESCRIBE_CONFIGS,
        4,
        lambda w: _config(16, "metrics"),
        (on_cluster("DESCRIBE_CONFIGS"),),
        "metrics",
    ),
    Row(
        K.DESCRIBE_CONFIGS,
        4,
        lambda w: _config(8, "1"),
        (on_cluster("DESCRIBE_CONFIGS"),),
        "logger",
    ),
    Row(
        K.ALTER_CONFIGS,
        2,
        lambda w: {
            **_config(2, w.topic, configs=[{"name": "retention.ms", "value": "1"}]),
            "validate_only": True,
        },
        (on_topic("ALTER_CONFIGS"),),
    ),
    Row(
        K.INCREMENTAL_ALTER_CONFIGS,
        1,
        lambda w: _incremental(2, w.topic, "retention.ms"),
        (on_topic("ALTER_CONFIGS"),),
        "topic",
    ),
    Row(
        K.INCREMENTAL_ALTER_CONFIGS,
        1,
        lambda w: _incremental(4, "1", "message.max.bytes"),
        (on_cluster("ALTER_CONFIGS"),),
        "broker",
    ),
    Row(
        K.INCREMENTAL_ALTER_CONFIGS,
        1,
        lambda w: _incremental(32, w.group, "consumer.session.timeout.ms"),
        (on_group("ALTER_CONFIGS"),),
        "group",
    ),
    Row(K.DESCRIBE_LOG_DIRS, 4, lambda w: {"topics": None}, (on_cluster("DESCRIBE"),)),
    Row(
        K.CREATE_PARTITIONS,
        3,
        lambda w: {
            "topics": [{"name": w.topic, "count": 9, "assignments": None}],
            "timeout_ms": 10_000,
            "validate_only": True,
        },
        (on_topic("ALTER"),),
    ),
    Row(
        K.ELECT_LEADERS,
        2,
        lambda w: {
            "topic_partitions": [{"topic": w.topic, "partitions": [0]}],
            "timeout_ms": 10_000,
        },
        (on_cluster("ALTER"),),
    ),
    Row(
        K.ALTER_PARTITION_REASSIGNMENTS,
        0,
        lambda w: {
            "timeout_ms": 10_000,
            "topics": [{"name": w.topic, "partitions": [{"partition_index": 0, "replicas": None}]}],
        },
        (on_cluster("ALTER"),),
    ),
    Row(
        K.LIST_PARTITION_REASSIGNMENTS,
        0,
        lambda w: {"timeout_ms": 10_000, "topics": None},
        (on_cluster("DESCRIBE"),),
    ),
    Row(
        K.OFFSET_DELETE,
        0,
        lambda w: {
            "group_id": w.group,
            "topics": [{"name": w.topic, "partitions": [{"partition_index": 0}]}],
        },
        (on_group("DELETE") | on_topic("READ"),),
    ),
    Row(
        K.DESCRIBE_CLIENT_QUOTAS,
        1,
        lambda w: {"components": [], "strict": False},
        (on_cluster("DESCRIBE_CONFIGS"),),
    ),
    Row(
        K.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        lambda w: {"users": []},
        (on_cluster("DESCRIBE"),),
    ),
    Row(
        K.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        lambda w: {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []},
        (on_cluster("ALTER"),),
    ),
    # Before a login there is no principal to ask about; on this listener both are out of place.
    Row(K.SASL_HANDSHAKE, 1, lambda w: {"mechanism": "PLAIN"}, note="no-login-here"),
    Row(K.SASL_AUTHENTICATE, 2, lambda w: {"auth_bytes": b""}, note="no-login-here"),
    Row(
        K.DESCRIBE_QUORUM,
        1,
        lambda w: {
            "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        },
        (on_cluster("DESCRIBE"),),
    ),
    Row(K.DESCRIBE_CLUSTER, 1, lambda w: {"endpoint_type": 1}),
    Row(
        K.DESCRIBE_PRODUCERS,
        0,
        lambda w: {"topics": [{"name": w.topic, "partition_indexes": [0]}]},
        (on_topic("READ"),),
    ),
    Row(
        K.DESCRIBE_TRANSACTIONS,
        0,
        lambda w: {"transactional_ids": [w.transactional_id]},
        (on_id("DESCRIBE") | on_topic("DESCRIBE", ErrorCode.NONE),),
        "",
        lambda w: w.topic,
    ),
    Row(
        K.LIST_TRANSACTIONS,
        1,
        lambda w: {},
        (on_id("DESCRIBE", ErrorCode.NONE),),
        "",
        lambda w: w.transactional_id,
    ),
    Row(
        K.CONSUMER_GROUP_HEARTBEAT,
        0,
        lambda w: {"group_id": w.group, "member_id": "m"},
        note="switched-off",
    ),
    Row(
        K.SHARE_GROUP_HEARTBEAT,
        1,
        lambda w: {"group_id": w.group, "member_id": "m"},
        note="switched-off",
    ),
    Row(
        K.LIST_CONFIG_RESOURCES,
        1,
        lambda w: {"resource_types": []},
        (on_cluster("DESCRIBE_CONFIGS"),),
    ),
    Row(
        K.DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda w: {"topics": [{"name": w.topic}], "response_partition_limit": 10},
        (on_topic("DESCRIBE"),),
        "named",
    ),
    Row(
        K.DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda w: {"topics": [], "response_partition_limit": 10},
        (on_topic("DESCRIBE", ErrorCode.NONE),),
        "all",
        lambda w: w.topic,
    ),
    # Those that destroy what others need come last: a comparison with Kafka sends them in order.
    Row(
        K.WRITE_TXN_MARKERS,
        1,
        lambda w: {
            "markers": [
                {
                    "producer_id": w.producer_id,
                    "producer_epoch": w.producer_epoch,
                    "topics": [{"name": w.topic, "partition_indexes": [0]}],
                }
            ]
        },
        (on_cluster("ALTER"), on_cluster("CLUSTER_ACTION")),
    ),
    Row(
        K.DELETE_GROUPS,
        2,
        lambda w: {"groups_names": [w.group]},
        (on_group("DELETE"),),
    ),
    Row(
        K.DELETE_TOPICS,
        5,
        lambda w: {"topic_names": [w.topic], "timeout_ms": 10_000},
        (on_topic("DELETE"), on_cluster("DELETE", NO_TOPIC)),
    ),
)

ROWS: Final = tuple(row for row in _ROWS if row.api in HANDLERS)
