"""The tables: every broker and topic setting that fencepost honours, and what it does with the rest of Kafka's.

Three things can happen to a name:

- it stands in `BrokerSettings` or `TopicSettings`: it is honoured, with Kafka's default unless
  `why_differs` says otherwise. A few are only checked and shown (`without_effect`), or take no more
  effect than one broker allows (`at_most_effective`); at the start a warning says so;
- it is Kafka's but has no meaning here (`IGNORED`): it is accepted, kept, shown, and a warning says
  why it does nothing, so that a properties file made for Kafka can be used as it is;
- it would make somebody believe in a protection that is not there (`REFUSED`): it is an error.

Anything else is a typing error and is refused, with the closest name that exists. In a properties
file it is a warning: such files carry names of older versions of Kafka and of its vendors, which
Kafka ignores too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.base import limits
from fencepost.broker.settings.kinds import (
    Kind,
    Update,
    at_least,
    at_most_effective,
    between,
    each_of,
    flag,
    gzip_level,
    integer,
    not_zero,
    number,
    one_of,
    optional_integer,
    optional_text,
    optional_words,
    replicas,
    text,
    without_effect,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_LONG: Final = 2**63 - 1
DAY_MS: Final = 24 * 60 * 60 * 1000
WEEK_MS: Final = 7 * DAY_MS
GIBIBYTE: Final = 1024**3
SMALLEST_SEGMENT_BYTES: Final = 1024**2

ALL_LOCAL: Final = "all storage is local"
AT_ONCE: Final = "a removed file is deleted at once"
BY_DURABILITY: Final = "logs are synced as durability says"
GROWING: Final = "files grow as they are written"
ONE_COPY: Final = "there is one copy of every partition"
ONE_LEVEL: Final = "each codec has one level"
CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
WIDE: Final = Update.CLUSTER_WIDE


class BrokerSettings:
    """What `fencepost serve --config` and a properties file may set."""

    # -- who and where
    node_id = integer(
        1, "The number of this broker in its cluster.", at_least(0), why_differs="Kafka has none"
    )
    broker_id = integer(-1, "The old name of node.id.")
    broker_rack = optional_text("The rack that Metadata reports for this broker.")
    listeners = words(
        ("PLAINTEXT://127.0.0.1:9092",),
        "The addresses to listen on; port 0 takes a free one.",
        why_differs="loopback only unless told otherwise",
    )
    advertised_listeners = optional_words("The addresses that clients are told, where they differ.")
    listener_security_protocol_map = text(
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "The protocol of each listener by its name; PLAINTEXT is the one that is served.",
    )
    log_dir = words(
        ("fencepost-data",),
        "The data directory.",
        why_differs="a folder where one starts, not /tmp",
    )
    log_dirs = optional_words("The data directory; this name wins over log.dir.")
    durability = text(
        "os",
        "What acknowledged means: os survives the death of the process, fsync a loss of power.",
        one_of("os", "fsync"),
        why_differs="fencepost's own",
    )

    # -- topics
    num_partitions = integer(1, "Partitions of a topic whose creator names no number.", at_least(1))
    default_replication_factor = at_most_effective(
        1, integer(1, "Copies of a topic whose creator names no number; there is one.", at_least(1))
    )
    min_insync_replicas = at_most_effective(
        1,
        integer(
            1, "Copies that must have a record; one copy always has.", at_least(1), update=WIDE
        ),
    )
    auto_create_topics_enable = flag(True, "Whether asking for a topic creates it.")
    delete_topic_enable = flag(True, "Whether topics can be deleted.")
    max_request_partition_size_limit = integer(
        2000, "Partitions in one answer of DescribeTopicPartitions.", at_least(1)
    )

    # -- connections and requests
    socket_request_max_bytes = integer(
        limits.MAX_REQUEST_BYTES, "The largest request.", at_least(1)
    )
    max_connections = integer(
        limits.MAX_CONNECTIONS,
        "Open connections; the next one is closed.",
        at_least(1),
        update=WIDE,
        why_differs="Kafka has no bound; fewer are taken where `ulimit -n` leaves no room for "
        "as many",
    )
    connections_max_idle_ms = integer(
        600_000, "A connection without requests for so long is closed.", kind=Kind.LONG
    )
    queued_max_request_bytes = integer(
        limits.QUEUED_REQUEST_BYTES,
        "Memory for the large requests of all connections; the next ones are read later. 0 or "
        "less: no bound.",
        kind=Kind.LONG,
        why_differs="Kafka has no bound",
    )
    queued_max_response_bytes = integer(
        limits.QUEUED_RESPONSE_BYTES,
        "Memory for replies that clients have not read; then fetches bring less or wait. 0 or "
        "less: no bound.",
        kind=Kind.LONG,
        why_differs="fencepost's own; Kafka sends from the page cache",
    )
    message_max_bytes = integer(
        limits.MAX_BATCH_BYTES, "The largest record batch.", at_least(0), update=WIDE
    )
    fetch_max_bytes = integer(
        limits.FETCH_RESPONSE_MAX_BYTES, "The most that one fetch returns.", at_least(1024)
    )

    # -- the log
    log_segment_bytes = integer(
        GIBIBYTE,
        "Size at which a segment is closed.",
        at_least(SMALLEST_SEGMENT_BYTES),
        update=WIDE,
    )
    log_roll_ms = optional_integer(
        "Age at which a segment is closed.", at_least(1), kind=Kind.LONG, update=WIDE
    )
    log_roll_hours = integer(168, "Age at which a segment is closed, in hours.", at_least(1))
    log_roll_jitter_ms = optional_integer(
        "At most this is taken off the age.", at_least(0), kind=Kind.LONG, update=WIDE
    )
    log_roll_jitter_hours = integer(0, "At most this is taken off the age, in hours.", at_least(0))
    log_retention_ms = optional_integer(
        "Age at which a segment is deleted; -1 never.", not_zero, kind=Kind.LONG, update=WIDE
    )
    log_retention_minutes = optional_integer(
        "Age at which a segment is deleted, in minutes.", not_zero
    )
    log_retention_hours = integer(168, "Age at which a segment is deleted, in hours.", not_zero)
    log_retention_bytes = integer(
        -1, "Size of a partition above which old segments go.", kind=Kind.LONG, update=WIDE
    )
    log_retention_check_interval_ms = integer(
        300_000, "Pause between two looks for segments to delete.", at_least(1), kind=Kind.LONG
    )
    log_cleanup_policy = words(
        ("delete",),
        "What becomes of old segments: delete, compact, both or neither.",
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
        optional_integer(BY_DURABILITY, kind=Kind.LONG, update=WIDE)
    )
    log_flush_scheduler_interval_ms = without_effect(
        integer(MAX_LONG, BY_DURABILITY, kind=Kind.LONG)
    )
    log_flush_offset_checkpoint_interval_ms = integer(
        60_000, "Pause between two writings of the recovery points.", at_least(0)
    )
    log_preallocate = without_effect(flag(False, GROWING, update=WIDE))
    log_message_timestamp_type = text(
        "CreateTime", "Whose clock dates a record.", one_of(*TIMESTAMP_TYPES), update=WIDE
    )
    log_message_timestamp_before_max_ms = integer(
        MAX_LONG, "How old a record's time may be.", at_least(0), kind=Kind.LONG, update=WIDE
    )
    log_message_timestamp_after_max_ms = integer(
        3_600_000, "How far ahead a record's time may be.", at_least(0), kind=Kind.LONG, update=WIDE
    )
    compression_type = text(
        "producer", "The codec on disk; producer keeps what came.", one_of(*CODECS), update=WIDE
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
        15_000, "Pause when nothing is to be compacted.", at_least(0), kind=Kind.LONG, update=WIDE
    )
    log_cleaner_delete_retention_ms = integer(
        DAY_MS, "How long tombstones stay.", at_least(0), kind=Kind.LONG, update=WIDE
    )
    log_cleaner_min_compaction_lag_ms = integer(
        0, "Younger records are not compacted.", at_least(0), kind=Kind.LONG, update=WIDE
    )
    log_cleaner_max_compaction_lag_ms = integer(
        MAX_LONG, "Older records are compacted soon.", at_least(1), kind=Kind.LONG, update=WIDE
    )
    log_cleaner_min_cleanable_ratio = number(
        0.5, "Share of new bytes that makes a log worth compacting.", between(0, 1), update=WIDE
    )

    # -- groups and their offsets
    group_min_session_timeout_ms = integer(6000, "The shortest session timeout of a member.")
    group_max_session_timeout_ms = integer(1_800_000, "The longest session timeout of a member.")
    group_initial_rebalance_delay_ms = integer(
        0,
        "Time that an empty group waits for more members before its first rebalance.",
        why_differs="Kafka waits 3000 ms; on one machine for development that only costs time",
    )
    group_max_size = integer(
        limits.MAX_GROUP_SIZE,
        "Members of one group.",
        at_least(1),
        why_differs="Kafka has no bound",
    )
    offset_metadata_max_bytes = integer(
        limits.MAX_OFFSET_METADATA_BYTES, "The longest text beside a committed offset."
    )
    offsets_retention_minutes = integer(
        10_080, "How long the offsets of an empty group are kept.", at_least(1)
    )
    offsets_retention_check_interval_ms = integer(
        600_000, "Pause between two looks for expired offsets.", at_least(1), kind=Kind.LONG
    )
    offsets_topic_num_partitions = integer(
        50, "Partitions of __consumer_offsets; fixed once it exists.", at_least(1)
    )
    offsets_topic_replication_factor = at_most_effective(
        1,
        integer(
            1,
            "Copies of __consumer_offsets; there is one.",
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
        900_000, "The longest transaction timeout a producer may ask for.", at_least(1)
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = integer(
        10_000, "Pause between two looks for transactions past their timeout.", at_least(1)
    )
    transactional_id_expiration_ms = integer(
        WEEK_MS, "How long an unused transactional id is remembered.", at_least(1)
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = integer(
        3_600_000, "Pause between two looks for expired transactional ids.", at_least(1)
    )
    transaction_state_log_num_partitions = integer(
        50, "Partitions of __transaction_state; fixed once it exists.", at_least(1)
    )
    transaction_state_log_replication_factor = at_most_effective(
        1,
        integer(
            1,
            "Copies of __transaction_state; there is one.",
            at_least(1),
            kind=Kind.SHORT,
            why_differs=ONE_COPY,
        ),
    )
    transaction_state_log_min_isr = at_most_effective(
        1,
        integer(
            1,
            "Copies that must have a record; one copy always has.",
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
        "What becomes of open transactions at a start: resume until their timeout, or abort.",
        one_of("resume", "abort"),
        why_differs="fencepost's own",
    )
    producer_id_expiration_ms = integer(
        DAY_MS, "How long a silent producer's sequences are kept.", at_least(1), update=WIDE
    )
    producer_id_expiration_check_interval_ms = integer(
        600_000, "Pause between two looks for silent producers.", at_least(1)
    )


class TopicSettings:
    """What a topic may set for itself; where it does not, the broker's synonym stands."""

    cleanup_policy = words(
        ("delete",),
        "What becomes of old segments: delete, compact, both or neither.",
        each_of("compact", "delete"),
    )
    compression_type = text(
        "producer", "The codec on disk; producer keeps what came.", one_of(*CODECS)
    )
    compression_gzip_level = without_effect(integer(-1, ONE_LEVEL, gzip_level))
    compression_lz4_level = without_effect(integer(9, ONE_LEVEL, between(1, 17)))
    compression_zstd_level = without_effect(integer(3, ONE_LEVEL, between(-131_072, 22)))
    delete_retention_ms = integer(DAY_MS, "How long tombstones stay.", at_least(0), kind=Kind.LONG)
    file_delete_delay_ms = without_effect(integer(60_000, AT_ONCE, at_least(0), kind=Kind.LONG))
    flush_messages = without_effect(integer(MAX_LONG, BY_DURABILITY, at_least(1), kind=Kind.LONG))
    flush_ms = without_effect(integer(MAX_LONG, BY_DURABILITY, at_least(0), kind=Kind.LONG))
    follower_replication_throttled_replicas = without_effect(words((), ONE_COPY, replicas))
    index_interval_bytes = integer(4096, "Bytes of records between two index entries.", at_least(0))
    leader_replication_throttled_replicas = without_effect(words((), ONE_COPY, replicas))
    local_retention_bytes = without_effect(integer(-2, ALL_LOCAL, at_least(-2), kind=Kind.LONG))
    local_retention_ms = without_effect(integer(-2, ALL_LOCAL, at_least(-2), kind=Kind.LONG))
    max_compaction_lag_ms = integer(
        MAX_LONG, "Older records are compacted soon.", at_least(1), kind=Kind.LONG
    )
    max_message_bytes = integer(limits.MAX_BATCH_BYTES, "The largest record batch.", at_least(0))
    message_timestamp_after_max_ms = integer(
        3_600_000, "How far ahead a record's time may be.", at_least(0), kind=Kind.LONG
    )
    message_timestamp_before_max_ms = integer(
        MAX_LONG, "How old a record's time may be.", at_least(0), kind=Kind.LONG
    )
    message_timestamp_type = text(
        "CreateTime", "Whose clock dates a record.", one_of(*TIMESTAMP_TYPES)
    )
    min_cleanable_dirty_ratio = number(
        0.5, "Share of new bytes that makes the log worth compacting.", between(0, 1)
    )
    min_compaction_lag_ms = integer(
        0, "Younger records are not compacted.", at_least(0), kind=Kind.LONG
    )
    min_insync_replicas = integer(
        1, "Copies that must have a record; one copy always has.", at_least(1)
    )
    preallocate = without_effect(flag(False, GROWING))
    remote_log_copy_disable = without_effect(flag(False, ALL_LOCAL))
    remote_log_delete_on_disable = without_effect(flag(False, ALL_LOCAL))
    remote_storage_enable = flag(False, f"Must stay false: {ALL_LOCAL}.")
    retention_bytes = integer(
        -1, "Size of a partition above which old segments go; -1 no bound.", kind=Kind.LONG
    )
    retention_ms = integer(
        WEEK_MS, "Age at which a segment is deleted; -1 never.", at_least(-1), kind=Kind.LONG
    )
    segment_bytes = integer(
        GIBIBYTE, "Size at which a segment is closed.", at_least(SMALLEST_SEGMENT_BYTES)
    )
    segment_index_bytes = integer(10_485_760, "The largest index file.", at_least(4))
    segment_jitter_ms = integer(
        0, "At most this is taken off the age.", at_least(0), kind=Kind.LONG
    )
    segment_ms = integer(WEEK_MS, "Age at which a segment is closed.", at_least(1), kind=Kind.LONG)
    unclean_leader_election_enable = without_effect(flag(False, ONE_COPY))


INTERNAL_SEGMENT_BYTES: Final = "internal.segment.bytes"
"""A topic setting that Kafka hides: any segment size, for tests that want many small segments."""

BROKER_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    "cleanup.policy": ("log.cleanup.policy",),
    "compression.gzip.level": ("compression.gzip.level",),
    "compression.lz4.level": ("compression.lz4.level",),
    "compression.type": ("compression.type",),
    "compression.zstd.level": ("compression.zstd.level",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "index.interval.bytes": ("log.index.interval.bytes",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "max.message.bytes": ("message.max.bytes",),
    "message.timestamp.after.max.ms": ("log.message.timestamp.after.max.ms",),
    "message.timestamp.before.max.ms": ("log.message.timestamp.before.max.ms",),
    "message.timestamp.type": ("log.message.timestamp.type",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "min.insync.replicas": ("min.insync.replicas",),
    "preallocate": ("log.preallocate",),
    "retention.bytes": ("log.retention.bytes",),
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "segment.bytes": ("log.segment.bytes",),
    "segment.index.bytes": ("log.index.size.max.bytes",),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
}
"""The broker settings behind a topic setting, the strongest first."""

UNIT_MS: Final[Mapping[str, int]] = {"hours": 3_600_000, "minutes": 60_000}
"""What the last word of a synonym is worth where the topic setting counts milliseconds."""

IGNORED: Final[Mapping[str, str]] = {
    "add.partitions.to.txn.": "one broker asks itself, without retries",
    "alter.config.policy.class.name": "there are no policy plugins",
    "alter.log.dirs.": "there is one data directory",
    "auto.leader.rebalance.enable": "a partition stays with its leader",
    "background.threads": "there are no background threads",
    "broker.heartbeat.interval.ms": "one broker needs no heartbeats",
    "broker.session.timeout.ms": "one broker needs no sessions",
    "client.quota.callback.class": "there are no quotas",
    "config.providers": "values are taken as they are",
    "connection.failed.authentication.delay.ms": "there is no authentication",
    "connections.max.reauth.ms": "there is no authentication",
    "controlled.shutdown.": "one broker hands nothing over",
    "controller.": "the broker is its own controller",
    "cordoned.log.dirs": "there is one data directory",
    "create.topic.policy.class.name": "there are no policy plugins",
    "delegation.token.": "there is no authentication",
    "delete.records.purgatory.purge.interval.requests": "nothing waits in a purgatory",
    "early.start.listeners": "there is no authorizer to wait for",
    "fetch.purgatory.purge.interval.requests": "nothing waits in a purgatory",
    "follower.": "there are no followers",
    "group.consumer.": "the consumer protocol of KIP-848 is not served",
    "group.coordinator.": "the group coordinator has no threads of its own",
    "group.share.": "share groups are not served",
    "group.streams.": "the streams protocol is not served",
    "initial.broker.registration.timeout.ms": "the broker registers with itself",
    "inter.broker.listener.name": "brokers share the listeners of the clients",
    "internal.": "it belongs to the inside of Kafka",
    "kafka.metrics.": "there are no Java metrics reporters",
    "leader.": ONE_COPY,
    "listener.name.": "all listeners are alike",
    "log.cleaner.": "compaction takes what memory it needs",
    "log.dir.failure.timeout.ms": "the loss of the data directory ends the broker",
    "log.flush.": BY_DURABILITY,
    "log.initial.task.delay.ms": "nothing is delayed at the start",
    "log.local.retention.": ALL_LOCAL,
    "max.connection.creation.rate": "connections are not throttled",
    "max.connections.per.ip": "only max.connections bounds connections",
    "max.connections.per.ip.overrides": "only max.connections bounds connections",
    "max.incremental.fetch.session.cache.slots": "fetch sessions are declined",
    "metadata.": "the metadata log is small and kept as a whole",
    "metric.": "there are no Java metrics reporters",
    "metrics.": "there are no Java metrics reporters",
    "num.io.threads": "one loop does all the work",
    "num.network.threads": "one loop does all the work",
    "num.recovery.threads.per.data.dir": "one loop does all the work",
    "num.replica.": ONE_COPY,
    "offsets.commit.timeout.ms": "a commit waits for durability and nothing else",
    "offsets.load.buffer.size": "offsets are read with the buffers of the log",
    "offsets.topic.compression.codec": "__consumer_offsets is not compressed",
    "principal.builder.class": "there is no authentication",
    "process.roles": "the broker is its own controller",
    "producer.purgatory.purge.interval.requests": "nothing waits in a purgatory",
    "queued.max.requests": "the requests of a connection are bounded one by one",
    "quota.": "there are no quotas",
    "remote.": ALL_LOCAL,
    "replica.": ONE_COPY,
    "replication.quota.": ONE_COPY,
    "request.timeout.ms": "one broker sends no requests",
    "sasl.": "there is no authentication",
    "security.": "there is no encryption",
    "server.max.startup.time.ms": "the start has no deadline",
    "share.": "share groups are not served",
    "socket.connection.setup.timeout.": "one broker opens no connections",
    "socket.listen.backlog.size": "the operating system decides",
    "socket.receive.buffer.bytes": "the operating system decides",
    "socket.send.buffer.bytes": "the operating system decides",
    "ssl.": "there is no encryption",
    "telemetry.max.bytes": "clients push no telemetry",
    "transaction.state.log.load.buffer.size": "transactions are read with the buffers of the log",
    "transaction.two.phase.commit.enable": "two-phase commit of KIP-939 is not served",
    "unclean.leader.election.interval.ms": ONE_COPY,
    "unstable.": "only finished APIs are served",
}
"""Names of Kafka, or beginnings of names (those with a dot at their end), that do nothing here, and
why."""

REFUSED: Final[Mapping[str, str]] = {
    "authorizer.class.name": "there is no authorizer: everybody may do everything",
    "super.users": "there is no authorizer: everybody may do everything",
    "allow.everyone.if.no.acl.found": "there is no authorizer: everybody may do everything",
    "ssl.client.auth": "there is no encryption: no certificate is ever asked for",
    "sasl.enabled.mechanisms": "there is no authentication: nobody is asked for a password",
}
"""Names that promise a protection which is not there; an empty value (or none) is let pass."""
