"""Names for numbers and strings that must not be mixed up.

A topic id travels as its 16 raw bytes, because it is read from and written to the wire far more
often than it is shown to a person; `topic_id_text` gives the form that Kafka's tools print.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple, NewType

TopicId = NewType("TopicId", bytes)

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NO_NODE: Final = -1
ZERO_TOPIC_ID: Final = TopicId(bytes(16))

MAX_PRODUCER_EPOCH: Final = 32767
"""Kafka keeps Short.MAX for fencing: clients never hold it (section 2.4 of the protocol notes)."""
MAX_SEQUENCE: Final = 2**31 - 1

CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})


class TopicPartition(NamedTuple):
    """A topic and the index of one of its partitions; prints as Kafka names the folder."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def topic_id_text(topic_id: bytes) -> str:
    """The 22 characters by which Kafka's tools show a topic id."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")


def parse_topic_id(text: str) -> TopicId:
    """The 16 bytes behind what `topic_id_text` gave; ValueError for anything else."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as problem:
        raise ValueError(f"{text!r} is not a topic id") from problem
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a topic id: it has {len(raw)} bytes instead of 16")
    return TopicId(raw)


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, wrapping as a signed 32-bit integer."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def coordinator_partition(key: str, partition_count: int) -> int:
    """The partition of an internal topic that owns a group or a transactional id, as Kafka computes it."""
    value = java_string_hash(key)
    # Kafka's Utils.abs maps the one integer without a positive twin to 0.
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
