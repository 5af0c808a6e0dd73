"""Positions in partitions, as users write them: --from, --to-datetime.

beginning, end             the ends of the log; earliest and latest mean the same
42                         an offset
-10                        the last ten offsets
2026-11-17T09:30:00Z       the first record that is not older; without a zone it is UTC
@1763371800000             the same in milliseconds since 1970
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.failures import FencepostError

if TYPE_CHECKING:
    from collections.abc import Collection

    from fencepost.base.ids import TopicPartition
    from fencepost.client.blocking import Cluster
    from fencepost.client.topics import PartitionOffsets

_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_WORDS: Final = {"beginning": "beginning", "earliest": "beginning", "end": "end", "latest": "end"}
FORMS: Final = (
    "beginning, end, an offset, -N for the last N, or a time such as 2026-11-17T09:30:00Z"
)


class Position(NamedTuple):
    """One of: an end of the log, an offset (negative: from the end), a time."""

    word: str | None = None
    offset: int | None = None
    time_ms: int | None = None


def parse_position(text: str) -> Position:
    """Reads a position; FencepostError lists the accepted forms."""
    if word := _WORDS.get(text):
        return Position(word=word)
    if _WHOLE.fullmatch(text):
        return Position(offset=int(text))
    return Position(time_ms=parse_time(text, FORMS))


def parse_time(text: str, forms: str = "a time such as 2026-11-17T09:30:00Z") -> int:
    """Reads a time as milliseconds since 1970."""
    if _WHOLE.fullmatch(text[1:]) and text.startswith("@") and text[1] != "-":
        return int(text[1:])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise FencepostError(f"{text!r} is not a position: give {forms}.") from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    # Negative times have other meanings on the wire: -1 is the end.
    return max(0, int(aware.timestamp() * 1_000))


def resolve(
    cluster: Cluster,
    offsets: dict[TopicPartition, PartitionOffsets],
    position: Position,
    isolation: str,
) -> dict[TopicPartition, int]:
    """Returns the offset of a position in each partition; offsets out of range stay as they are.

    With read_committed the end is the last stable offset: what comes after it will be seen.
    """
    ends = {each: found.end(isolation) for each, found in offsets.items()}
    if position.word == "beginning":
        return {each: found.log_start_offset for each, found in offsets.items()}
    if position.word == "end":
        return ends
    if position.offset is not None:
        wanted = position.offset
        return {
            each: wanted if wanted >= 0 else max(found.log_start_offset, ends[each] + wanted)
            for each, found in offsets.items()
        }
    assert position.time_ms is not None
    return offsets_at(cluster, offsets, position.time_ms)


def offsets_at(
    cluster: Cluster, offsets: dict[TopicPartition, PartitionOffsets], time_ms: int
) -> dict[TopicPartition, int]:
    """Returns the first offset that is not older than a time; the end if all records are."""
    found = cluster.list_offsets(dict.fromkeys(offsets, time_ms), isolation="read_uncommitted")
    return {
        each: found[each].offset if found[each].offset >= 0 else offsets[each].high_watermark
        for each in offsets
    }


def require_in_range(
    positions: dict[TopicPartition, int], offsets: dict[TopicPartition, PartitionOffsets]
) -> None:
    """FencepostError for an offset that its log does not have."""
    for partition, offset in positions.items():
        found = offsets[partition]
        if not found.log_start_offset <= offset <= found.high_watermark:
            raise FencepostError(
                f"Offset {offset} is not in {partition}, whose log "
                f"starts at {found.log_start_offset} and ends at {found.high_watermark}. Give "
                "--from beginning, or name partitions with --partition."
            )


def chosen_partitions(
    partitions: Collection[int], wanted: Collection[int], topic: str
) -> list[int]:
    """Returns the wanted partitions, or all; FencepostError for one that the topic lacks."""
    for index in wanted:
        if index not in partitions:
            raise FencepostError(
                f"Topic {topic!r} has no partition {index}; its partitions are 0 to "
                f"{max(partitions)}."
            )
    return sorted(set(wanted)) if wanted else sorted(partitions)
