"""The stages of an audit on Spark.

    spans -> read and pack -> exchange by hash -> match -> exchange by portion -> order -> driver

Both exchanges move packed rows, each to the task that its slot names. The driver gets counts, and
up to a limit the findings themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from fencepost.spark.auditing.matching import (
    FINDING,
    MATCH,
    PAIR,
    Array,
    Kind,
    Records,
    Rules,
    match,
)
from fencepost.spark.auditing.ordering import Reach, carried_over, late_in, split_portions
from fencepost.spark.auditing.reading import (
    PACKED_DDL,
    RECORD_WORDS,
    RECORDS,
    STATISTICS,
    UNDECIDED,
    Packed,
    Reading,
    Statistics,
    packed_rows,
    packed_table,
)
from fencepost.spark.failures import AuditFailed
from fencepost.spark.sentences import sentence_in
from fencepost.spark.ways.stage import bring_to_slots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fencepost.spark.auditing.tables import Rows

MATCHES: Final = 3
FINDINGS: Final = 4
PAIRS: Final = 5
TALLY: Final = 6
REACHES: Final = 7

Batches = Iterator[pa.RecordBatch]
SIDES: Final = ("input", "output")


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
    """Whether `findings` are not all."""


@dataclass(frozen=True, slots=True)
class Job:
    """One audit, ready to run."""

    reading: Reading
    rules: Rules
    judges_order: bool
    tables: Mapping[int, Rows] = field(default_factory=dict)
    """The rows of places that are tables: only the driver has them."""

    def run(self, spark: SparkSession, kept: int) -> Summary:
        """Runs all stages. Up to `kept` findings of each kind come from each task."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            rows = self.rows(spark, kept).collect()
        except (PySparkException, Py4JJavaError) as problem:
            raise AuditFailed(
                f"the audit did not finish, and nothing was changed: {sentence_in(str(problem))}"
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
        if self.tables:
            rows = [
                each
                for place, table in self.tables.items()
                for each in packed_table(place, table, reading.buckets)
            ]
            packed = packed.union(spark.createDataFrame(rows, PACKED_DDL))
        matching = partial(_matched_rows, rules, reading.words, reading.buckets, kept, judges_order)
        matched = bring_to_slots(packed, reading.buckets).mapInArrow(
            _stage((RECORDS, UNDECIDED), matching), PACKED_DDL
        )
        if not judges_order:
            return matched
        return bring_to_slots(matched, reading.buckets).mapInArrow(
            _stage((MATCHES,), partial(_ordered_rows, kept)), PACKED_DDL
        )


def _reader(reading: Reading) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from reading.packed(number)

    return read


def _stage(
    wanted: tuple[int, ...], work: Callable[[list[Packed]], Iterable[Packed]]
) -> Callable[[Batches], Batches]:
    """A task that works on all of its rows of these kinds at once, and passes the others on."""

    def run(batches: Batches) -> Batches:
        chosen: list[Packed] = []
        rest: list[Packed] = []
        for batch in batches:
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                (chosen if row[0] in wanted else rest).append(row)
        if rest:
            yield packed_rows(rest)
        if chosen:
            yield packed_rows(list(work(chosen)))

    return run


def _matched_rows(
    rules: Rules,
    words: int,
    buckets: int,
    kept: int | None,
    keeps_matches: bool,
    rows: list[Packed],
) -> Iterator[Packed]:
    outcome = match(unpack_records(rows, words), rules)
    here = rows[0][1]
    yield from _finding_rows(
        outcome.findings, here, kept, (outcome.waiting, outcome.held_back, outcome.repeated)
    )
    yield PAIRS, here, -1, 0, outcome.pairs.tobytes()
    if keeps_matches:
        for place, portion, matches in split_portions(_with_order(outcome.matches, rules)):
            yield MATCHES, (place + portion) % buckets, place, portion, matches.tobytes()


def _with_order(matches: Array, rules: Rules) -> Array:
    """Without those of tables."""
    if not rules.without_order:
        return matches
    has_none = [np.isin(matches[f"{side}_place"], rules.without_order) for side in SIDES]
    return matches[~np.logical_or(*has_none)]


def unpack_records(rows: Iterable[Packed], words: int = RECORD_WORDS) -> Records:
    """Packed rows of one bucket as columns, in the order of places and offsets."""
    parts, places, are_open = [], [], []
    for kind, _, place, _, data in sorted(rows, key=lambda row: (row[2], row[3])):
        part = np.frombuffer(data, "<u8").reshape(-1, words)
        parts.append(part)
        places.append(np.full(len(part), place, np.int32))
        are_open.append(np.full(len(part), kind == UNDECIDED))
    found = np.concatenate(parts)
    return Records(
        np.ascontiguousarray(found[:, 0]),
        np.ascontiguousarray(found[:, 1]),
        np.concatenate(places),
        found[:, 2].view(np.int64),
        np.concatenate(are_open),
        found[:, 3] if words > RECORD_WORDS else None,
    )


def _ordered_rows(kept: int | None, rows: list[Packed]) -> Iterator[Packed]:
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
    """The first findings, and before them how many there are and whether some are left out."""
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
    statistics = _numbers(by_kind[STATISTICS], len(Statistics._fields))
    tallies = _numbers(by_kind[TALLY], 3 + len(Kind) + 1)
    waiting, held_back, repeated, *kinds, cut = tallies.sum(axis=0).tolist()
    reaches = _numbers(by_kind[REACHES], len(Reach._fields)).tolist()
    carried = carried_over(Reach(*numbers) for numbers in reaches)
    findings = np.concatenate([_array(by_kind[FINDINGS], FINDING), carried])
    counts = dict(zip(Kind, kinds, strict=True))
    counts[Kind.REORDERED] += len(carried)
    return Summary(
        statistics=[Statistics(*numbers) for numbers in statistics.tolist()],
        pairs=_array(by_kind[PAIRS], PAIR),
        findings=findings,
        waiting=waiting,
        held_back=held_back,
        repeated=repeated,
        counts=counts,
        is_cut=cut > 0,
    )


def _array(parts: list[bytes], kind: np.dtype[Any]) -> Array:
    return np.frombuffer(b"".join(parts), kind)


def _numbers(parts: list[bytes], size: int) -> Array:
    """Packed numbers, so many in a row."""
    return _array(parts, np.dtype("<i8")).reshape(-1, size)
