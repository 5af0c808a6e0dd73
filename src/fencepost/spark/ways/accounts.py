"""The driver's check at the end of a batch: every row was acknowledged exactly once.

Where Spark may run packing tasks again (`shuffled.py`), the writers also report whose rows they
have read. Counts alone could not tell two rows that changed places in a second run: the first
writer has one of them from the first run, the second writer the same one from the second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fencepost.base.ids import MAX_SEQUENCE, TopicPartition
from fencepost.spark.failures import CountsDisagree


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What was written to one partition."""

    records: int
    batches: int
    size_bytes: int
    base_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Account:
    """What a whole job wrote."""

    rows: int
    partitions: Mapping[TopicPartition, PartitionReport]
    opened_ms: int = 0
    """When the first task began to write; 0 if none did."""
    size_bytes: int = 0
    """The bytes of all batches together."""

    @property
    def records(self) -> int:
        """The records of all partitions together."""
        return sum(report.records for report in self.partitions.values())


def sum_accounts(accounts: Iterable[Account]) -> Account:
    """All parts of a batch together; CountsDisagree if two wrote to the same partition."""
    rows, size_bytes, opened = 0, 0, []
    partitions: dict[TopicPartition, PartitionReport] = {}
    for account in accounts:
        if shared := partitions.keys() & account.partitions.keys():
            raise CountsDisagree(f"two parts of the batch wrote to {min(shared)}")
        rows += account.rows
        partitions.update(account.partitions)
        opened += [account.opened_ms] if account.opened_ms else []
        size_bytes += account.size_bytes
    return Account(rows, partitions, min(opened, default=0), size_bytes)


def settle_accounts(reports: Iterable[Mapping[str, Any]]) -> Account:
    """Adds up all reports; CountsDisagree unless rows, batches and acknowledgements match.

    A partition that two tasks wrote to is an error.
    """
    partitions: dict[TopicPartition, PartitionReport] = {}
    packed: dict[TopicPartition, int] = {}
    maps: set[int] = set()
    runs: dict[int, int] = {}
    rows = size_bytes = 0
    opened: list[int] = []
    for report in reports:
        if report["manifest"] is not None:
            manifest = json.loads(report["manifest"])
            if "runs" in manifest:
                _compare_runs(manifest["runs"], runs)
            else:
                rows += _take_manifest(manifest, maps, packed)
            continue
        place = TopicPartition(report["topic"], report["partition"])
        if place in partitions:
            raise CountsDisagree(f"two tasks wrote to {place}")
        opened.append(report["opened_ms"])
        size_bytes += report["size_bytes"]
        partitions[place] = _partition_report(place, report)
    if maps != set(range(len(maps))):
        raise CountsDisagree(f"of the packing tasks only {sorted(maps)} reported")
    written = {place: report.records for place, report in partitions.items()}
    if written != packed or sum(packed.values()) != rows:
        raise CountsDisagree(f"{rows} rows came in, {packed} were packed, {written} acknowledged")
    return Account(rows, partitions, min(opened, default=0), size_bytes)


def _compare_runs(read: Iterable[tuple[int, int]], runs: dict[int, int]) -> None:
    """Adds what one writer has read to what the others have."""
    for map_id, run in read:
        if runs.setdefault(map_id, run) != run:
            raise CountsDisagree(
                f"task {map_id} of the packing stage ran as Spark's tasks {runs[map_id]} and "
                f"{run}, and the writers have rows of both"
            )


def manifest_of(map_id: int, rows: int, packed: Mapping[TopicPartition, int]) -> str:
    """What a packing task has seen and packed, for the driver's check."""
    partitions = [[*place, count] for place, count in sorted(packed.items())]
    return json.dumps({"map": map_id, "rows": rows, "partitions": partitions})


def _take_manifest(
    manifest: dict[str, Any], maps: set[int], packed: dict[TopicPartition, int]
) -> int:
    if manifest["map"] in maps:
        raise CountsDisagree(f"task {manifest['map']} of the packing stage counts twice")
    maps.add(manifest["map"])
    for topic, partition, count in manifest["partitions"]:
        place = TopicPartition(topic, partition)
        packed[place] = packed.get(place, 0) + count
    return int(manifest["rows"])


def _partition_report(place: TopicPartition, report: Mapping[str, Any]) -> PartitionReport:
    if report["last_sequence"] != (report["records"] - 1) & MAX_SEQUENCE:
        raise CountsDisagree(
            f"{place}: {report['records']} records end at sequence {report['last_sequence']}"
        )
    return PartitionReport(
        report["records"],
        report["batches"],
        report["size_bytes"],
        report["base_offset"],
        report["last_offset"],
    )
