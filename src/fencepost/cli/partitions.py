"""Partitions as arguments of commands: TOPIC:P."""

from __future__ import annotations

from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition

LARGEST_ID: Final = 2**31 - 1


def parse_partition(text: str) -> TopicPartition:
    """Reads TOPIC:P; FencepostError for anything else."""
    topic, separator, index = text.rpartition(":")
    if not separator or not topic or not index.isdecimal() or int(index) > LARGEST_ID:
        raise FencepostError(f"{text!r} is not a partition: write TOPIC:P, such as refunds:0.")
    return TopicPartition(topic, int(index))
