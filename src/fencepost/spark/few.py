"""The way of the smallest batches: the driver takes the rows to itself and writes them.

A job with Python workers costs more than all else in a batch of ten rows. So where the last batch was small, the driver
asks for the rows of this one, though for no more than it is ready to hold; if there are more, it has taken nothing and
the batch goes one of the other ways. The driver is then the one writer of every partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fencepost.spark.connection import cluster_of
from fencepost.spark.delivering import Attempt, Delivery, report
from fencepost.spark.packing import Packer, PackingPlan
from fencepost.spark.rows import are_ready, select_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.accounts import Account

FEW_ROWS: Final = 1_000
"""What the driver writes itself at most: packing them takes it some milliseconds."""

FEW_BYTES: Final = 1024 * 1024
LEAST_ROWS: Final = 100
GROWTH: Final = 10
"""How many times as many rows as last time the driver is ready for."""

_DRIVER: Final = Attempt(partition_id=0, attempt_number=0, task_attempt_id=0)
_FIRST_PARTITIONS: Final = "spark.sql.limit.initialNumPartitions"
_ALL: Final = str(2**31 - 1)


def few_after(account: Account) -> int:
    """How many rows the driver would take itself in the next batch; 0 after a large one."""
    size_bytes = sum(one.size_bytes for one in account.partitions.values())
    if account.records > FEW_ROWS or size_bytes > FEW_BYTES:
        return 0
    return min(FEW_ROWS, max(LEAST_ROWS, GROWTH * account.records))


def take_rows(df: DataFrame, topic: str | None, most: int) -> list[dict[str, Any]] | None:
    """All rows, or None when there are more than so many."""
    rows = df if are_ready(df, topic) else select_rows(df, topic)
    # Spark would look at the first partition alone, and then at the others. All of them must run, and at once: an
    # operator that keeps state writes it when its partition has been read to the end.
    rows.sparkSession.conf.set(_FIRST_PARTITIONS, _ALL)
    taken = rows.limit(most + 1).collect()
    return [_as_bytes(row.asDict(recursive=True)) for row in taken] if len(taken) <= most else None


def _as_bytes(row: dict[str, Any]) -> dict[str, Any]:
    """Text and Spark's byte arrays as what the other ways have."""
    for name in ("key", "value"):
        content = row.get(name)
        if content is not None:
            row[name] = content.encode("utf-8") if isinstance(content, str) else bytes(content)
    return row


def write_few(
    plan: PackingPlan, identity: ProducerIdentity, rows: list[dict[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """Writes these rows, as a single task would."""
    packer = Packer(plan, 0)
    with cluster_of(plan.options).writer(identity) as writer:
        delivery = Delivery(writer)
        for packed in packer.pack_rows(rows):
            delivery.write(packed.place, packed.data)
        written = writer.flush()
    yield report(_DRIVER, delivery.opened_ms, written, [packer.manifest()])
