"""The options of a sink: the client's, under their `kafka.` names, and the sink's own limits.

docs/reference/spark-options.md is generated from the tables here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from fencepost.base.failures import ConfigError
from fencepost.base.options import INT32_MAX, parse_whole, suggest
from fencepost.client.options import KNOWN, ClientOptions, read_options
from fencepost.records.compression import Codec

DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 300_000
"""How long a transaction may be open. Kafka's default of a minute is short for a Spark batch; the
brokers' default maximum is 15 minutes."""

DEFAULT_BATCH_BYTES: Final = 1_000_000
"""Bytes of records per batch, before compression: a little less than a broker accepts by default.
With half of it, workers and brokers use 8 to 15 % more CPU time."""

MAX_ID_BYTES: Final = 1_000
"""Far more than a name needs. Kafka's own limit is that of its strings, 32,767 bytes, and the
group's name is longer."""

EXCHANGES: Final = ("auto", "plain")
"""How rows may go between executors on different hosts: see `engine/hosts.py`."""

REFUSED: Final = {
    "acks": "every batch is acknowledged by all replicas",
    "bootstrap.servers": "it is the first argument of the sink",
    "enable.idempotence": "the sink is always idempotent",
    "key.serializer": "keys are written as they are: cast the column",
    "partitioner.class": "rows are partitioned as by Kafka's own producer; use the partition "
    "column for other partitions",
    "transactional.id": "it is the argument transactional_id",
    "value.serializer": "values are written as they are: cast the column",
}
"""Producer options that would have no effect, and why."""


class SinkOption(NamedTuple):
    """An option of the sink that the client does not have, or of which it has another default."""

    name: str
    default: int
    meaning: str


TIMEOUT: Final = SinkOption(
    "transaction.timeout.ms",
    DEFAULT_TRANSACTION_TIMEOUT_MS,
    "how long a transaction may be open before the brokers abort it",
)
BATCH_SIZE: Final = SinkOption(
    "batch.size",
    DEFAULT_BATCH_BYTES,
    "bytes per record batch before compression; less if `kafka.max.request.size` is lower, and for "
    "topics with a lower `max.message.bytes`",
)
SINK_OPTIONS: Final = (TIMEOUT, BATCH_SIZE)

ARGUMENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bootstrap_servers": "the brokers to ask first, `host:port,host:port`",
        "transactional_id": "the name of this query's output: one per query, never changed; "
        "required",
        "topic": "one topic for all rows; None: the column `topic` names it",
        "ledger_topic": "the compacted topic that holds the ledger; None: `fencepost-ledger`",
        "checkpoint": "the query's checkpointLocation, which the sink needs on Spark Connect; in a "
        "classic session it is not used",
        "options": "the Kafka options below, as a mapping",
        "adopt": "write although the ledger is missing or belongs to another query; for one start, "
        "after you have checked the topics",
        "take_over": "the id of the query that this one continues with a new checkpoint",
        "allow_empty_state": "let a stateful query continue another one although its state is new",
        "may_skip": "accept a gap after the last batch in the ledger: the function leaves batches "
        "out",
        "commit_source_offsets": "None: commit them if all sources are topics of this cluster; "
        "True: refuse if they are not; False: never",
        "exchange": "`auto`: nothing travels between hosts in the clear unless Spark sends it so; "
        "`plain`: rows may go from executor to executor over unencrypted connections, and Spark "
        "may send passwords of the brokers in the clear",
        "write_timestamps": "write the column `timestamp` as the time of the records (CreateTime); "
        "otherwise it is ignored",
        "may_write_to_sources": "write to a topic that the query reads, although its output "
        "is then its input",
        "create_topics": "for trying out: create missing topics, for instance "
        '`{"partitions": 4}`; also `replication_factor` and `configs`. None: never',
        "max_attempts": "how often the sink tries the job of a batch",
        "on_step": "called with (step, batch id), for tests and logs; if it raises, the sink "
        "aborts the batch",
    }
)
"""What each argument of `TransactionalSink` means. Its signature has the defaults."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The parsed options of a sink."""

    client: ClientOptions
    transaction_timeout_ms: int
    batch_bytes: int
    is_plain: bool = False
    """Whether rows and passwords may travel between hosts in the clear."""
    write_timestamps: bool = False
    """Whether the column timestamp becomes the time of the records."""

    @property
    def codec(self) -> int:
        """The compression codec of record batches."""
        return Codec[self.client.compression_type.upper()]


def read_settings(
    bootstrap_servers: str,
    options: Mapping[str, Any],
    exchange: str = "auto",
    *,
    id_option: str = "the argument transactional_id",
) -> SinkSettings:
    """Parses the options; ConfigError names the option and valid values.

    `id_option`: what names the transactional id.
    """
    given = strip_kafka(options)
    refused = {**REFUSED, "transactional.id": f"it is {id_option}"}
    for name, reason in refused.items():
        if name in given:
            raise ConfigError(f"kafka.{name} cannot be set: {reason}")
    client = read_options(bootstrap_servers, given)
    return SinkSettings(
        client,
        _whole(given, TIMEOUT.name, TIMEOUT.default),
        _whole(given, BATCH_SIZE.name, min(BATCH_SIZE.default, client.max_request_bytes)),
        exchange == "plain",
    )


def checked_id(transactional_id: str | None) -> str:
    """The id, if it can be a record's key and part of a group's name."""
    if not transactional_id:
        raise ConfigError("transactional_id must be a name that only this query uses")
    try:
        size_bytes = len(transactional_id.encode("utf-8"))
    except UnicodeEncodeError as problem:
        raise ConfigError(
            f"transactional_id {transactional_id!a} has a character that is not Unicode text "
            f"({problem.reason}): choose a plain name"
        ) from None
    if size_bytes > MAX_ID_BYTES:
        raise ConfigError(
            f"transactional_id has {size_bytes} bytes, and brokers would not accept it: choose a "
            f"name of at most {MAX_ID_BYTES} bytes"
        )
    return transactional_id


def strip_kafka(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without their `kafka.` prefix; ConfigError suggests a name if it is missing."""
    stripped: dict[str, Any] = {}
    for name, value in options.items():
        if not name.lower().startswith("kafka."):
            raise ConfigError(f"{name!r} is not an option of the sink{_hint(name)}")
        stripped[name[len("kafka.") :].lower()] = value
    return stripped


def _hint(name: str) -> str:
    if name in KNOWN:
        return f": options of the Kafka client begin with kafka., so write kafka.{name}"
    return suggest(name, [f"kafka.{known}" for known in KNOWN])


def _whole(given: Mapping[str, Any], name: str, default: int) -> int:
    return parse_whole(f"kafka.{name}", given.get(name, default), least=1, most=INT32_MAX)
