"""The ends and the producers of many partitions, as far as their leaders answer.

The ends are read in two requests per broker, whatever the number of partitions: ListOffsets for the
high watermark, then a Fetch from there. That Fetch returns no records, or few if some were written
in between, but log start, high watermark and last stable offset of one moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import ActiveProducer, producers_request, read_producers
from fencepost.client.calls import Core, Outcome
from fencepost.client.reading import (
    ISOLATION,
    LATEST,
    fetch_topics,
    offsets_request,
    read_offsets,
)
from fencepost.client.steps import Reply, Steps
from fencepost.client.survey.asking import Missing, ask_leaders
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.fetch import FetchRequest
from fencepost.wire.forms.list_offsets import ListOffsetsRequest

READ_UNCOMMITTED: Final = ISOLATION["read_uncommitted"]
READ_COMMITTED: Final = ISOLATION["read_committed"]
_NAMES: Final = 12
"""The last version of Fetch that names topics."""


class PartitionEnds(NamedTuple):
    """The offsets of one partition, of one moment."""

    log_start: int | None
    """None if the caller may not read the topic."""
    high_watermark: int
    last_stable_offset: int


def partition_ends(
    core: Core, partitions: Collection[TopicPartition]
) -> Steps[dict[TopicPartition, PartitionEnds | Missing]]:
    """Returns log start, high watermark and last stable offset of each partition.

    Without READ on its topic, the two ends come from ListOffsets, which needs only DESCRIBE.
    """
    watermarks = yield from _latest(core, partitions, READ_UNCOMMITTED)
    known = {p: offset for p, offset in watermarks.items() if not isinstance(offset, Missing)}
    fetched = yield from ask_leaders(
        core, ApiKey.FETCH, known, _fetch_request, _read_ends, at_most=_NAMES
    )
    unreadable = [p for p, ends in fetched.items() if isinstance(ends, Missing) and ends.code]
    stable = yield from _latest(core, unreadable, READ_COMMITTED)
    found: dict[TopicPartition, PartitionEnds | Missing] = {}
    for partition, watermark in watermarks.items():
        ends = watermark if isinstance(watermark, Missing) else fetched[partition]
        last_stable = stable.get(partition)
        if isinstance(last_stable, int) and isinstance(watermark, int):
            # Requested later than the high watermark, so it may be higher.
            ends = PartitionEnds(None, max(watermark, last_stable), last_stable)
        found[partition] = ends
    return found


def _latest(
    core: Core, partitions: Collection[TopicPartition], isolation: int
) -> Steps[dict[TopicPartition, int | Missing]]:
    def build(wanted: Mapping[TopicPartition, int]) -> ListOffsetsRequest:
        return offsets_request(wanted, isolation)

    wanted = dict.fromkeys(partitions, LATEST)
    found = yield from ask_leaders(core, ApiKey.LIST_OFFSETS, wanted, build, read_offsets)
    return {p: each if isinstance(each, Missing) else each.offset for p, each in found.items()}


def _fetch_request(offsets: Mapping[TopicPartition, int]) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        isolation_level=READ_COMMITTED,
        topics=fetch_topics(offsets, 1, {}),
    )


def _read_ends(reply: Reply) -> Iterable[Outcome[PartitionEnds]]:
    for topic in reply.form.responses:
        for p in topic.partitions:
            ends = PartitionEnds(p.log_start_offset, p.high_watermark, p.last_stable_offset)
            yield Outcome(TopicPartition(topic.topic, p.partition_index), p.error_code, ends)


def producers_of(
    core: Core, partitions: Collection[TopicPartition]
) -> Steps[dict[TopicPartition, list[ActiveProducer] | Missing]]:
    """Returns the producers of each partition."""
    wanted = dict.fromkeys(partitions)
    api = ApiKey.DESCRIBE_PRODUCERS
    return (yield from ask_leaders(core, api, wanted, producers_request, read_producers))
