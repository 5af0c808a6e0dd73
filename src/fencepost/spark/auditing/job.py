"""The stages of an audit on Spark.

    spans -> read and pack -> exchange by hash -> match -> exchange by portion -> order -> driver

Both exchanges move packed rows, each to the task that its slot names. The driver gets counts, and
up to a limit the findings themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from fencepost.spark.auditing.matching import FINDING, PAIR, Array, Kind, Records, Rules, match
from fencepost.spark.auditing.ordering import Reach, carried_over, late_in, split_portions
from fencepost.spark.auditing.reading import (
    PACKED_DDL,
    RECORD_WORDS,
    RECORDS,
    STATISTICS,
    UNDECIDED,
    Reading,
    Statistics,
    packed_rows,
)
from fencepost.spark.failures import AuditFailed
from fencepost.spark.sentences import sentence_of
from fencepost.spark.ways.slots import bring_to_slots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MATCHES: Final = 3
FINDINGS: Final = 4
PAIRS: Final = 5
TALLY: Final = 6
REACHES: Final = 7

Batches = Iterator[pa.RecordBatch]
Packed = tuple[int, int, int, int, bytes]


class Tally(NamedTuple):
    """What one task of the second or third stage counted."""

    waiting: int
    held_back: int
    repeated: int
    kinds: tuple[int, ...]
    """The findings of each kind."""
    is_cut: bool
    """Whether not all of them are among the rows."""


@dataclass(slots=True)
class Summary:
    """All that the driver gets."""

    statistics: list[Statistics]
    pairs: Array
    findings: Array
    """The first ones of each task."""
    waiting: int
    held_back: int
    repeated: int
    counts: dict[Kind, int]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Job:
    """One audit, ready to run."""

    reading: Reading
    rules: Rules
    judges_order: bool

    def run(self, spark: SparkSession, kept: int) -> Summary:
        """Runs all stages. Up to `kept` findings of each kind come from each task."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            rows = self.rows(spark, kept).collect()
        except (PySparkException, Py4JJavaError) as problem:
            raise AuditFailed(
                f"the audit did not finish, and nothing was changed: {sentence_of(problem)}"
            ) from problem
        return summarize(
            (row.kind, row.slot, row.place, row.first, bytes(row.data)) for row in rows
        )

    def rows(self, spark: SparkSession, kept: int | None) -> DataFrame:
        """The packed rows of the last stage."""
        reading, rules, judges_order = self.reading, self.rules, self.judges_order
        count = len(reading.spans)
        numbers = spark.range(0, count, 1, max(count, 1))
        # Small closures: what a task needs is pickled with them.
        packed = numbers.mapInArrow(_reader(reading), PACKED_DDL)
        matched = bring_to_slots(packed, reading.buckets).mapInArrow(
            _matcher(rules, reading.buckets, kept, judges_order), PACKED_DDL
        )
        if not judges_order:
            return matched
        return bring_to_slots(matched, reading.buckets).mapInArrow(_orderer(kept), PACKED_DDL)


def _reader(reading: Reading) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from reading.packed(number)

    return read


def _matcher(
    rules: Rules, buckets: int, kept: int | None, keeps_matches: bool
) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        rows, rest = _divided(batches, (RECORDS, UNDECIDED))
        if rest:
            yield packed_rows(rest)
        if rows:
            yield packed_rows(list(_matched_rows(rows, rules, buckets, kept, keeps_matches)))

    return run


def _orderer(kept: int | None) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        rows, rest = _divided(batches, (MATCHES,))
        if rest:
            yield packed_rows(rest)
        if rows:
            yield packed_rows(list(_ordered_rows(rows, kept)))

    return run


def _divided(batches: Batches, wanted: tuple[int, ...]) -> tuple[list[Packed], list[Packed]]:
    """The rows of these kinds, and the others."""
    chosen: list[Packed] = []
    rest: list[Packed] = []
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            (chosen if row[0] in wanted else rest).append(row)
    return chosen, rest


def _matched_rows(
    rows: list[Packed], rules: Rules, buckets: int, kept: int | None, keeps_matches: bool
) -> Iterator[Packed]:
    outcome = match(unpack_records(rows), rules)
    here = rows[0][1]
    yield from _finding_rows(
        outcome.findings, here, kept, (outcome.waiting, outcome.held_back, outcome.repeated)
    )
    yield PAIRS, here, -1, 0, outcome.pairs.tobytes()
    if keeps_matches:
        for place, portion, matches in split_portions(outcome.matches):
            yield MATCHES, (place + portion) % buckets, place, portion, matches.tobytes()


def unpack_records(rows: Iterable[Packed]) -> Records:
    """Packed rows of one bucket as columns, in the order of places and offsets."""
    parts, places, are_open = [], [], []
    for kind, _, place, _, data in sorted(rows, key=lambda row: (row[2], row[3])):
        part = np.frombuffer(data, "<u8").reshape(-1, RECORD_WORDS)
        parts.append(part)
        places.append(np.full(len(part), place, np.int32))
        are_open.append(np.full(len(part), kind == UNDECIDED))
    words = np.concatenate(parts)
    return Records(
        np.ascontiguousarray(words[:, 0]),
        np.ascontiguousarray(words[:, 1]),
        np.concatenate(places),
        words[:, 2].view(np.int64),
        np.concatenate(are_open),
    )


def _ordered_rows(rows: list[Packed], kept: int | None) -> Iterator[Packed]:
    from fencepost.spark.auditing.matching import MATCH

    portions: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
    for _, _, place, portion, data in rows:
        portions[place, portion].append(data)
    late: list[Array] = []
    reaches: list[Reach] = []
    for (_, portion), parts in portions.items():
        found, reached = late_in(portion, np.frombuffer(b"".join(parts), MATCH))
        late.append(found)
        reaches += reached
    yield REACHES, 0, -1, 0, np.array(reaches, "<i8").tobytes()
    yield from _finding_rows(np.concatenate(late), 0, kept, (0, 0, 0))


def _finding_rows(
    findings: Array, bucket: int, kept: int | None, numbers: tuple[int, int, int]
) -> Iterator[Packed]:
    counts = np.bincount(findings["kind"], minlength=len(Kind))
    chosen = findings if kept is None else _first_of_each_kind(findings, kept)
    tally = [*numbers, *counts, len(chosen) < len(findings)]
    yield TALLY, bucket, -1, 0, np.array(tally, "<i8").tobytes()
    if len(chosen):
        yield FINDINGS, bucket, -1, 0, chosen.tobytes()


def _first_of_each_kind(findings: Array, kept: int) -> Array:
    parts = []
    for kind in Kind:
        found = findings[findings["kind"] == kind]
        if len(found) > kept:
            # By offset, so that the driver shows the first ones of all.
            offsets = np.where(
                found["input_offset"] < 0, found["output_offset"], found["input_offset"]
            )
            found = found[np.sort(np.argpartition(offsets, kept)[:kept])]
        parts.append(found)
    return np.concatenate(parts)


def summarize(rows: Iterable[Packed]) -> Summary:
    """Adds up the rows of the last stage."""
    by_kind: defaultdict[int, list[bytes]] = defaultdict(list)
    for kind, _, _, _, data in rows:
        by_kind[kind].append(data)
    tallies = [_tally(data) for data in by_kind[TALLY]]
    carried = carried_over(_reaches(by_kind[REACHES]))
    findings = np.concatenate([_array(by_kind[FINDINGS], FINDING), carried])
    counts = {kind: sum(tally.kinds[kind] for tally in tallies) for kind in Kind}
    counts[Kind.REORDERED] += len(carried)
    return Summary(
        statistics=[Statistics.unpacked(data) for data in by_kind[STATISTICS]],
        pairs=_array(by_kind[PAIRS], PAIR),
        findings=findings,
        waiting=sum(tally.waiting for tally in tallies),
        held_back=sum(tally.held_back for tally in tallies),
        repeated=sum(tally.repeated for tally in tallies),
        counts=counts,
        is_cut=any(tally.is_cut for tally in tallies),
    )


def _array(parts: list[bytes], kind: np.dtype[Any]) -> Array:
    return np.frombuffer(b"".join(parts), kind)


def _tally(data: bytes) -> Tally:
    waiting, held_back, repeated, *kinds, is_cut = (int(n) for n in np.frombuffer(data, "<i8"))
    return Tally(waiting, held_back, repeated, tuple(kinds), bool(is_cut))


def _reaches(parts: list[bytes]) -> Iterator[Reach]:
    for numbers in _array(parts, np.dtype("<i8")).reshape(-1, len(Reach._fields)):
        yield Reach(*(int(number) for number in numbers))
