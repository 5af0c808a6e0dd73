"""Source offsets in the JSON that Spark's own Kafka source writes: {"topic": {"0": 42}}.

Spark compares offsets as strings, so keys are always written in order: topics by name, partitions
by number. Keys that begin with "@" are ours, because no topic can have such a name:

    "@start": {...}, "@initial": true      in the first batch only, see `source/stream_reader.py`
    "@id:TOPIC:ID": {}                     the id of a topic, to notice one that was created again
    "@gone:TOPIC:ID:0=42,1=7": {}          offsets of partitions that are missing; ID may be empty

The last two carry everything in the key and an empty object as the value. Spark's own source reads
the JSON as a map from topics to partitions, and drops these as topics without partitions. So both
sources can continue each other's checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost.base.ids import TopicPartition, parse_topic_id, topic_id_text

START: Final = "@start"
INITIAL: Final = "@initial"
_ID: Final = "@id"
_GONE: Final = "@gone"

PartitionOffsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """How far a query has read, and which topics those offsets belong to."""

    offsets: PartitionOffsets
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)
    """Without topics that Spark's own source has read; empty on brokers without topic ids."""
    gone: PartitionOffsets = field(default_factory=dict)
    """Offsets of partitions that are missing now. If one comes back in the same topic, reading
    resumes there."""

    @property
    def reached(self) -> PartitionOffsets:
        """How far every partition was read, missing or not."""
        return self.offsets | self.gone

    @property
    def id_texts(self) -> dict[str, str]:
        """The ids of the topics, as Kafka's tools show them."""
        return {topic: topic_id_text(self.topic_ids[topic]) for topic in sorted(self.topic_ids)}

    def recreated(self, topic_ids: Mapping[str, bytes]) -> set[str]:
        """Topics that have another id now, so that their offsets here are void."""
        return {
            topic
            for topic, known in self.topic_ids.items()
            if topic in topic_ids and topic_ids[topic] != known
        }

    def layout(self) -> dict[str, Any]:
        """The JSON form."""
        topics = {topic for topic, _ in self.gone}
        ids = self.id_texts
        written: dict[str, Any] = {
            f"{_ID}:{topic}:{ids[topic]}": {} for topic in ids if topic not in topics
        }
        for topic, partitions in to_layout(self.gone).items():
            left = ",".join(f"{index}={offset}" for index, offset in partitions.items())
            written[f"{_GONE}:{topic}:{ids.get(topic, '')}:{left}"] = {}
        return written | to_layout(self.offsets)


def parse_offsets(layout: Any) -> SourceOffsets:
    """Parses the JSON of `SourceOffsets.layout` or of Spark's own source; ValueError otherwise."""
    offsets = from_layout(layout)
    topic_ids: dict[str, bytes] = {}
    gone: PartitionOffsets = {}
    for key in layout:
        kind, *words = key.split(":")
        if kind == _ID and len(words) == 2:
            topic_ids[words[0]] = parse_topic_id(words[1])
        elif kind == _GONE and len(words) == 3:
            topic, text, left = words
            if text:
                topic_ids[topic] = parse_topic_id(text)
            for pair in left.split(","):
                index, _, offset = pair.partition("=")
                gone[TopicPartition(topic, int(index))] = int(offset)
    return SourceOffsets(offsets, topic_ids, gone)


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


def parse_all(jsons: Iterable[str]) -> SourceOffsets | None:
    """All sources of a query together; None if one is not Kafka's, or two share a partition."""
    found = SourceOffsets({})
    for text in jsons:
        try:
            one = parse_offsets(json.loads(text))
        except ValueError:
            return None
        if found.reached.keys() & one.reached.keys():
            return None
        found = SourceOffsets(
            found.offsets | one.offsets, {**found.topic_ids, **one.topic_ids}, found.gone | one.gone
        )
    return found if found.offsets else None


def parse_sources(jsons: Iterable[str]) -> PartitionOffsets | None:
    """The offsets alone, also of partitions that are missing now."""
    found = parse_all(jsons)
    return None if found is None else found.reached


def parse_starts(jsons: Iterable[str], files: Iterable[str] = ()) -> PartitionOffsets | None:
    """The start of a query's first batch; None if some source does not show where it began.

    Our source has it in its end offsets, and Spark's own source in the file sources/N/0 of the
    checkpoint (`files`). Other sources have such a file too, with something else in it.
    """
    starts: list[str] = []
    others = 0
    for text in jsons:
        try:
            starts.append(json.dumps(json.loads(text)[START]))
        except (ValueError, KeyError, TypeError):
            others += 1
    found = [start for start in map(_initial_in, files) if start is not None]
    return parse_sources([*starts, *found]) if len(found) == others else None


def _initial_in(text: str) -> str | None:
    """The offsets in a file of Spark's own source: a zero byte, "v1", and a line of JSON."""
    version, _, offsets = text.lstrip("\0").partition("\n")
    try:
        is_known = version == "v1" and bool(from_layout(json.loads(offsets)))
    except ValueError:
        return None
    return offsets if is_known else None
