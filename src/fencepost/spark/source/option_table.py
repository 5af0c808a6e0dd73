"""Every option of the source but the client's: name, default, meaning.

`options.py` parses by this table.
"""

from __future__ import annotations

from typing import Final

from fencepost.spark.option_tables import Option, Scope, spellings

_ONE_OF_THREE: Final = "one of `subscribe`, `subscribePattern` and `assign` is required"

SOURCE_OPTIONS: Final = (
    Option("subscribe", f"topics, separated by commas; {_ONE_OF_THREE}"),
    Option(
        "subscribePattern",
        "a Python regular expression; topics whose name it matches, also in part",
    ),
    Option("assign", 'partitions, `{"topic":[0,1]}`'),
    Option(
        "startingOffsets",
        '`earliest`, `latest`, `committed` (by the group `kafka.group.id`), or `{"topic":{"0":23,'
        '"1":-2}}` with every partition, -2 for earliest and -1 for latest',
        "latest",
        batch_default="earliest",
    ),
    Option(
        "startingOffsetsByTimestamp",
        '`{"topic":{"0":1700000000000}}`: the first record at or after this time; overrides '
        "`startingOffsets`",
    ),
    Option(
        "startingTimestamp",
        "one time for all partitions, in milliseconds; overrides the two options above",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "what to do if no record is that new: `error`, or start at `latest`",
        "error",
    ),
    Option(
        "endingOffsets",
        '`latest`, or `{"topic":{"0":50,"1":-1}}` with offsets that exist, -1 for the end',
        "latest",
        scope=Scope.BATCH,
    ),
    Option(
        "endingOffsetsByTimestamp",
        "where to end, by time; the end of the partition if no record is that new",
        scope=Scope.BATCH,
    ),
    Option(
        "endingTimestamp",
        "one time for all partitions; overrides the two options above",
        scope=Scope.BATCH,
    ),
    Option(
        "failOnDataLoss",
        "whether missing records and topics stop the query, or only log a warning",
        "true",
    ),
    Option(
        "createTopics",
        "creates the topics of `subscribe` or `assign` that do not exist, with this many "
        "partitions: for trying out",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "offsets per batch, divided in proportion to the backlog of each partition",
        scope=Scope.STREAM,
    ),
    Option(
        "minOffsetsPerTrigger",
        "wait for this many offsets before a batch, at most for `maxTriggerDelay`",
        scope=Scope.STREAM,
    ),
    Option(
        "maxTriggerDelay",
        "the longest wait for `minOffsetsPerTrigger`, in `us`, `ms`, `s`, `m`, `min`, `h` or `d`; "
        "milliseconds without a unit",
        "15m",
        scope=Scope.STREAM,
    ),
    Option(
        "wholeTransactions",
        "whether a batch ends where no transaction of a partition is split; it is larger than "
        "`maxOffsetsPerTrigger` if one transaction is",
        "false",
        scope=Scope.STREAM,
    ),
    Option("minPartitions", "about this many tasks, if fewer partitions have new records"),
    Option("maxRecordsPerPartition", "split a partition into tasks of at most this size"),
    Option(
        "maxTasks",
        "at most this many tasks, which read several partitions each if need be; without it, and "
        "without the two options above, as many as the session has slots if it has a "
        "`TransactionalSink`",
    ),
    Option("includeHeaders", "adds the column `headers`", "false"),
    Option("columns", "the columns to read, separated by commas; all if it is missing"),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        "how long a task waits for records that must exist",
        "120000",
    ),
    Option(
        "fetchOffset.numRetries",
        "how often to ask again if a broker reports an end before offsets already read",
        "3",
    ),
    Option("fetchOffset.retryIntervalMs", "the pause between two of these requests", "1000"),
    Option(
        "exchange",
        "`auto`: refuses to read if the options have a password and Spark sent it to another host "
        "unencrypted; `plain` allows it",
        "auto",
    ),
    Option("groupIdPrefix", "accepted but ignored: the source joins no consumer group"),
    Option(
        "partition.metadata.cache.ttl.ms",
        "accepted but ignored, with and without `kafka.`: partitions are requested every time",
    ),
)

KAFKA_OPTIONS: Final = (
    Option("kafka.bootstrap.servers", "the brokers to ask first, `host:port,host:port`; required"),
    Option(
        "kafka.group.id",
        "the group whose offsets `startingOffsets=committed` reads; the source commits nothing",
    ),
    # Up to 2 MiB the client reuses the memory of an answer (`wire/framing.py`). With 8 MiB a task
    # that reads records of 10 KB used 0.28 s of processor time for 200 MB, with this 0.21 s.
    Option(
        "kafka.max.partition.fetch.bytes",
        "the bytes of one partition in one answer of a broker; raise it if brokers are far away",
        "2000000",
    ),
)
"""Client options that mean something else here, or have another default."""

IGNORED_ALIAS: Final = "kafka.partition.metadata.cache.ttl.ms"
"""The name under which Spark's documentation has that option."""

NAMES: Final = spellings(SOURCE_OPTIONS) | {IGNORED_ALIAS: IGNORED_ALIAS}
"""The proper spelling of each name, which is case-insensitive."""
