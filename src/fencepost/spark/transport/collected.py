"""The way of the smallest batches: the driver takes the rows to itself and writes them.

A job with Python workers costs more than all else in a batch of ten rows. So where the last batch
was small, the driver asks for the rows of this one, though for no more than it is ready to hold; if
there are more, it has taken nothing and the batch goes one of the other ways. That is a second run
of the plan; `counts.py` sees to it that rows count once. An `observe` in the user's own plan keeps
the numbers of its first run, so there the driver does not try.

The driver is then the one writer of every partition, and the batches of all of them travel in one
request: brokers look up a transaction once per request and not once per partition. The ledger's
record travels with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from fencepost.spark.connection import cluster_of
from fencepost.spark.transport.delivery import Attempt, Delivery, report_rows
from fencepost.spark.transport.packing import Packer, PackingPlan
from fencepost.spark.transport.rows import are_ready, select_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from fencepost.base.ids import TopicPartition
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.transport.accounts import Account

MAX_COLLECTED_ROWS: Final = 1_000
"""What the driver writes itself at most: packing them takes it some milliseconds."""

MAX_COLLECTED_BYTES: Final = 1024 * 1024
MIN_LIMIT: Final = 100
LIMIT_GROWTH: Final = 10
"""How many times as many rows as last time the driver is ready for."""

_DRIVER: Final = Attempt(partition_id=0, attempt_number=0, task_attempt_id=0)
_FIRST_PARTITIONS: Final = "spark.sql.limit.initialNumPartitions"
_ALL: Final = str(2**31 - 1)


def collect_limit_after(account: Account) -> int:
    """How many rows the driver would take itself in the next batch; 0 after a large one."""
    size_bytes = sum(one.size_bytes for one in account.partitions.values())
    if account.records > MAX_COLLECTED_ROWS or size_bytes > MAX_COLLECTED_BYTES:
        return 0
    return min(MAX_COLLECTED_ROWS, max(MIN_LIMIT, LIMIT_GROWTH * account.records))


class RowCollector:
    """How the driver takes rows in one run of a query."""

    def __init__(self, topic: str | None) -> None:
        self._topic = topic
        self._types: str | None = None
        """The columns and types that were looked at last. The user's function may change them from
        batch to batch."""
        self._are_ready = False
        self.limit = 0
        """How many rows of the next batch the driver would take; 0: it does not try."""

    def collect(self, df: DataFrame) -> list[dict[str, Any]] | None:
        """All rows, or None when there are more than the driver would take."""
        types = str(df._jdf.schema().catalogString())  # noqa: SLF001
        if types != self._types:
            self._begin(df)
            self._types = types
        rows = df if self._are_ready else select_rows(df, self._topic)
        taken = _collect(rows.limit(self.limit + 1))
        if len(taken) > self.limit:
            return None
        return [_as_bytes(row.asDict(recursive=True)) for row in taken]

    def _begin(self, df: DataFrame) -> None:
        # Spark would look at the first partition alone, and then at the others. All of them must
        # run, and at once: an operator that keeps state writes it when its partition has been read
        # to the end.
        df.sparkSession.conf.set(_FIRST_PARTITIONS, _ALL)
        self._are_ready = are_ready(df, self._topic)


def _collect(df: DataFrame) -> list[Row]:
    """`df.collect()` without the note of where it was called, which costs a millisecond in every batch."""
    try:
        from pyspark.util import _load_from_socket
    except ImportError:
        # Another Spark, with other inner parts.
        return df.collect()
    from pyspark.serializers import BatchedSerializer, CPickleSerializer

    serializer = BatchedSerializer(CPickleSerializer())  # type: ignore[no-untyped-call]
    with _load_from_socket(df._jdf.collectToPython(), serializer) as rows:  # noqa: SLF001
        return list(rows)


def _as_bytes(row: dict[str, Any]) -> dict[str, Any]:
    """Spark's byte arrays as what the other ways have."""
    for name in ("key", "value"):
        content = row.get(name)
        if content is not None:
            row[name] = bytes(content)
    return row


class AttachedRecord(Protocol):
    """What travels with the rows: the ledger's part of the transaction (`sink/ledger/entry_writer.py`)."""

    place: TopicPartition

    def begin(self) -> None: ...

    def settle(self) -> None: ...

    def seal(self, opened_ms: int) -> bytearray: ...

    def sent(self) -> None: ...


def write_collected(
    plan: PackingPlan,
    identity: ProducerIdentity,
    rows: list[dict[str, Any]],
    attached: AttachedRecord | None = None,
) -> Iterator[dict[str, Any]]:
    """Writes these rows, as a single task would, and the attached in the same request if it can be."""
    packer = Packer(plan, 0)
    with cluster_of(plan.options).writer(identity) as writer:
        delivery = Delivery(writer)
        with _under_way(attached):
            for batch in packer.pack_rows(rows):
                delivery.put(batch.place, batch.data)
        if attached is not None and writer.travels_with_others(attached.place):
            writer.put(attached.place, attached.seal(delivery.opened_ms))
        written = writer.flush()
    if attached is not None and written.pop(attached.place, None) is not None:
        attached.sent()
    yield from report_rows(_DRIVER, delivery.opened_ms, written, [packer.manifest()])


@contextmanager
def _under_way(attached: AttachedRecord | None) -> Iterator[None]:
    """What the attached sends first is on its way inside."""
    if attached is None:
        yield
        return
    attached.begin()
    try:
        yield
    finally:
        attached.settle()
