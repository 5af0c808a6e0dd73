"""Every option of the source but the client's: name, default, meaning.

`options.py` parses by this table, and docs/reference/spark-options.md is generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple


class Scope(Enum):
    """Which readers an option is for."""

    BOTH = "both"
    STREAM = "streams"
    """`spark.readStream`; without effect in batches."""
    BATCH = "batches"
    """`spark.read`; refused in streams."""


class SourceOption(NamedTuple):
    """One option, in its proper spelling."""

    name: str
    meaning: str
    default: str | None = None
    """The value that is parsed if the option is missing; None if there is none."""
    batch_default: str | None = None
    """The default in `spark.read`, where it is another one."""
    scope: Scope = Scope.BOTH

    def default_in(self, *, streaming: bool) -> str | None:
        """The default of one kind of reader."""
        return self.default if streaming or self.batch_default is None else self.batch_default


_ONE_OF_THREE: Final = "one of `subscribe`, `subscribePattern` and `assign` is required"

SOURCE_OPTIONS: Final = (
    SourceOption("subscribe", f"topics, separated by commas; {_ONE_OF_THREE}"),
    SourceOption(
        "subscribePattern",
        "a Python regular expression; topics whose name it matches, also in part",
    ),
    SourceOption("assign", 'partitions, `{"topic":[0,1]}`'),
    SourceOption(
        "startingOffsets",
        '`earliest`, `latest`, `committed` (by the group `kafka.group.id`), or `{"topic":{"0":23,'
        '"1":-2}}` with every partition, -2 for earliest and -1 for latest',
        "latest",
        batch_default="earliest",
    ),
    SourceOption(
        "startingOffsetsByTimestamp",
        '`{"topic":{"0":1700000000000}}`: the first record at or after this time; overrides '
        "`startingOffsets`",
    ),
    SourceOption(
        "startingTimestamp",
        "one time for all partitions, in milliseconds; overrides the two options above",
    ),
    SourceOption(
        "startingOffsetsByTimestampStrategy",
        "what to do if no record is that new: `error`, or start at `latest`",
        "error",
    ),
    SourceOption(
        "endingOffsets",
        '`latest`, or `{"topic":{"0":50,"1":-1}}` with offsets that exist, -1 for the end',
        "latest",
        scope=Scope.BATCH,
    ),
    SourceOption(
        "endingOffsetsByTimestamp",
        "where to end, by time; the end of the partition if no record is that new",
        scope=Scope.BATCH,
    ),
    SourceOption(
        "endingTimestamp",
        "one time for all partitions; overrides the two options above",
        scope=Scope.BATCH,
    ),
    SourceOption(
        "failOnDataLoss",
        "whether missing records and topics stop the query, or only log a warning",
        "true",
    ),
    SourceOption(
        "createTopics",
        "creates the topics of `subscribe` or `assign` that do not exist, with this many "
        "partitions: for trying out",
    ),
    SourceOption(
        "maxOffsetsPerTrigger",
        "offsets per batch, divided in proportion to the backlog of each partition",
        scope=Scope.STREAM,
    ),
    SourceOption(
        "minOffsetsPerTrigger",
        "wait for this many offsets before a batch, at most for `maxTriggerDelay`",
        scope=Scope.STREAM,
    ),
    SourceOption(
        "maxTriggerDelay",
        "the longest wait for `minOffsetsPerTrigger`, in `us`, `ms`, `s`, `m`, `min`, `h` or `d`; "
        "milliseconds without a unit",
        "15m",
        scope=Scope.STREAM,
    ),
    SourceOption(
        "wholeTransactions",
        "whether a batch ends where no transaction of a partition is split; it is larger than "
        "`maxOffsetsPerTrigger` if one transaction is",
        "false",
        scope=Scope.STREAM,
    ),
    SourceOption("minPartitions", "about this many tasks, if fewer partitions have new records"),
    SourceOption("maxRecordsPerPartition", "split a partition into tasks of at most this size"),
    SourceOption(
        "maxTasks",
        "at most this many tasks, which read several partitions each if need be; without it, and "
        "without the two options above, as many as the session has slots if it has a "
        "`TransactionalSink`",
    ),
    SourceOption("includeHeaders", "adds the column `headers`", "false"),
    SourceOption("columns", "the columns to read, separated by commas; all if it is missing"),
    SourceOption(
        "kafkaConsumer.pollTimeoutMs",
        "how long a task waits for records that must exist",
        "120000",
    ),
    SourceOption(
        "fetchOffset.numRetries",
        "how often to ask again if a broker reports an end before offsets already read",
        "3",
    ),
    SourceOption("fetchOffset.retryIntervalMs", "the pause between two of these requests", "1000"),
    SourceOption("groupIdPrefix", "accepted but ignored: the source joins no consumer group"),
    SourceOption(
        "partition.metadata.cache.ttl.ms",
        "accepted but ignored, with and without `kafka.`: partitions are requested every time",
    ),
)

KAFKA_OPTIONS: Final = (
    SourceOption(
        "kafka.bootstrap.servers", "the brokers to ask first, `host:port,host:port`; required"
    ),
    SourceOption(
        "kafka.group.id",
        "the group whose offsets `startingOffsets=committed` reads; the source commits nothing",
    ),
    # Up to 2 MiB the client reuses the memory of an answer (`wire/framing.py`). With 8 MiB a task
    # that reads records of 10 KB used 0.28 s of processor time for 200 MB, with this 0.21 s.
    SourceOption(
        "kafka.max.partition.fetch.bytes",
        "the bytes of one partition in one answer of a broker; raise it if brokers are far away",
        "2000000",
    ),
)
"""Client options that mean something else here, or have another default."""

IGNORED_ALIAS: Final = "kafka.partition.metadata.cache.ttl.ms"
"""The name under which Spark's documentation has that option."""

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {name.lower(): name for name in (*(option.name for option in SOURCE_OPTIONS), IGNORED_ALIAS)}
)
"""The proper spelling of each name, which is case-insensitive."""
