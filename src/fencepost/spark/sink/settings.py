"""The options of a sink: the client's, under their `kafka.` names, and the sink's own limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The parsed options of a sink."""

    client: ClientOptions
    transaction_timeout_ms: int
    batch_bytes: int

    @property
    def codec(self) -> int:
        """The compression codec of record batches."""
        return Codec[self.client.compression_type.upper()]


def read_settings(bootstrap_servers: str, options: Mapping[str, Any]) -> SinkSettings:
    """Parses the options; ConfigError names the option and valid values."""
    given = strip_kafka(options)
    for name, reason in REFUSED.items():
        if name in given:
            raise ConfigError(f"kafka.{name} cannot be set: {reason}")
    client = read_options(bootstrap_servers, given)
    return SinkSettings(
        client,
        _whole(given, "transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS),
        _whole(given, "batch.size", min(DEFAULT_BATCH_BYTES, client.max_request_bytes)),
    )


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
