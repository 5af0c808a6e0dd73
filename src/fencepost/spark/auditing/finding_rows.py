"""Findings with the real keys of their records: the stages before know only hashes.

Keys are read again from the topics, at the offsets of the findings. Neighbours come with one fetch.
A record that retention has deleted since has no key. The driver has the keys of tables, and
passes on those of the findings that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fencepost.client.failures import OffsetOutOfRange, UnknownTopicOrPartition
from fencepost.spark.auditing.job import FINDINGS, Job
from fencepost.spark.auditing.keys import keys_of
from fencepost.spark.auditing.matching import FINDING, Array, Kind
from fencepost.spark.auditing.reading import Reading
from fencepost.spark.schemas import arrow_schema
from fencepost.spark.views.record_rows import record_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DDL: Final = (
    "kind string, key binary, inputTopic string, inputPartition int, inputOffset long, "
    "outputTopic string, outputPartition int, outputOffset long, lacking array<string>, "
    "ambiguous boolean"
)
Keys = dict[tuple[int, int], bytes | None]
"""By place and offset."""
_NEAR: Final = 5_000
"""Records at most this far apart are read in one go."""
_PORTION: Final = 20_000


def finding_frame(spark: SparkSession, job: Job, outputs: tuple[str, ...], keys: Keys) -> DataFrame:
    """All findings of a job, one row each."""
    rows = job.rows(spark, None)
    exploding = _explode(job.reading, outputs, keys)
    return rows.where(rows["kind"] == FINDINGS).mapInArrow(exploding, DDL)


def keys_of_tables(job: Job, findings: Array) -> Keys:
    """The keys of the rows among these findings."""
    wanted: dict[int, list[int]] = {}
    for row in findings:
        place, number = _place_of(row)
        if place in job.tables:
            wanted.setdefault(place, []).append(number)
    return {
        (place, number): key
        for place, numbers in wanted.items()
        for number, key in job.tables[place].keys_at(numbers).items()
    }


def _explode(
    reading: Reading, outputs: tuple[str, ...], keys: Keys
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for data in batch.column("data").to_pylist():
                findings = np.frombuffer(data, FINDING)
                for start in range(0, len(findings), _PORTION):
                    part = findings[start : start + _PORTION]
                    rows = finding_rows(reading, outputs, part, keys)
                    yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(DDL))

    return run


def finding_rows(
    reading: Reading, outputs: tuple[str, ...], findings: Array, keys: Keys
) -> list[dict[str, Any]]:
    """These findings with topics, partitions and keys; those of tables are given."""
    keys = keys | _keys(reading, findings)
    return [_row(reading, outputs, row, keys.get(_place_of(row))) for row in findings]


def _place_of(row: Any) -> tuple[int, int]:
    """The record whose key is shown: the input if it is known, else the output."""
    if row["input_place"] >= 0:
        return int(row["input_place"]), int(row["input_offset"])
    return int(row["output_place"]), int(row["output_offset"])


def _row(reading: Reading, outputs: tuple[str, ...], row: Any, key: bytes | None) -> dict[str, Any]:
    kind = Kind(row["kind"])
    lacking = int(row["lacking"])
    names = [name for slot, name in enumerate(outputs) if lacking >> slot & 1]
    found: dict[str, Any] = {
        "kind": kind.name.lower(),
        "key": key,
        "lacking": names if kind is Kind.TORN else None,
        "ambiguous": bool(row["is_ambiguous"]),
    }
    for side in ("input", "output"):
        if row[f"{side}_place"] >= 0:
            place = reading.places[row[f"{side}_place"]]
            found[f"{side}Topic"] = place.partition.topic
            if not place.is_table:
                found[f"{side}Partition"] = place.partition.partition
                found[f"{side}Offset"] = int(row[f"{side}_offset"])
    return found


def _keys(reading: Reading, findings: Array) -> Keys:
    by_place: dict[int, list[int]] = {}
    for row in findings:
        place, offset = _place_of(row)
        if not reading.places[place].is_table:
            by_place.setdefault(place, []).append(offset)
    return {
        (place, offset): key
        for place, offsets in by_place.items()
        for run in _runs(sorted(set(offsets)))
        for offset, key in _keys_at(reading, place, run)
    }


def _runs(offsets: list[int]) -> Iterator[list[int]]:
    """Splits sorted offsets where the next one is far away."""
    cuts = np.flatnonzero(np.diff(offsets) > _NEAR) + 1
    return (part.tolist() for part in np.split(np.array(offsets), cuts))


def _keys_at(
    reading: Reading, number: int, offsets: list[int]
) -> Iterator[tuple[int, bytes | None]]:
    place = reading.places[number]
    expression, log = reading.key_of(place), reading.log_of(place)
    columns = ("offset", expression.column)
    try:
        for batch in record_batches(log, columns, offsets[0], offsets[-1] + 1):
            rows = batch.filter(pc.is_in(batch.column("offset"), pa.array(offsets, pa.int64())))
            keys = keys_of(expression, rows)
            yield from zip(rows.column("offset").to_pylist(), keys.to_pylist(), strict=True)
    except (OffsetOutOfRange, UnknownTopicOrPartition):
        return
