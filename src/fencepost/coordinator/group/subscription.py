"""Reads the only part of a consumer's metadata that the coordinator uses: its topics.

The bytes of a protocol belong to the clients. For protocol type "consumer" Kafka reads the prefix
that every version shares: int16 version, then an array (int32 count) of topic names (STRING). It
protects the offsets of subscribed topics from deletion and expiry. Malformed bytes are not an
error; the topics are then unknown.
"""

from __future__ import annotations

from typing import Final

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


def read_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of one member's subscription; None for bytes that are not a subscription."""
    count = int.from_bytes(metadata[2:6], "big", signed=True)
    # A name needs at least its two bytes of length, so a false count is detected before allocating.
    if len(metadata) < 6 or not 0 <= count <= (len(metadata) - 6) // 2:
        return None
    topics = set()
    position = 6
    for _ in range(count):
        start = position + 2
        position = start + int.from_bytes(metadata[position:start], "big", signed=True)
        if not start <= position <= len(metadata):
            return None
        topics.add(metadata[start:position].decode("utf-8", "replace"))
    return frozenset(topics)
