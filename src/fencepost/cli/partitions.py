"""Partitions as arguments of commands: TOPIC-P, as all output and folders name them, or TOPIC:P.

No topic has a colon in its name, so TOPIC:P has one meaning. Many have hyphens. The last one
counts: orders-3 is partition 3 of orders, and orders-3-0 is partition 0 of orders-3. But if there
is a topic orders-3, it may be meant, too: a command that needs a partition then asks for the colon,
and one that takes a topic or a partition (TOPIC[-P]) takes the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.base.options import INT32_MAX

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster

_MOST_DIGITS: Final = len(str(INT32_MAX))


def parse_partition(text: str) -> TopicPartition:
    """Reads TOPIC:P or TOPIC-P; FencepostError for anything else."""
    found = _read(text)
    if found is None:
        raise FencepostError(
            f"{text!r} is not a partition: write TOPIC-P or TOPIC:P, such as refunds-0."
        )
    return found


def refuse_topic(cluster: Cluster, text: str) -> None:
    """Raises FencepostError if TOPIC-P, as it was written, is the name of a topic."""
    if ":" in text or cluster.find_topic(text) is None:
        return
    other = parse_partition(text)
    raise FencepostError(
        f"{text!r} is a topic: name one of its partitions, such as {text}:0. Partition "
        f"{other.partition} of {other.topic!r} is {other.topic}:{other.partition}."
    )


def topic_or_partition(cluster: Cluster, text: str) -> tuple[str, int | None]:
    """Reads TOPIC, TOPIC:P or TOPIC-P; without a colon, a topic of this name comes first."""
    found = parse_partition(text) if ":" in text else _read(text)
    if found is None:
        return text, None
    if ":" in text:
        return found
    if cluster.find_topic(text) is None and cluster.find_topic(found.topic) is not None:
        return found
    return text, None


def _read(text: str) -> TopicPartition | None:
    topic, _, index = text.rpartition(":" if ":" in text else "-")
    if not topic or ":" in topic or "/" in topic:
        return None
    # Not `isdecimal` alone: it is true for the digits of all scripts.
    if not index.isascii() or not index.isdecimal() or len(index) > _MOST_DIGITS:
        return None
    return TopicPartition(topic, int(index)) if int(index) <= INT32_MAX else None
