"""What a sink is told: the client's options under their `kafka.` names, and the sink's own limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fencepost.base.failures import ConfigError
from fencepost.base.options import INT32_MAX, parse_whole, suggest
from fencepost.client.options import KNOWN, ClientOptions, read_options
from fencepost.records.compression import Codec

DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 300_000
"""How long a transaction may be open. Kafka's default of a minute is short for a batch of Spark's;
the brokers' default maximum is a quarter of an hour."""

DEFAULT_BATCH_BYTES: Final = 1_000_000
"""Records per Kafka batch, before compression: a little less than a broker takes by default. With
half of it workers and brokers need 8 to 15 % more processor time."""

REFUSED: Final = {
    "acks": "every batch is acknowledged by all replicas",
    "bootstrap.servers": "it is the first argument of the sink",
    "enable.idempotence": "the sink is always idempotent",
    "key.serializer": "keys are written as they are: cast the column",
    "partitioner.class": "rows are placed as Kafka's own producer does; use the partition "
    "column for another placement",
    "transactional.id": "it is the argument transactional_id",
    "value.serializer": "values are written as they are: cast the column",
}
"""Options of a producer that would be silently without effect, and what to do instead."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The options of a sink, read."""

    client: ClientOptions
    transaction_timeout_ms: int
    batch_bytes: int

    @property
    def codec(self) -> int:
        return Codec[self.client.compression_type.upper()]


def read_settings(bootstrap_servers: str, options: Mapping[str, Any]) -> SinkSettings:
    """ConfigError names the option and what would do."""
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
    """Options without their prefix; a name without it is a mistake, and we say which one was meant."""
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
