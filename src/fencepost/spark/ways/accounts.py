"""The driver's check at the end of a batch: every row was acknowledged exactly once.

Each task that writes reports once, as JSON:

    {"task_attempt_id": its id in Spark, "opened_ms": when it began to write,
     "written": [[TopicPartition, Written], ...],
     "packed": [{"map": task, "rows": count, "partitions": [[TopicPartition, records], ...]}, ...],
     "runs": [[map, run], ...]}

"written" is what brokers acknowledged. "packed" are manifests: what packing tasks have seen and
packed. Each of them is in one report. Where Spark may run packing tasks again (`shuffled.py`), the
writers also report whose rows they have read. Counts alone could not tell two rows that changed
places in a second run: the first writer has one of them from the first run, the second writer the
same one from the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fencepost.base.ids import MAX_SEQUENCE, TopicPartition
from fencepost.client.writer import Written
from fencepost.spark.failures import CountsDisagree

Manifest = Mapping[str, Any]
Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Account:
    """What a whole job wrote."""

    rows: int
    partitions: Mapping[TopicPartition, Written]
    opened_ms: int = 0
    """When the first task began to write; 0 if none did."""
    size_bytes: int = 0
    """The bytes of all batches together."""

    @property
    def records(self) -> int:
        """The records of all partitions together."""
        return sum(written.records for written in self.partitions.values())


def manifest_of(map_id: int, rows: int, packed: Mapping[TopicPartition, int]) -> Manifest:
    """What a packing task has seen and packed."""
    return {"map": map_id, "rows": rows, "partitions": sorted(packed.items())}


def report_of(
    task_attempt_id: int,
    opened_ms: int,
    written: Mapping[TopicPartition, Written],
    packed: Iterable[Manifest],
    runs: Iterable[tuple[int, int]] = (),
) -> Report:
    """The report of one writing task."""
    return {
        "task_attempt_id": task_attempt_id,
        "opened_ms": opened_ms,
        "written": list(written.items()),
        "packed": list(packed),
        "runs": sorted(runs),
    }


def reconcile_reports(reports: Iterable[Report]) -> Account:
    """Adds up all reports; CountsDisagree unless rows, batches and acknowledgements match.

    A partition that two tasks wrote to is an error.
    """
    partitions: dict[TopicPartition, Written] = {}
    packed: dict[TopicPartition, int] = {}
    acknowledged: dict[TopicPartition, int] = {}
    maps: set[int] = set()
    runs: dict[int, int] = {}
    rows, size_bytes, opened = 0, 0, []
    for report in reports:
        for where, counts in report["written"]:
            place, written = TopicPartition(*where), Written(*counts)
            if place in partitions:
                raise CountsDisagree(f"two tasks wrote to {place}")
            if written.last_sequence != (written.records - 1) & MAX_SEQUENCE:
                raise CountsDisagree(
                    f"{place}: {written.records} records end at sequence {written.last_sequence}"
                )
            partitions[place], acknowledged[place] = written, written.records
            size_bytes += written.size_bytes
            opened.append(report["opened_ms"])
        for manifest in report["packed"]:
            rows += _count_manifest(manifest, maps, packed)
        for map_id, run in report["runs"]:
            if runs.setdefault(map_id, run) != run:
                raise CountsDisagree(
                    f"task {map_id} of the packing stage ran as Spark's tasks {runs[map_id]} and "
                    f"{run}, and the writers have rows of both"
                )
    if maps != set(range(len(maps))):
        raise CountsDisagree(f"of the packing tasks only {sorted(maps)} reported")
    if acknowledged != packed or sum(packed.values()) != rows:
        raise CountsDisagree(
            f"{rows} rows came in, {packed} were packed, {acknowledged} acknowledged"
        )
    return Account(rows, partitions, min(opened, default=0), size_bytes)


def _count_manifest(manifest: Manifest, maps: set[int], packed: dict[TopicPartition, int]) -> int:
    if manifest["map"] in maps:
        raise CountsDisagree(f"task {manifest['map']} of the packing stage counts twice")
    maps.add(manifest["map"])
    for where, count in manifest["partitions"]:
        place = TopicPartition(*where)
        packed[place] = packed.get(place, 0) + count
    return int(manifest["rows"])


def sum_accounts(accounts: Iterable[Account]) -> Account:
    """All parts of a batch together; CountsDisagree if two wrote to the same partition."""
    rows, size_bytes, opened = 0, 0, []
    partitions: dict[TopicPartition, Written] = {}
    for account in accounts:
        if shared := partitions.keys() & account.partitions.keys():
            raise CountsDisagree(f"two parts of the batch wrote to {min(shared)}")
        rows += account.rows
        partitions.update(account.partitions)
        opened += [account.opened_ms] if account.opened_ms else []
        size_bytes += account.size_bytes
    return Account(rows, partitions, min(opened, default=0), size_bytes)
