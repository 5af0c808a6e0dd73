"""Source offsets in the JSON that Spark's own Kafka source writes: {"topic": {"0": 42}}.

Spark compares offsets as strings, so keys are always written in order: topics by name, partitions by number. A key
that begins with "@" is ours ("@start", see `stream.py`): no topic can be called that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fencepost.base.ids import TopicPartition

START: Final = "@start"
INITIAL: Final = "@initial"

PartitionOffsets = dict[TopicPartition, int]


def to_layout(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Offsets by topic and partition, in the order in which they are written."""
    layout: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        layout.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return layout


def from_layout(layout: Any) -> PartitionOffsets:
    """The reverse of `to_layout`; ValueError for anything that is not such offsets."""
    if not isinstance(layout, Mapping):
        raise ValueError(f'offsets look like {{"topic": {{"0": 42}}}}, not like {layout!r}')
    offsets: PartitionOffsets = {}
    for topic, partitions in layout.items():
        if topic.startswith("@"):
            continue
        if not isinstance(partitions, Mapping):
            raise ValueError(f"the offsets of topic {topic!r} are not a mapping of partitions")
        for partition, offset in partitions.items():
            if (
                not str(partition).isdecimal()
                or isinstance(offset, bool)
                or not isinstance(offset, int)
            ):
                raise ValueError(
                    f"{topic}-{partition}: {offset!r} is not the offset of a partition"
                )
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def parse_sources(jsons: Iterable[str]) -> PartitionOffsets | None:
    """The offsets of all sources of a query together; None when one is not a set of topics, or two read the same."""
    found: PartitionOffsets = {}
    for text in jsons:
        try:
            offsets = from_layout(json.loads(text))
        except ValueError:
            return None
        if found.keys() & offsets.keys():
            return None
        found.update(offsets)
    return found or None


def parse_starts(jsons: Iterable[str]) -> PartitionOffsets | None:
    """Where the first batch of a query begins, from its end offsets; None unless all sources are ours."""
    try:
        starts = [json.dumps(json.loads(text)[START]) for text in jsons]
    except (ValueError, KeyError, TypeError):
        return None
    return parse_sources(starts)
