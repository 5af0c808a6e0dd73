"""Fixes the offsets of an audit, so that a live pipeline shows no false findings.

Theory of operation. Everything grows while the audit looks, so the order of the requests decides
what can be concluded:

    1  which inputs must have outputs: those below the offsets that the group has committed; or
       those older than `until`; or, with neither, those in the log now. In the last case the
       audit waits for the grace period, and judges only inputs before the last one of their
       partition that has an output.
    2  the high watermarks of the outputs. Whatever belongs to step 1 has been written below them,
       but the markers of its transaction may be on their way. The audit waits a little for the last
       stable offsets to pass them. Records that are still open then are `undecided`: they are no
       outputs, and their inputs are not judged.
    3  the group's offsets again. A transaction that is visible in step 2 has committed its offsets,
       and the request waits for their marker. An output of an input above them is `ahead`.
    4  the last stable offsets of the inputs: all inputs of the outputs of step 2 are below them.

A table is read as a whole in the step that fixes its side (`tables.py`): outputs in step 2, inputs
in step 4; which inputs must have outputs is known from step 1 on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.failures import ConfigError
from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition
from fencepost.base.options import suggest
from fencepost.client.admin import ResourceType
from fencepost.client.failures import Refused
from fencepost.client.reading import EARLIEST, LATEST
from fencepost.spark.auditing.question import Question

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster
    from fencepost.spark.auditing.tables import Rows, TableReader

Sleep = Callable[[float], None]
Offsets = dict[TopicPartition, int]

MARKER_WAIT_SECONDS: Final = 5.0
"""How long the audit waits for markers: they follow a commit within milliseconds, unless something
is wrong."""
_POLL_SECONDS: Final = 0.05


class Place(NamedTuple):
    """A partition, and which of its offsets are read. Its number is its index in `Bounds`."""

    partition: TopicPartition
    slot: int
    """Which set of outputs it belongs to; -1 for inputs."""
    start: int
    settled: int
    """Records below are decided."""
    end: int
    topic_id: bytes | None
    is_table: bool = False
    """Whether it is a table, whose rows have numbers for offsets."""

    @property
    def is_input(self) -> bool:
        """Whether it is a partition of an input topic."""
        return self.slot < 0


@dataclass(frozen=True, slots=True)
class OffsetProblem:
    """A committed offset that does not fit its partition."""

    partition: TopicPartition
    committed: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an audit reads and judges; all offsets are exclusive ends."""

    places: tuple[Place, ...]
    """Inputs first, each side by topic and partition."""
    required: tuple[int, ...]
    """For each input place: inputs below this offset must have outputs."""
    is_certain: bool
    """Whether the group or the user says that these inputs were processed. If not, only those
    before the last one with an output are judged."""
    committed: tuple[int, ...] | None
    """For each input place what the group has committed after the outputs were fixed."""
    problems: tuple[OffsetProblem, ...] = ()
    compacted: frozenset[str] = frozenset()
    tables: Mapping[int, Rows] = field(default_factory=dict)
    """The rows of each place that is a table."""
    notes: tuple[str, ...] = ()
    """What was read of tables, and when."""

    @property
    def inputs(self) -> tuple[Place, ...]:
        """The input partitions."""
        return tuple(place for place in self.places if place.is_input)

    @property
    def outputs(self) -> tuple[Place, ...]:
        """The output partitions."""
        return tuple(place for place in self.places if not place.is_input)

    @property
    def offsets(self) -> int:
        """How many offsets are read."""
        return sum(max(place.end - place.start, 0) for place in self.places)


def fix_bounds(
    cluster: Cluster,
    question: Question,
    sleep: Sleep = time.sleep,
    tables: TableReader | None = None,
) -> Bounds:
    """Fixes all offsets, in the order that the module describes."""
    _require_topics(cluster, question.topics)
    if tables is not None:
        tables.begin()
    required = _required(cluster, question)
    if question.waits:
        sleep(question.grace_ms / 1000)
    written = [] if tables is None else tables.read(is_input=False)
    outputs = _output_places(cluster, question, sleep)
    starts = _listed(cluster, _partitions(cluster, question.input.topics), EARLIEST)
    committed = _committed(cluster, question, list(starts))
    inputs = _input_places(cluster, question)
    read = [] if tables is None else tables.read(is_input=True)
    places = (*inputs, *_table_places(question, read), *outputs, *_table_places(question, written))
    due = [min(required.get(p.partition, p.start), p.end) for p in inputs]
    return Bounds(
        places=places,
        required=(*due, *(rows.due for rows in read)),
        is_certain=question.group is not None or question.until_ms is not None,
        committed=None
        if committed is None
        else tuple(committed.get(place.partition, 0) for place in inputs),
        problems=() if committed is None else _problems(cluster, committed, starts),
        compacted=_compacted(cluster, question.topics),
        tables=dict(
            zip((n for n, p in enumerate(places) if p.is_table), (*read, *written), strict=True)
        ),
        notes=() if tables is None else tuple(_moments(tables)),
    )


def _table_places(question: Question, tables: Iterable[Rows]) -> list[Place]:
    return [
        Place(
            TopicPartition(rows.table, 0),
            -1 if rows.is_input else question.slot_of(rows.table, is_table=True),
            0,
            rows.size,
            rows.size,
            None,
            is_table=True,
        )
        for rows in tables
    ]


def _moments(tables: TableReader) -> Iterator[str]:
    for table, moment in tables.moments.items():
        yield f"{table} was read as it was at {moment:%Y-%m-%d %H:%M:%S} UTC."


def _require_topics(cluster: Cluster, topics: Collection[str]) -> None:
    if not topics:
        return
    found = cluster.metadata(sorted(topics), missing_ok=True).topics
    for name in topics:
        if name not in found:
            known = cluster.metadata().topics
            raise ConfigError(f"the cluster has no topic {name!r}{suggest(name, list(known))}")


def _partitions(cluster: Cluster, topics: Collection[str]) -> list[TopicPartition]:
    if not topics:
        return []
    views = cluster.metadata(sorted(topics)).topics
    return [TopicPartition(name, p.index) for name in topics for p in views[name].partitions]


def _listed(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    time_ms: int,
    isolation: str = "read_committed",
) -> Offsets:
    if not partitions:
        return {}
    found = cluster.list_offsets(dict.fromkeys(partitions, time_ms), isolation=isolation)
    return {tp: listed.offset for tp, listed in found.items()}


def _required(cluster: Cluster, question: Question) -> Offsets:
    """Step 1: below which offset inputs must have outputs."""
    partitions = _partitions(cluster, question.input.topics)
    if question.group is not None:
        committed = _committed(cluster, question, partitions)
        if not committed:
            topics = ", ".join(question.input.topics)
            raise ConfigError(
                f"group {question.group!r} has no committed offset of {topics}:"
                " correct the group (`fencepost group list` lists all), or leave it out"
            )
        return committed
    ends = _listed(cluster, partitions, LATEST)
    if question.until_ms is None or not partitions:
        return ends
    by_time = _listed(cluster, partitions, question.until_ms)
    return {tp: ends[tp] if offset < 0 else offset for tp, offset in by_time.items()}


def _committed(
    cluster: Cluster, question: Question, partitions: Collection[TopicPartition]
) -> Offsets | None:
    if question.group is None:
        return None
    committed = cluster.offset_fetch(question.group, partitions)
    return {tp: value.offset for tp, value in committed.items()}


def _output_places(cluster: Cluster, question: Question, sleep: Sleep) -> list[Place]:
    """Step 2: what of the outputs is read, and what of that is decided."""
    partitions = _partitions(cluster, question.output.topics)
    written = _listed(cluster, partitions, LATEST, "read_uncommitted")
    stable = _listed(cluster, partitions, LATEST)
    deadline = time.monotonic() + MARKER_WAIT_SECONDS
    while any(stable[tp] < written[tp] for tp in partitions) and time.monotonic() < deadline:
        sleep(_POLL_SECONDS)
        stable = _listed(cluster, partitions, LATEST)
    ends = {tp: max(stable[tp], written[tp]) for tp in partitions}
    return _places(cluster, question, stable, ends)


def _input_places(cluster: Cluster, question: Question) -> list[Place]:
    """Step 4: all inputs that an output can have."""
    ends = _listed(cluster, _partitions(cluster, question.input.topics), LATEST)
    return _places(cluster, question, ends, ends)


def _places(cluster: Cluster, question: Question, settled: Offsets, ends: Offsets) -> list[Place]:
    if not ends:
        return []
    views = cluster.metadata(sorted({tp.topic for tp in ends})).topics
    starts = _listed(cluster, list(ends), EARLIEST)
    places = []
    for tp, end in ends.items():
        found = views[tp.topic].topic_id
        topic_id = None if found == ZERO_TOPIC_ID else found
        slot, start = question.slot_of(tp.topic), min(starts[tp], end)
        places.append(Place(tp, slot, start, settled[tp], end, topic_id))
    return places


def _problems(cluster: Cluster, committed: Offsets, starts: Offsets) -> tuple[OffsetProblem, ...]:
    """Committed offsets that their partition cannot have. `starts` is older than `committed`."""
    ends = _listed(cluster, list(committed), LATEST, "read_uncommitted")
    found = []
    for tp, offset in sorted(committed.items()):
        if offset > ends[tp]:
            sentence = f"the partition ends at {ends[tp]}: it was truncated or created again"
        elif offset < starts[tp]:
            sentence = f"the log starts at {starts[tp]}: the inputs between were deleted unread"
        else:
            continue
        found.append(OffsetProblem(tp, offset, sentence))
    return tuple(found)


def _compacted(cluster: Cluster, topics: Collection[str]) -> frozenset[str]:
    """The topics whose records may vanish one by one; a topic that does not say so is not one."""
    name = "cleanup.policy"
    found = set()
    for topic in topics:
        try:
            settings = cluster.describe_configs(ResourceType.TOPIC, topic, [name])
        except Refused:
            continue
        if name in settings and "compact" in (settings[name].value or ""):
            found.add(topic)
    return frozenset(found)
