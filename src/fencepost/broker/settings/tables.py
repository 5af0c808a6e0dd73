"""The tables: every supported broker and topic setting, and the treatment of Kafka's others.

A setting of Kafka's is one of these:

- supported: it is in `BrokerSettings` or `TopicSettings`, with Kafka's default unless `why_differs`
  gives a reason. A few are checked and described but have no effect (`without_effect`), or only the
  effect that the number of brokers allows (`replica_count`); the start logs a warning for them;
- ignored (`IGNORED`): it has no meaning here. It is accepted, stored and described, and the start
  logs a warning, so that a properties file of Kafka's can be used unchanged.

Any other name is a typo and is refused, with the most similar name as a suggestion. In a properties
file it is only a warning: such files contain names of older Kafka versions and of vendors, which
Kafka ignores too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.base import limits
from fencepost.broker.settings.kinds import (
    Kind,
    Update,
    at_least,
    between,
    each_of,
    flag,
    gzip_level,
    inherited,
    integer,
    like,
    not_zero,
    number,
    one_of,
    only,
    overrides,
    password,
    principals,
    replica_count,
    replicas,
    settings_of,
    standard_authorizer,
    text,
    without_effect,
    words,
)
from fencepost.broker.settings.sasl import has_mechanisms

MAX_LONG: Final = 2**63 - 1
DAY_MS: Final = 24 * 60 * 60 * 1000
WEEK_MS: Final = 7 * DAY_MS
GIBIBYTE: Final = 1024**3
SMALLEST_SEGMENT_BYTES: Final = 1024**2

ALL_LOCAL: Final = "all storage is local"
AT_ONCE: Final = "files are deleted at once"
BY_DURABILITY: Final = "durability decides when logs are synced"
GROWING: Final = "files grow as they are written"
ONE_COPY: Final = "there is one copy of every partition"
PEM_ONLY: Final = "Kafka's default is JKS, which only Java reads"
ONE_LEVEL: Final = "each codec has one level"
CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
WIDE: Final = Update.CLUSTER_WIDE


class BrokerSettings:
    """The settings of a broker: `fencepost serve --config`, or a properties file."""

    # -- identity and addresses
    node_id = integer(1, "The id of this broker.", at_least(0), why_differs="Kafka has no default")
    broker_id = integer(-1, "The old name of node.id.")
    broker_session_timeout_ms = integer(
        9000,
        "How long a broker of a cluster may be silent before it is killed and replaced.",
        at_least(2000),
    )
    broker_rack = text(None, "The rack that Metadata reports for this broker.")
    listeners = words(
        ("PLAINTEXT://127.0.0.1:9092",),
        "The addresses to listen on, NAME://HOST:PORT; port 0 chooses a free one.",
        why_differs="loopback only by default",
    )
    advertised_listeners = words(
        None, "The address for the clients of a listener, if it differs from listeners."
    )
    listener_security_protocol_map = text(
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "The security protocol of each listener name.",
    )
    log_dir = words(
        ("fencepost-data",),
        "The data directory.",
        why_differs="a folder in the working directory, not in /tmp",
    )
    log_dirs = words(None, "The data directory; this name wins over log.dir.")
    durability = text(
        "os",
        "What an acknowledged record survives: os a crash of the process, fsync a power loss.",
        one_of("os", "fsync"),
        why_differs="not in Kafka",
    )

    # -- who may do what
    authorizer_class_name = text(
        "", "What decides who may do what; empty: any client may do anything.", standard_authorizer
    )
    super_users = text(
        "",
        "Principals that may do anything, such as User:admin;User:ops.",
        principals,
        why_differs="in Kafka a setting of the authorizer",
    )
    allow_everyone_if_no_acl_found = flag(
        False,
        "Whether anybody may do anything with a resource that no ACL is about.",
        why_differs="in Kafka a setting of the authorizer",
    )

    # -- topics
    num_partitions = integer(1, "Default number of partitions of a new topic.", at_least(1))
    default_replication_factor = replica_count(
        integer(
            1, "Default replication factor of a new topic; min(3, N) with N brokers.", at_least(1)
        )
    )
    min_insync_replicas = replica_count(
        integer(1, "Live replicas that acks=all needs.", at_least(1), update=WIDE),
    )
    auto_create_topics_enable = flag(True, "Whether a Metadata request creates absent topics.")
    delete_topic_enable = flag(True, "Whether topics can be deleted.")
    max_request_partition_size_limit = integer(
        2000, "Partitions in one reply of DescribeTopicPartitions.", at_least(1)
    )

    # -- connections and requests
    socket_request_max_bytes = integer(
        limits.MAX_REQUEST_BYTES, "The largest request.", at_least(1)
    )
    max_connections = integer(
        limits.MAX_CONNECTIONS,
        "Open connections; further ones are closed.",
        at_least(1),
        why_differs="Kafka has no limit; `ulimit -n` may allow fewer",
    )
    max_connections_per_ip = integer(
        2**31 - 1, "Open connections of one address; further ones are closed.", at_least(0)
    )
    max_connections_per_ip_overrides = text(
        "", "max.connections.per.ip of some addresses: `127.0.0.1:200,10.0.0.7:5`.", overrides
    )
    max_connection_creation_rate = integer(
        2**31 - 1,
        "New connections per second; further ones wait if their turn comes within 5 s.",
        at_least(1),
    )
    connections_max_idle_ms = integer(
        600_000, "A connection that is idle for longer is closed.", kind=Kind.LONG
    )
    queued_max_request_bytes = integer(
        limits.QUEUED_REQUEST_BYTES,
        "Memory for the large requests of all connections; further ones wait. 0 or less: no limit.",
        kind=Kind.LONG,
        why_differs="Kafka has no limit",
    )
    queued_max_response_bytes = integer(
        limits.QUEUED_RESPONSE_BYTES,
        "Memory for unread replies; beyond it fetches return less or wait. 0 or less: no limit.",
        kind=Kind.LONG,
        why_differs="not in Kafka, which sends from the page cache",
    )
    message_max_bytes = integer(
        limits.MAX_BATCH_BYTES, "The largest record batch.", at_least(0), update=WIDE
    )
    record_validation_enable = flag(
        True,
        "Whether records are checked before they are written; compacted topics always check.",
        update=WIDE,
        why_differs="not in Kafka, which always does",
    )
    fetch_max_bytes = integer(
        limits.FETCH_RESPONSE_MAX_BYTES, "The largest fetch reply.", at_least(1024)
    )

    # -- TLS, of all listeners or of one: listener.name.NAME.ssl.client.auth
    ssl_keystore_type = text(
        "PEM", "The form of the certificate and its key.", only("PEM"), why_differs=PEM_ONLY
    )
    ssl_keystore_location = text(None, "A PEM file with the key and the certificate chain.")
    ssl_keystore_certificate_chain = password(
        "The certificate chain itself, as PEM text, instead of a file."
    )
    ssl_keystore_key = password("The private key of that chain, as PEM text.")
    ssl_key_password = password("The password of an encrypted private key.")
    ssl_truststore_type = text(
        "PEM", "The form of the authorities of clients.", only("PEM"), why_differs=PEM_ONLY
    )
    ssl_truststore_location = text(None, "A PEM file with the authorities of client certificates.")
    ssl_truststore_certificates = password(
        "The authorities themselves, as PEM text, instead of a file."
    )
    ssl_enabled_protocols = words(
        ("TLSv1.2", "TLSv1.3"),
        "The versions of TLS that clients may use.",
        each_of("TLSv1.2", "TLSv1.3"),
    )
    ssl_cipher_suites = words(
        (), "The cipher suites that clients may use, by their standard names; empty for all."
    )
    ssl_client_auth = text(
        "none",
        "Whether clients need a certificate: none, requested or required.",
        one_of("none", "requested", "required"),
    )
    ssl_principal_mapping_rules = text(
        "DEFAULT",
        "Rules that turn the name in a client's certificate into its principal; a RULE needs the "
        "extra re2.",
    )

    # -- SASL: listener.name.NAME.… gives a listener its own (`sasl.py`)
    sasl_enabled_mechanisms = words(
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        "The mechanisms of listeners with SASL.",
        has_mechanisms,
        why_differs="Kafka's default is Kerberos, which is not supported",
    )
    sasl_server_max_receive_size = integer(
        limits.MAX_BYTES_BEFORE_LOGIN,
        "The largest request before a client has logged in.",
        between(1, limits.MAX_BYTES_BEFORE_LOGIN),
        why_differs="strangers take no memory from requests; Kerberos alone has larger tokens",
    )
    connections_max_reauth_ms = integer(
        0,
        "How long a login is valid; a client must renew it before (KIP-368). 0: for ever.",
        at_least(0),
        kind=Kind.LONG,
    )
    connection_failed_authentication_delay_ms = integer(
        100, "How long after its arrival a failed login is answered.", at_least(0)
    )

    # -- the log
    log_segment_bytes = integer(
        GIBIBYTE,
        "Size at which a segment is rolled.",
        at_least(SMALLEST_SEGMENT_BYTES),
        update=WIDE,
    )
    log_roll_ms = integer(
        None, "Age at which a segment is rolled.", at_least(1), kind=Kind.LONG, update=WIDE
    )
    log_roll_hours = integer(168, "Age at which a segment is rolled, in hours.", at_least(1))
    log_roll_jitter_ms = integer(
        None, "Largest random reduction of that age.", at_least(0), kind=Kind.LONG, update=WIDE
    )
    log_roll_jitter_hours = integer(
        0, "Largest random reduction of that age, in hours.", at_least(0)
    )
    log_retention_ms = integer(
        None, "Age at which a segment is deleted; -1 never.", not_zero, kind=Kind.LONG, update=WIDE
    )
    log_retention_minutes = integer(
        None, "Age at which a segment is deleted, in minutes.", not_zero
    )
    log_retention_hours = integer(168, "Age at which a segment is deleted, in hours.", not_zero)
    log_retention_bytes = integer(
        -1,
        "Size of a partition above which old segments are deleted; -1 never.",
        kind=Kind.LONG,
        update=WIDE,
    )
    log_retention_check_interval_ms = integer(
        300_000, "Interval of the check for segments to delete.", at_least(1), kind=Kind.LONG
    )
    log_cleanup_policy = words(
        ("delete",),
        "How old segments are handled: delete, compact, both or neither.",
        each_of("compact", "delete"),
        update=WIDE,
    )
    log_segment_delete_delay_ms = without_effect(
        integer(60_000, AT_ONCE, at_least(0), kind=Kind.LONG, update=WIDE)
    )
    log_index_interval_bytes = integer(
        4096, "Bytes of records between two index entries.", at_least(0), update=WIDE
    )
    log_index_size_max_bytes = integer(
        10_485_760, "The largest index file.", at_least(4), update=WIDE
    )
    log_flush_interval_messages = without_effect(
        integer(MAX_LONG, BY_DURABILITY, at_least(1), kind=Kind.LONG, update=WIDE)
    )
    log_flush_interval_ms = without_effect(
        integer(None, BY_DURABILITY, kind=Kind.LONG, update=WIDE)
    )
    log_flush_scheduler_interval_ms = without_effect(
        integer(MAX_LONG, BY_DURABILITY, kind=Kind.LONG)
    )
    log_flush_offset_checkpoint_interval_ms = integer(
        60_000, "Interval at which recovery points are saved.", at_least(0)
    )
    log_preallocate = without_effect(flag(False, GROWING, update=WIDE))
    log_message_timestamp_type = text(
        "CreateTime",
        "Whether timestamps come from the producer or the broker.",
        one_of(*TIMESTAMP_TYPES),
        update=WIDE,
    )
    log_message_timestamp_before_max_ms = integer(
        MAX_LONG, "How old a timestamp may be.", at_least(0), kind=Kind.LONG, update=WIDE
    )
    log_message_timestamp_after_max_ms = integer(
        3_600_000,
        "How far in the future a timestamp may be.",
        at_least(0),
        kind=Kind.LONG,
        update=WIDE,
    )
    compression_type = text(
        "producer",
        "The codec on disk; producer keeps the producer's.",
        one_of(*CODECS),
        update=WIDE,
    )
    compression_gzip_level = without_effect(integer(-1, ONE_LEVEL, gzip_level, update=WIDE))
    compression_lz4_level = without_effect(integer(9, ONE_LEVEL, between(1, 17), update=WIDE))
    compression_zstd_level = without_effect(
        integer(3, ONE_LEVEL, between(-131_072, 22), update=WIDE)
    )
    unclean_leader_election_enable = without_effect(flag(False, ONE_COPY, update=WIDE))

    # -- compaction
    log_cleaner_enable = flag(True, "Whether compacted topics are compacted.")
    log_cleaner_backoff_ms = integer(
        15_000,
        "Pause when no log needs compaction.",
        at_least(0),
        kind=Kind.LONG,
        update=WIDE,
    )
    log_cleaner_delete_retention_ms = integer(
        DAY_MS, "How long tombstones are kept.", at_least(0), kind=Kind.LONG, update=WIDE
    )
    log_cleaner_min_compaction_lag_ms = integer(
        0, "Younger records are not compacted.", at_least(0), kind=Kind.LONG, update=WIDE
    )
    log_cleaner_max_compaction_lag_ms = integer(
        MAX_LONG,
        "Age at which a record must be compacted.",
        at_least(1),
        kind=Kind.LONG,
        update=WIDE,
    )
    log_cleaner_min_cleanable_ratio = number(
        0.5, "Share of uncompacted bytes that starts a compaction.", between(0, 1), update=WIDE
    )

    # -- groups and their offsets
    group_min_session_timeout_ms = integer(6000, "The shortest session timeout of a member.")
    group_max_session_timeout_ms = integer(1_800_000, "The longest session timeout of a member.")
    group_initial_rebalance_delay_ms = integer(
        0,
        "How long an empty group waits for more members before its first rebalance.",
        why_differs="Kafka waits 3000 ms, which only costs time in development",
    )
    group_max_size = integer(
        limits.MAX_GROUP_SIZE,
        "Members of one group.",
        at_least(1),
        why_differs="Kafka has no limit",
    )
    offset_metadata_max_bytes = integer(
        limits.MAX_OFFSET_METADATA_BYTES, "Longest metadata of a committed offset."
    )
    offsets_retention_minutes = integer(
        10_080, "How long the offsets of an empty group are kept.", at_least(1)
    )
    offsets_retention_check_interval_ms = integer(
        600_000, "Interval of the check for expired offsets.", at_least(1), kind=Kind.LONG
    )
    offsets_topic_num_partitions = integer(
        50, "Partitions of __consumer_offsets; fixed once it exists.", at_least(1)
    )
    offsets_topic_replication_factor = replica_count(
        integer(
            1,
            "Replication factor of __consumer_offsets; min(3, N) with N brokers.",
            at_least(1),
            kind=Kind.SHORT,
            why_differs=ONE_COPY,
        ),
    )
    offsets_topic_segment_bytes = integer(
        104_857_600, "Segment size of __consumer_offsets.", at_least(1)
    )

    # -- transactions and producers
    transaction_max_timeout_ms = integer(
        900_000, "The longest transaction timeout a producer may request.", at_least(1)
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = integer(
        10_000, "Interval of the check for timed-out transactions.", at_least(1)
    )
    transactional_id_expiration_ms = integer(
        WEEK_MS, "How long an unused transactional id is kept.", at_least(1)
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = integer(
        3_600_000, "Interval of the check for expired transactional ids.", at_least(1)
    )
    transaction_state_log_num_partitions = integer(
        50, "Partitions of __transaction_state; fixed once it exists.", at_least(1)
    )
    transaction_state_log_replication_factor = replica_count(
        integer(
            1,
            "Replication factor of __transaction_state; min(3, N) with N brokers.",
            at_least(1),
            kind=Kind.SHORT,
            why_differs=ONE_COPY,
        ),
    )
    transaction_state_log_min_isr = replica_count(
        integer(
            1,
            "Live replicas that __transaction_state needs; 2 with three brokers or more.",
            at_least(1),
            why_differs=ONE_COPY,
        ),
    )
    transaction_state_log_segment_bytes = integer(
        104_857_600, "Segment size of __transaction_state.", at_least(1)
    )
    transaction_partition_verification_enable = flag(
        True, "Whether the first write of a transaction is verified (KIP-890).", update=WIDE
    )
    transaction_recovery_ongoing = text(
        "resume",
        "Open transactions at a start: resume them until their timeout, or abort them.",
        one_of("resume", "abort"),
        why_differs="not in Kafka",
    )
    producer_id_expiration_ms = integer(
        DAY_MS, "How long the sequences of an idle producer are kept.", at_least(1), update=WIDE
    )
    producer_id_expiration_check_interval_ms = integer(
        600_000, "Interval of the check for idle producers.", at_least(1)
    )


class TopicSettings:
    """The settings of a topic. Most are like a broker setting, whose value is their default."""

    cleanup_policy = like(BrokerSettings.log_cleanup_policy)
    compression_type = like(BrokerSettings.compression_type)
    compression_gzip_level = like(BrokerSettings.compression_gzip_level)
    compression_lz4_level = like(BrokerSettings.compression_lz4_level)
    compression_zstd_level = like(BrokerSettings.compression_zstd_level)
    delete_retention_ms = like(BrokerSettings.log_cleaner_delete_retention_ms)
    file_delete_delay_ms = like(BrokerSettings.log_segment_delete_delay_ms)
    flush_messages = like(BrokerSettings.log_flush_interval_messages)
    flush_ms = inherited(
        without_effect(integer(MAX_LONG, BY_DURABILITY, at_least(0), kind=Kind.LONG)),
        BrokerSettings.log_flush_interval_ms,
        BrokerSettings.log_flush_scheduler_interval_ms,
    )
    follower_replication_throttled_replicas = without_effect(words((), ONE_COPY, replicas))
    index_interval_bytes = like(BrokerSettings.log_index_interval_bytes)
    leader_replication_throttled_replicas = without_effect(words((), ONE_COPY, replicas))
    local_retention_bytes = without_effect(integer(-2, ALL_LOCAL, at_least(-2), kind=Kind.LONG))
    local_retention_ms = without_effect(integer(-2, ALL_LOCAL, at_least(-2), kind=Kind.LONG))
    max_compaction_lag_ms = like(BrokerSettings.log_cleaner_max_compaction_lag_ms)
    max_message_bytes = like(BrokerSettings.message_max_bytes)
    message_timestamp_after_max_ms = like(BrokerSettings.log_message_timestamp_after_max_ms)
    message_timestamp_before_max_ms = like(BrokerSettings.log_message_timestamp_before_max_ms)
    message_timestamp_type = like(BrokerSettings.log_message_timestamp_type)
    min_cleanable_dirty_ratio = like(BrokerSettings.log_cleaner_min_cleanable_ratio)
    min_compaction_lag_ms = like(BrokerSettings.log_cleaner_min_compaction_lag_ms)
    min_insync_replicas = like(BrokerSettings.min_insync_replicas)
    preallocate = like(BrokerSettings.log_preallocate)
    remote_log_copy_disable = without_effect(flag(False, ALL_LOCAL))
    remote_log_delete_on_disable = without_effect(flag(False, ALL_LOCAL))
    remote_storage_enable = flag(False, f"Must be false: {ALL_LOCAL}.")
    retention_bytes = like(BrokerSettings.log_retention_bytes)
    retention_ms = inherited(
        integer(
            WEEK_MS, "Age at which a segment is deleted; -1 never.", at_least(-1), kind=Kind.LONG
        ),
        BrokerSettings.log_retention_ms,
        BrokerSettings.log_retention_minutes,
        BrokerSettings.log_retention_hours,
    )
    segment_bytes = like(BrokerSettings.log_segment_bytes)
    segment_index_bytes = like(BrokerSettings.log_index_size_max_bytes)
    segment_jitter_ms = inherited(
        integer(0, "Largest random reduction of that age.", at_least(0), kind=Kind.LONG),
        BrokerSettings.log_roll_jitter_ms,
        BrokerSettings.log_roll_jitter_hours,
    )
    segment_ms = inherited(
        integer(WEEK_MS, "Age at which a segment is rolled.", at_least(1), kind=Kind.LONG),
        BrokerSettings.log_roll_ms,
        BrokerSettings.log_roll_hours,
    )
    unclean_leader_election_enable = like(BrokerSettings.unclean_leader_election_enable)


INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"
"""A hidden topic setting of Kafka's: any segment size, for tests that need small segments."""

BROKER_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    setting.name: setting.synonyms for setting in settings_of(TopicSettings) if setting.synonyms
}
"""The broker settings that are the default of a topic setting, the strongest first."""

UNIT_MS: Final[Mapping[str, int]] = {"hours": 3_600_000, "minutes": 60_000}
"""Milliseconds per unit of a synonym, by its last word."""

IGNORED: Final[Mapping[str, str]] = {
    "add.partitions.to.txn.": "a first write is verified within fixed limits",
    "alter.config.policy.class.name": "there are no policy plugins",
    "alter.log.dirs.": "there is one data directory",
    "auto.leader.rebalance.enable": "a partition stays with its leader",
    "background.threads": "the number of background threads is fixed",
    "broker.heartbeat.interval.ms": "a parent process watches its brokers",
    "client.quota.callback.class": "there are no quotas",
    "config.providers": "values are not substituted",
    "controlled.shutdown.": "the parent of several brokers moves leadership",
    "controller.": "the controller is in the broker, or in the parent of several",
    "cordoned.log.dirs": "there is one data directory",
    "create.topic.policy.class.name": "there are no policy plugins",
    "delegation.token.": "there are no delegation tokens",
    "delete.records.purgatory.purge.interval.requests": "nothing waits in a purgatory",
    "early.start.listeners": "the authorizer is ready when the broker listens",
    "fetch.purgatory.purge.interval.requests": "nothing waits in a purgatory",
    "follower.": "there are no followers",
    "group.consumer.": "the consumer protocol of KIP-848 is not served",
    "group.coordinator.": "the group coordinator runs on the event loop",
    "group.share.": "share groups are not served",
    "group.streams.": "the streams protocol is not served",
    "initial.broker.registration.timeout.ms": "a registration has no deadline",
    "inter.broker.listener.name": "brokers talk over private sockets",
    "internal.": "it is internal to Kafka",
    "kafka.metrics.": "there are no Java metrics reporters",
    "leader.": ONE_COPY,
    "log.cleaner.": "compaction uses a fixed amount of memory",
    "log.dir.failure.timeout.ms": "a failed data directory ends the broker",
    "log.flush.": BY_DURABILITY,
    "log.initial.task.delay.ms": "tasks begin one interval after the start",
    "log.local.retention.": ALL_LOCAL,
    "max.incremental.fetch.session.cache.slots": "fetch sessions are not supported",
    "metadata.": "checkpoints of the metadata log follow fixed rules",
    "metric.": "there are no Java metrics reporters",
    "metrics.": "there are no Java metrics reporters",
    "num.io.threads": "one event loop serves all requests",
    "num.network.threads": "one event loop serves all requests",
    "num.recovery.threads.per.data.dir": "one thread recovers all logs",
    "num.replica.": ONE_COPY,
    "offsets.commit.timeout.ms": "a commit waits for durability only",
    "offsets.load.buffer.size": "the read size is fixed",
    "offsets.topic.compression.codec": "__consumer_offsets is not compressed",
    "principal.builder.class": "there are no plugins",
    "process.roles": "the controller is in the broker, or in the parent of several",
    "producer.purgatory.purge.interval.requests": "nothing waits in a purgatory",
    "queued.max.requests": "requests are limited per connection",
    "quota.": "there are no quotas",
    "remote.": ALL_LOCAL,
    "replica.": ONE_COPY,
    "replication.quota.": ONE_COPY,
    "request.timeout.ms": "requests between brokers have fixed limits",
    "sasl.": "the broker logs in nowhere, and checks PLAIN and SCRAM only",
    "security.": "brokers talk over private sockets, and TLS is that of Python",
    "server.max.startup.time.ms": "a start has no deadline",
    "share.": "share groups are not served",
    "socket.connection.setup.timeout.": "brokers talk over private sockets",
    "socket.listen.backlog.size": "the operating system decides",
    "socket.receive.buffer.bytes": "the operating system decides",
    "socket.send.buffer.bytes": "the operating system decides",
    "ssl.": "TLS is that of Python and OpenSSL",
    "telemetry.max.bytes": "client telemetry is not collected",
    "transaction.state.log.load.buffer.size": "the read size is fixed",
    "transaction.two.phase.commit.enable": "two-phase commit (KIP-939) is not supported",
    "unclean.leader.election.interval.ms": ONE_COPY,
    "unstable.": "only finished APIs are served",
}
"""Settings of Kafka's without effect, and why; a name that ends in a dot is a prefix."""

PER_LISTENER: Final = frozenset(
    {setting.name for setting in settings_of(BrokerSettings) if setting.name.startswith("ssl.")}
    | {"max.connections", "max.connection.creation.rate"}
)
"""Settings that one listener may have for itself, with its prefix."""
