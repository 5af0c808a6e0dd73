"""Ids: topics, partitions, producers, and the internal topics' names.

A topic id is kept as its 16 raw bytes, because it is read and written far more often than it is
printed; `topic_id_text` returns the form that Kafka's tools print.
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
"""Kafka reserves Short.MAX for fencing; clients never get it."""
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
    """A topic id as the 22 characters that Kafka's tools print."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")


def parse_topic_id(text: str) -> TopicId:
    """The topic id that `topic_id_text` printed; ValueError for any other text."""
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
    """The partition of an internal topic that owns a group or transactional id, as in Kafka."""
    value = java_string_hash(key)
    # Kafka's Utils.abs maps Integer.MIN_VALUE, which has no positive counterpart, to 0.
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
