"""Which Kafka Improvement Proposals this broker implements: docs/reference/kips.md is made from it.

Each row names what shows its answer: versions of APIs, settings, metrics. `problems` compares that
with the tables of the broker, so a row cannot stay when the broker no longer does what it says. A
row that says "no" names the APIs that are missing, and becomes a problem when one is served.

`since` is the Kafka release that brought it: the one whose message schemas, settings or release
announcement have it first. A KIP whose release could not be verified is not listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from fencepost.wire.apis import ApiKey

ROOT: Final = Path(__file__).resolve().parent.parent

YES: Final = "yes"
PART: Final = "part"
NO: Final = "no"
NOT_APPLICABLE: Final = "n/a"
"""It concerns clients, or something that a broker with one copy does not have."""

A: Final = ApiKey

Served = tuple[tuple[ApiKey, int], ...]


class Kip(NamedTuple):
    """One proposal."""

    number: int
    about: str
    since: str
    answer: str
    remark: str = ""
    served: Served = ()
    """Versions of APIs that show it."""
    missing: tuple[str, ...] = ()
    """APIs that would show it, by kio's names."""
    settings: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    test: str = ""
    """A test that shows what no table does."""


_REFUSED: Final = "refused with an error that clients show"
_NO_TOKENS: Final = "SCRAM refuses a delegation token"
_NO_QUOTAS: Final = "clients are not throttled"
_CLIENT_ONLY: Final = "in the client"

PRODUCERS: Final = (
    Kip(
        32,
        "timestamps in records",
        "0.10.0",
        YES,
        "CreateTime and LogAppendTime",
        settings=("message.timestamp.type",),
    ),
    Kip(57, "interoperable LZ4 frames", "0.10.0", YES, test="tests/records/test_compression.py"),
    Kip(82, "record headers", "0.11.0", YES, served=((A.PRODUCE, 3), (A.FETCH, 4))),
    Kip(
        98,
        "idempotent producers, transactions",
        "0.11.0",
        YES,
        served=((A.INIT_PRODUCER_ID, 0), (A.ADD_PARTITIONS_TO_TXN, 0), (A.END_TXN, 0)),
    ),
    Kip(110, "zstd", "2.1", YES, served=((A.PRODUCE, 7), (A.FETCH, 10))),
    Kip(185, "idempotence by default", "3.0", NOT_APPLICABLE, "in the client, by KIP-679"),
    Kip(
        192,
        "cleaner semantics of idempotence",
        "1.0",
        YES,
        "Produce returns the log start offset",
        served=((A.PRODUCE, 5),),
    ),
    Kip(
        360,
        "a producer recovers from an unknown id",
        "2.5",
        YES,
        served=((A.INIT_PRODUCER_ID, 3),),
    ),
    Kip(
        390,
        "compression levels",
        "3.8",
        PART,
        "settings are checked and shown; each codec has one level",
        settings=("compression.gzip.level",),
    ),
    Kip(
        447,
        "one producer per instance, not per partition",
        "2.5",
        YES,
        served=((A.TXN_OFFSET_COMMIT, 3), (A.OFFSET_FETCH, 7)),
    ),
    Kip(467, "errors per record in Produce", "2.4", YES, served=((A.PRODUCE, 8),)),
    Kip(480, "sticky partitioner", "2.4", NOT_APPLICABLE, _CLIENT_ONLY),
    Kip(
        484,
        "how long coordinators load",
        "2.4",
        YES,
        "as a metric for Prometheus",
        metrics=("fencepost_coordinator_load_seconds_max",),
    ),
    Kip(526, "fewer metadata requests of producers", "2.5", NOT_APPLICABLE, _CLIENT_ONLY),
    Kip(
        588,
        "PRODUCER_FENCED beside INVALID_PRODUCER_EPOCH",
        "2.7",
        YES,
        served=((A.INIT_PRODUCER_ID, 4), (A.END_TXN, 2)),
    ),
    Kip(
        618,
        "fence producers as an administrator",
        "3.2",
        YES,
        "the rest concerns Kafka Connect",
        served=((A.INIT_PRODUCER_ID, 3),),
    ),
    Kip(654, "abort with unsent records", "2.7", NOT_APPLICABLE, _CLIENT_ONLY),
    Kip(
        664,
        "find and abort hanging transactions",
        "3.0",
        YES,
        "the metric came with 3.2",
        served=(
            (A.DESCRIBE_PRODUCERS, 0),
            (A.DESCRIBE_TRANSACTIONS, 0),
            (A.LIST_TRANSACTIONS, 0),
        ),
        metrics=("fencepost_partitions_with_late_transactions",),
    ),
    Kip(
        679,
        "idempotence and acks=all by default",
        "3.0",
        YES,
        "the defaults are the client's; a producer id needs WRITE on any topic",
        served=((A.INIT_PRODUCER_ID, 0),),
    ),
    Kip(724, "message formats v0 and v1 removed", "4.0", YES, served=((A.PRODUCE, 3),)),
    Kip(732, "Kafka Streams' exactly_once_v2", "3.0", NOT_APPLICABLE, "in Kafka Streams"),
    Kip(794, "uniform sticky partitioner", "3.3", NOT_APPLICABLE, _CLIENT_ONLY),
    Kip(
        847,
        "number of producer ids",
        "3.5",
        YES,
        "as a metric for Prometheus",
        metrics=("fencepost_producer_ids",),
    ),
    Kip(
        854,
        "expiry of producer ids, a setting of its own",
        "3.4",
        YES,
        settings=("producer.id.expiration.ms",),
    ),
    Kip(
        890,
        "transactions: verification, and TV2",
        "3.6, 4.0",
        YES,
        "both protocols; transaction.version 2 is finalised",
        served=(
            (A.PRODUCE, 12),
            (A.ADD_PARTITIONS_TO_TXN, 5),
            (A.END_TXN, 5),
            (A.TXN_OFFSET_COMMIT, 5),
        ),
        settings=("transaction.partition.verification.enable",),
    ),
    Kip(
        937,
        "limits for timestamps, before and after",
        "3.6",
        YES,
        settings=("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"),
    ),
    Kip(
        939,
        "two-phase commit with other systems",
        "not released",
        NO,
        "InitProducerId v6 is unstable in Kafka 4.4",
    ),
    Kip(
        951,
        "the new leader in Produce and Fetch replies",
        "3.7",
        YES,
        served=((A.PRODUCE, 10), (A.FETCH, 16)),
    ),
    Kip(
        994,
        "list transactions by duration",
        "3.8",
        YES,
        served=((A.LIST_TRANSACTIONS, 1),),
    ),
    Kip(
        1037,
        "WriteTxnMarkers with ALTER on the cluster",
        "3.8",
        YES,
        served=((A.WRITE_TXN_MARKERS, 1),),
    ),
    Kip(1050, "consistent errors of transactions", "4.1", NOT_APPLICABLE, _CLIENT_ONLY),
    Kip(
        1152,
        "list transactions by pattern",
        "4.1",
        YES,
        "with the extra `re2`",
        served=((A.LIST_TRANSACTIONS, 2),),
    ),
    Kip(
        1228,
        "transaction version in WriteTxnMarkers",
        "4.2",
        YES,
        served=((A.WRITE_TXN_MARKERS, 2),),
    ),
    Kip(
        1319,
        "topic ids for offsets in transactions",
        "4.4",
        YES,
        served=((A.TXN_OFFSET_COMMIT, 6),),
    ),
)

READING: Final = (
    Kip(
        33,
        "time index",
        "0.10.1",
        YES,
        served=((A.LIST_OFFSETS, 1),),
        test="tests/records/test_index.py",
    ),
    Kip(74, "a limit for the whole Fetch reply", "0.10.1", YES, served=((A.FETCH, 4),)),
    Kip(79, "offsets by timestamp", "0.10.1", YES, served=((A.LIST_OFFSETS, 1),)),
    Kip(
        101,
        "leader epochs in the log",
        "0.11.0",
        PART,
        "kept and served; nothing is replicated",
        served=((A.OFFSET_FOR_LEADER_EPOCH, 2),),
    ),
    Kip(
        207,
        "offsets never go back when the leader changes",
        "2.2",
        NOT_APPLICABLE,
        "one copy: a new leader has the same high watermark",
    ),
    Kip(
        227,
        "fetch sessions",
        "1.1",
        NO,
        "declined with session id 0; clients name all partitions",
    ),
    Kip(
        279,
        "leader epochs after fast failovers",
        "2.0",
        PART,
        "the reply has the epoch; nothing is replicated",
        served=((A.OFFSET_FOR_LEADER_EPOCH, 2),),
    ),
    Kip(
        320,
        "consumers detect truncation",
        "2.1",
        YES,
        served=((A.FETCH, 9), (A.LIST_OFFSETS, 4), (A.OFFSET_FOR_LEADER_EPOCH, 3)),
    ),
    Kip(
        354,
        "a largest lag of compaction",
        "2.3",
        YES,
        settings=("max.compaction.lag.ms",),
    ),
    Kip(
        392,
        "fetch from the closest replica",
        "2.4",
        NOT_APPLICABLE,
        "there are no followers to read from; the rack in Fetch v11 is ignored",
        served=((A.FETCH, 11),),
    ),
    Kip(
        405,
        "tiered storage",
        "3.6, 3.9",
        NO,
        "all storage is local; ListOffsets answers for it",
        served=((A.LIST_OFFSETS, 8),),
    ),
    Kip(517, "metrics of poll()", "2.4", NOT_APPLICABLE, _CLIENT_ONLY),
    Kip(534, "tombstones are kept long enough", "3.1", YES, test="tests/log/test_compaction.py"),
    Kip(541, "fetch.max.bytes of the broker", "2.5", YES, settings=("fetch.max.bytes",)),
    Kip(
        734,
        "offset of the highest timestamp",
        "3.0",
        YES,
        served=((A.LIST_OFFSETS, 7),),
    ),
    Kip(
        903,
        "replica state in Fetch",
        "3.5",
        NOT_APPLICABLE,
        "there are no followers",
        served=((A.FETCH, 15),),
    ),
    Kip(
        1005,
        "latest tiered offset",
        "3.9",
        PART,
        "there is none",
        served=((A.LIST_OFFSETS, 9),),
    ),
    Kip(
        1023,
        "earliest pending upload offset",
        "4.3",
        PART,
        "there is none",
        served=((A.LIST_OFFSETS, 11),),
    ),
    Kip(
        1075,
        "timeout of remote ListOffsets",
        "4.0",
        PART,
        "accepted; nothing is remote",
        served=((A.LIST_OFFSETS, 10),),
    ),
)

GROUPS: Final = (
    Kip(40, "list and describe groups", "0.9.0", YES, served=((A.DESCRIBE_GROUPS, 0),)),
    Kip(62, "heartbeats in the background", "0.10.1", YES, served=((A.JOIN_GROUP, 1),)),
    Kip(88, "all offsets of a group", "0.10.2", YES, served=((A.OFFSET_FETCH, 2),)),
    Kip(
        134,
        "delay of the first rebalance",
        "0.11.0",
        YES,
        "the default is 0",
        settings=("group.initial.rebalance.delay.ms",),
    ),
    Kip(186, "offsets are kept for 7 days", "2.0", YES, settings=("offsets.retention.minutes",)),
    Kip(
        211,
        "offsets of active groups do not expire",
        "2.1",
        YES,
        settings=("offsets.retention.minutes",),
        served=((A.OFFSET_COMMIT, 5),),
    ),
    Kip(
        345,
        "static members",
        "2.3, 2.4",
        YES,
        served=((A.JOIN_GROUP, 5), (A.LEAVE_GROUP, 3), (A.OFFSET_COMMIT, 7)),
    ),
    Kip(389, "a largest size of groups", "2.2", YES, settings=("group.max.size",)),
    Kip(394, "a member id before the join", "2.2", YES, served=((A.JOIN_GROUP, 4),)),
    Kip(
        429,
        "cooperative rebalancing",
        "2.4",
        NOT_APPLICABLE,
        "in the client; works, tried with Java's CooperativeStickyAssignor",
    ),
    Kip(
        559,
        "protocol name in JoinGroup and SyncGroup",
        "2.5",
        YES,
        served=((A.JOIN_GROUP, 7), (A.SYNC_GROUP, 5)),
    ),
    Kip(699, "find several coordinators at once", "3.0", YES, served=((A.FIND_COORDINATOR, 4),)),
    Kip(709, "offsets of several groups at once", "3.0", YES, served=((A.OFFSET_FETCH, 8),)),
    Kip(735, "session timeout of 45 s", "3.0", NOT_APPLICABLE, _CLIENT_ONLY),
    Kip(
        800,
        "a reason in JoinGroup and LeaveGroup",
        "3.2",
        PART,
        "accepted, not used",
        served=((A.JOIN_GROUP, 8), (A.LEAVE_GROUP, 5)),
    ),
    Kip(
        814,
        "a static leader may skip the assignment",
        "3.2",
        YES,
        served=((A.JOIN_GROUP, 9),),
    ),
    Kip(
        848,
        "the consumer protocol",
        "4.0",
        NO,
        f"{_REFUSED}; versions of shared APIs are served",
        missing=("consumer_group_describe",),
        served=((A.OFFSET_COMMIT, 10), (A.OFFSET_FETCH, 10), (A.LIST_GROUPS, 5)),
    ),
    Kip(
        881, "rack-aware assignment", "3.5", NOT_APPLICABLE, "in the client; Metadata has the racks"
    ),
    Kip(
        915,
        "downgrades of coordinators",
        "3.5",
        YES,
        "records in flexible versions; unknown ones are skipped",
        test="tests/records/test_group_log.py",
    ),
    Kip(
        932,
        "share groups",
        "4.2",
        NO,
        f"{_REFUSED}; early access in 4.0, preview in 4.1",
        missing=("share_fetch", "share_acknowledge", "share_group_describe"),
    ),
    Kip(
        1043,
        "administration of all kinds of groups",
        "4.0",
        YES,
        "there are classic ones only",
        served=((A.DESCRIBE_GROUPS, 6), (A.LIST_GROUPS, 5)),
    ),
    Kip(
        1071,
        "the streams protocol",
        "4.2",
        NO,
        "Kafka Streams uses classic groups; early access in 4.1",
        missing=("streams_group_heartbeat", "streams_group_describe"),
    ),
    Kip(1082, "member ids from clients", "4.0", NO, "belongs to KIP-848"),
    Kip(1092, "close without leaving the group", "4.1", NOT_APPLICABLE, _CLIENT_ONLY),
    Kip(1251, "assignment epochs", "4.3", NO, "belongs to KIP-848"),
    Kip(1263, "batches of assignments", "4.3", NO, "belongs to KIP-848"),
)

ADMIN: Final = (
    Kip(
        4,
        "create and delete topics",
        "0.10.1",
        YES,
        served=((A.CREATE_TOPICS, 2), (A.DELETE_TOPICS, 1)),
    ),
    Kip(78, "cluster id", "0.10.1", YES, served=((A.METADATA, 2),)),
    Kip(
        107,
        "delete records",
        "0.11.0",
        YES,
        served=((A.DELETE_RECORDS, 0), (A.FETCH, 5)),
    ),
    Kip(
        108,
        "validate only, and policies",
        "0.10.2",
        PART,
        "requests can be validated; there are no policy plugins",
        served=((A.CREATE_TOPICS, 2),),
    ),
    Kip(
        113,
        "several log directories",
        "1.1",
        PART,
        "there is one directory: described, not changed",
        served=((A.DESCRIBE_LOG_DIRS, 1),),
        missing=("alter_replica_log_dirs",),
    ),
    Kip(
        133,
        "describe and alter settings",
        "0.11.0",
        YES,
        served=((A.DESCRIBE_CONFIGS, 1), (A.ALTER_CONFIGS, 0)),
    ),
    Kip(195, "create partitions", "1.0", YES, served=((A.CREATE_PARTITIONS, 0),)),
    Kip(
        204,
        "delete records with the admin client",
        "1.1",
        YES,
        served=((A.DELETE_RECORDS, 0),),
    ),
    Kip(
        222,
        "groups with the admin client",
        "2.0",
        YES,
        served=((A.DESCRIBE_GROUPS, 0), (A.LIST_GROUPS, 0)),
    ),
    Kip(
        226,
        "dynamic broker settings",
        "1.1",
        PART,
        "settings change at run time; there are no keystores to reload",
        served=((A.DESCRIBE_CONFIGS, 1), (A.INCREMENTAL_ALTER_CONFIGS, 0)),
    ),
    Kip(229, "delete groups", "1.1", YES, served=((A.DELETE_GROUPS, 0),)),
    Kip(231, "list the groups that one may see", "2.1", YES, served=((A.LIST_GROUPS, 0),)),
    Kip(
        322,
        "an error if topics cannot be deleted",
        "2.1",
        YES,
        served=((A.DELETE_TOPICS, 3),),
        settings=("delete.topic.enable",),
    ),
    Kip(339, "incremental changes", "2.3", YES, served=((A.INCREMENTAL_ALTER_CONFIGS, 0),)),
    Kip(
        361,
        "consumers that create no topics",
        "2.3",
        YES,
        served=((A.METADATA, 4),),
        settings=("auto.create.topics.enable",),
    ),
    Kip(
        396,
        "list and alter the offsets of a group",
        "2.5",
        YES,
        served=((A.OFFSET_COMMIT, 2), (A.OFFSET_FETCH, 2)),
    ),
    Kip(
        412,
        "log levels at run time",
        "2.4",
        YES,
        served=((A.DESCRIBE_CONFIGS, 1), (A.INCREMENTAL_ALTER_CONFIGS, 0)),
    ),
    Kip(
        430,
        "authorized operations in replies",
        "2.3",
        YES,
        served=((A.METADATA, 8), (A.DESCRIBE_GROUPS, 3)),
    ),
    Kip(
        455,
        "reassign partitions",
        "2.4",
        YES,
        "complete at once, as nothing is copied",
        served=((A.ALTER_PARTITION_REASSIGNMENTS, 0), (A.LIST_PARTITION_REASSIGNMENTS, 0)),
    ),
    Kip(
        460,
        "elect leaders",
        "2.4",
        YES,
        "an unclean election has nothing to do",
        served=((A.ELECT_LEADERS, 1),),
    ),
    Kip(464, "defaults of CreateTopics", "2.4", YES, served=((A.CREATE_TOPICS, 4),)),
    Kip(496, "delete offsets", "2.4", YES, served=((A.OFFSET_DELETE, 0),)),
    Kip(
        516,
        "topic ids",
        "2.8, 3.1",
        YES,
        "Produce by id since 4.1",
        served=((A.CREATE_TOPICS, 7), (A.METADATA, 12), (A.FETCH, 13), (A.PRODUCE, 13)),
    ),
    Kip(518, "list groups by state", "2.6", YES, served=((A.LIST_GROUPS, 4),)),
    Kip(525, "settings in the reply of CreateTopics", "2.4", YES, served=((A.CREATE_TOPICS, 5),)),
    Kip(569, "types and documentation of settings", "2.6", YES, served=((A.DESCRIBE_CONFIGS, 3),)),
    Kip(700, "DescribeCluster", "2.8", YES, served=((A.DESCRIBE_CLUSTER, 0),)),
    Kip(784, "an error for all of DescribeLogDirs", "3.2", YES, served=((A.DESCRIBE_LOG_DIRS, 3),)),
    Kip(827, "free space of a log directory", "3.3", YES, served=((A.DESCRIBE_LOG_DIRS, 4),)),
    Kip(836, "lag of the quorum's voters", "3.3", YES, served=((A.DESCRIBE_QUORUM, 1),)),
    Kip(
        853,
        "changes of the controller quorum",
        "3.9",
        PART,
        "described; the quorum is this broker, or the parent",
        served=((A.DESCRIBE_QUORUM, 2),),
        missing=("add_raft_voter", "remove_raft_voter"),
    ),
    Kip(
        860,
        "reassign without a change of the replication factor",
        "4.1",
        YES,
        served=((A.ALTER_PARTITION_REASSIGNMENTS, 1),),
    ),
    Kip(
        919,
        "admin clients talk to controllers",
        "3.7",
        PART,
        "brokers say that they are no controllers",
        served=((A.DESCRIBE_CLUSTER, 1),),
        missing=("controller_registration",),
    ),
    Kip(
        966,
        "eligible leader replicas",
        "4.0",
        PART,
        "DescribeTopicPartitions; with one copy there are none to show. Preview in 4.0",
        served=((A.DESCRIBE_TOPIC_PARTITIONS, 0),),
    ),
    Kip(974, "a native image of the broker", "3.8", NOT_APPLICABLE, "fencepost comes with pip"),
    Kip(
        1000,
        "list client metrics subscriptions",
        "3.7",
        PART,
        "answered; there are none",
        served=((A.LIST_CONFIG_RESOURCES, 0),),
    ),
    Kip(
        1066,
        "cordoned log directories",
        "4.3",
        PART,
        "shown as not cordoned; the setting is ignored",
        served=((A.DESCRIBE_LOG_DIRS, 5),),
    ),
    Kip(1073, "fenced brokers in DescribeCluster", "4.0", YES, served=((A.DESCRIBE_CLUSTER, 2),)),
    Kip(
        1142,
        "list everything that has settings",
        "4.1",
        YES,
        served=((A.LIST_CONFIG_RESOURCES, 1),),
    ),
)

PROTOCOL: Final = (
    Kip(35, "ApiVersions", "0.10.0", YES, served=((A.API_VERSIONS, 0),)),
    Kip(
        72,
        "a limit for the memory of requests",
        "1.0",
        YES,
        settings=("queued.max.request.bytes",),
    ),
    Kip(97, "clients support older brokers", "0.10.2", NOT_APPLICABLE, _CLIENT_ONLY),
    Kip(402, "a limit for connections", "2.3", YES, settings=("max.connections",)),
    Kip(482, "tagged fields", "2.4", YES, served=((A.API_VERSIONS, 3),)),
    Kip(
        511,
        "name and version of the client",
        "2.4",
        YES,
        "fencepost's own client gets more fields in DescribeTransactions",
        served=((A.API_VERSIONS, 3),),
    ),
    Kip(
        584,
        "feature levels",
        "2.7",
        PART,
        "shown; they do not change",
        served=((A.API_VERSIONS, 3),),
        missing=("update_features",),
    ),
    Kip(
        714,
        "metrics pushed by clients",
        "3.7",
        NO,
        "subscriptions are refused",
        missing=("get_telemetry_subscriptions", "push_telemetry"),
    ),
    Kip(893, "nullable structs", "3.5", YES, test="tests/wire/test_codec_against_kio.py"),
    Kip(
        896,
        "old versions removed",
        "4.0",
        YES,
        "the versions of Kafka 4.4",
        served=((A.FETCH, 4), (A.LIST_OFFSETS, 1)),
    ),
    Kip(899, "clients bootstrap again", "3.8", NOT_APPLICABLE, _CLIENT_ONLY),
    Kip(
        1102,
        "brokers tell clients to bootstrap again",
        "4.0",
        PART,
        "Metadata can say so and never does; ApiVersions does (KIP-1242)",
        served=((A.METADATA, 13),),
    ),
    Kip(
        1166,
        "high watermark in Fetch of followers",
        "4.1",
        NOT_APPLICABLE,
        "there are no followers",
        served=((A.FETCH, 18),),
    ),
    Kip(
        1242,
        "connections that reach the wrong broker",
        "4.4",
        YES,
        served=((A.API_VERSIONS, 5),),
    ),
)

SECURITY: Final = (
    Kip(48, "delegation tokens", "1.1", NO, _NO_TOKENS, missing=("create_delegation_token",)),
    Kip(84, "SCRAM", "0.10.2", YES, served=((A.SASL_AUTHENTICATE, 0),)),
    Kip(124, "request quotas", "0.11.0", NO, _NO_QUOTAS, missing=("alter_client_quotas",)),
    Kip(
        140,
        "administration of ACLs",
        "0.11.0",
        YES,
        served=((A.DESCRIBE_ACLS, 1), (A.CREATE_ACLS, 1), (A.DELETE_ACLS, 1)),
    ),
    Kip(
        152,
        "SaslAuthenticate",
        "1.0",
        YES,
        "SaslHandshake v0, with bare tokens, is refused",
        served=((A.SASL_HANDSHAKE, 1), (A.SASL_AUTHENTICATE, 0)),
    ),
    Kip(219, "clients throttle themselves", "2.0", NOT_APPLICABLE, _NO_QUOTAS),
    Kip(255, "OAUTHBEARER", "2.0", NO, "fencepost's client and tools speak it"),
    Kip(290, "ACLs by prefix", "2.0", YES, served=((A.DESCRIBE_ACLS, 1),)),
    Kip(
        306,
        "a delay after a failed login",
        "2.1",
        YES,
        settings=("connection.failed.authentication.delay.ms",),
    ),
    Kip(
        368,
        "log in again",
        "2.2",
        YES,
        "fencepost's own client connects again instead",
        served=((A.SASL_AUTHENTICATE, 1),),
        settings=("connections.max.reauth.ms",),
    ),
    Kip(
        373,
        "delegation tokens for others",
        "3.3",
        NO,
        _NO_TOKENS,
        missing=("create_delegation_token",),
    ),
    Kip(
        546,
        "quotas with the admin client",
        "2.6",
        NO,
        "describing them finds none",
        served=((A.DESCRIBE_CLIENT_QUOTAS, 0),),
        missing=("alter_client_quotas",),
    ),
    Kip(
        554,
        "SCRAM credentials with the admin client",
        "2.7",
        YES,
        served=((A.DESCRIBE_USER_SCRAM_CREDENTIALS, 0), (A.ALTER_USER_SCRAM_CREDENTIALS, 0)),
    ),
    Kip(
        599, "quotas for topic operations", "2.7", NO, _NO_QUOTAS, missing=("alter_client_quotas",)
    ),
    Kip(
        612,
        "limits for new connections",
        "2.7",
        PART,
        "for the broker and for a listener, not for an address",
        settings=("max.connection.creation.rate",),
    ),
    Kip(
        684,
        "client certificates on SASL_SSL listeners",
        "2.8",
        YES,
        settings=("ssl.client.auth",),
    ),
)

SECTIONS: Final = (
    ("Producers and transactions", PRODUCERS),
    ("Fetch and offsets in the log", READING),
    ("Groups and committed offsets", GROUPS),
    ("Administration", ADMIN),
    ("Protocol and connections", PROTOCOL),
    ("Security and quotas", SECURITY),
)


def matrix() -> Iterator[str]:
    """The page's tables."""
    for title, kips in SECTIONS:
        yield f"## {title}"
        yield ""
        yield "| KIP | about | Kafka | here | shown by | remark |"
        yield "|---|---|---|---|---|---|"
        for kip in kips:
            yield (
                f"| {kip.number} | {kip.about} | {kip.since} | {kip.answer} | {_shown_by(kip)} "
                f"| {kip.remark} |"
            )
        yield ""


def _shown_by(kip: Kip) -> str:
    from fencepost.wire.apis import API

    shown = [f"{API[key].name} v{version}" for key, version in kip.served]
    shown += [f"`{name}`" for name in (*kip.settings, *kip.metrics, kip.test) if name]
    return ", ".join(shown)


def problems(sections: tuple[tuple[str, tuple[Kip, ...]], ...] = SECTIONS) -> Iterator[str]:
    """What the matrix says and the broker does not do."""
    numbers = [kip.number for _, kips in sections for kip in kips]
    for number in sorted({each for each in numbers if numbers.count(each) > 1}):
        yield f"KIP-{number} has two rows"
    for title, kips in sections:
        if list(kips) != sorted(kips, key=lambda kip: kip.number):
            yield f"{title} is not in the order of the numbers"
        for kip in kips:
            yield from (f"KIP-{kip.number}: {each}" for each in _problems_of(kip))


def _problems_of(kip: Kip) -> Iterator[str]:
    from kio.schema.index import api_key_map

    from fencepost.broker.handlers import HANDLERS
    from fencepost.broker.metrics.catalogue import METRICS
    from fencepost.broker.settings.kinds import settings_of
    from fencepost.broker.settings.tables import BrokerSettings, TopicSettings
    from fencepost.wire.apis import API

    for key, version in kip.served:
        if key not in HANDLERS or not API[key].serves(version):
            yield f"{API[key].name} v{version} is not served"
    numbers = {name: number for number, name in api_key_map.items()}
    for name in kip.missing:
        if numbers[name] in HANDLERS:
            yield f"{name} is served by now: is the answer still {kip.answer!r}?"
    known = {each.name for table in (BrokerSettings, TopicSettings) for each in settings_of(table)}
    yield from (f"there is no setting {name}" for name in kip.settings if name not in known)
    metrics = {metric.name for metric in METRICS}
    yield from (f"there is no metric {name}" for name in kip.metrics if name not in metrics)
    if kip.test and not (ROOT / kip.test).is_file():
        yield f"there is no {kip.test}"
    if kip.answer in (YES, PART) and not (kip.served or kip.settings or kip.metrics or kip.test):
        yield f"nothing shows that the answer is {kip.answer!r}"
    if kip.answer not in (YES, PART, NO, NOT_APPLICABLE):
        yield f"{kip.answer!r} is no answer"


def unlisted() -> set[int]:
    """The KIPs that the source or the documentation speak of, and the matrix does not."""
    listed = {kip.number for _, kips in SECTIONS for kip in kips}
    pages = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    named = {
        int(number)
        for page in pages
        for number in re.findall(r"\bKIP-(\d+)", page.read_text(encoding="utf-8"))
    }
    return named - listed
