"""Looks for the markers of a story in the logs of its partitions.

No proxy sees the requests between brokers that write markers, but a reader of the partition gets
them: control batches with the producer id, the outcome, and the broker's time in milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.base.ids import TopicPartition
from fencepost.forensics.tap.swimlane.story import MarkerSeen, Story
from fencepost.records.control import read_marker

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster

MAX_READ_BYTES: Final = 256 * 1024 * 1024
"""What is read of one partition; markers beyond it are inferred."""
_SLACK_MS: Final = 60_000
"""Markers may follow the last request: the coordinator aborts after a timeout."""


def find_markers(cluster: Cluster, story: Story) -> list[MarkerSeen]:
    """Returns the markers in the partitions that the trace saw written.

    The inferred ones stay where nothing was found.
    """
    found: list[MarkerSeen] = []
    for name, broker in story.leaders.items():
        topic, _, index = name.rpartition("-")
        found += _in_partition(cluster, story, TopicPartition(topic, int(index)), broker)
    seen = {marker.partition for marker in found}
    rest = [marker for marker in story.markers if marker.partition not in seen]
    return sorted([*found, *rest], key=lambda marker: marker.time_us)


def _in_partition(
    cluster: Cluster, story: Story, partition: TopicPartition, broker: str
) -> list[MarkerSeen]:
    start_ms = story.calls[0].time_us // 1000
    end_ms = (story.calls[-1].end_us or story.calls[-1].time_us) // 1000 + _SLACK_MS
    offset = cluster.list_offsets({partition: start_ms})[partition].offset
    last = cluster.list_offsets({partition: -1}, isolation="read_uncommitted")[partition].offset
    found: list[MarkerSeen] = []
    read_bytes = 0
    while 0 <= offset < last and read_bytes < MAX_READ_BYTES:
        fetched = cluster.fetch({partition: offset}, isolation="read_uncommitted")[partition]
        for batch in fetched.batches:
            read_bytes += batch.size_bytes
            marker = read_marker(batch) if batch.producer_id in story.producer_ids else None
            if marker is not None and start_ms <= batch.max_timestamp <= end_ms:
                at_us = _after_its_request(story, batch.max_timestamp)
                found.append(MarkerSeen(at_us, broker, str(partition), marker.commit, "log"))
        if fetched.next_offset <= offset:
            break
        offset = fetched.next_offset
    return found


def _after_its_request(story: Story, time_ms: int) -> int:
    """The time of a marker; within its millisecond, after the request that it belongs to."""
    ends = [call.time_us for call in story.calls if call.api in ("EndTxn", "InitProducerId")]
    return max([time_ms * 1000, *(end + 1 for end in ends if end // 1000 == time_ms)])
