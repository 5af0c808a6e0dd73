"""The route of the smallest batches: the driver collects the rows and writes them itself.

A job with Python workers costs more than everything else in a batch of ten rows. So after a small
batch the driver collects the next one, up to a limit. If there are more rows than the limit, it
drops them and the batch takes another route. That is a second run of the plan: the caller keeps
Spark's row counts right, and does not collect where the plan has an `observe`, which keeps the
numbers of its first run.

The driver is then the only writer, and the batches of all partitions travel in one request: brokers
look up a transaction once per request, not once per partition. The ledger's record travels with
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from fencepost.spark.connection import cluster_of
from fencepost.spark.session import changed_setting
from fencepost.spark.transport.delivery import Attempt, Delivery, report_rows
from fencepost.spark.transport.packing.packer import Packer, PackingPlan
from fencepost.spark.transport.packing.rows import are_ready, cast_expressions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.conf import RuntimeConfig

    from fencepost.base.ids import TopicPartition
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.transport.accounts import Account

MAX_COLLECTED_ROWS: Final = 1_000
"""The most rows that the driver writes itself: packing them takes some milliseconds."""

MAX_COLLECTED_BYTES: Final = 1024 * 1024
MIN_LIMIT: Final = 100
LIMIT_GROWTH: Final = 10
"""The limit is this many times the rows of the last batch."""

_DRIVER: Final = Attempt(partition_id=0, attempt_number=0, task_attempt_id=0)
_FIRST_PARTITIONS: Final = "spark.sql.limit.initialNumPartitions"
"""How many partitions the first job of a limit reads."""
_ALL: Final = str(2**31 - 1)
_PORT_AND_SECRET: Final = re.compile(r"\[(\d+), ([^,\s]+),")
"""The start of an array with the address of Spark's socket; a Unix socket has a path there."""


def collect_limit_after(account: Account) -> int:
    """How many rows of the next batch the driver would collect; 0 after a large batch."""
    size_bytes = sum(one.size_bytes for one in account.partitions.values())
    if account.records > MAX_COLLECTED_ROWS or size_bytes > MAX_COLLECTED_BYTES:
        return 0
    return min(MAX_COLLECTED_ROWS, max(MIN_LIMIT, LIMIT_GROWTH * account.records))


class RowCollector:
    """Collects the rows of small batches in one run of a query."""

    def __init__(self, topic: str | None, *, with_times: bool = False) -> None:
        self._topic = topic
        self._with_times = with_times
        self._types: str | None = None
        """Columns and types of the last batch: the user's function may change them."""
        self._casts: Any = None
        """The expressions that cast such columns, as a Seq of the JVM; None: nothing to cast."""
        self._conf: RuntimeConfig | None = None
        """The settings of the query's session, which is the same in all batches of a run."""
        self._array_text: Any = None
        """`java.util.Arrays.toString`, looked up once."""
        self.limit = 0
        """How many rows of the next batch the driver would collect; 0: it does not try."""

    def collect(self, df: DataFrame) -> list[dict[str, Any]] | None:
        """All rows, or None if there are more than the limit."""
        types = str(df._jdf.schema().catalogString())  # noqa: SLF001
        if types != self._types:
            self._casts = self._find_casts(df)
            self._types = types
        java = df._jdf  # noqa: SLF001
        if self._casts is not None:
            java = java.selectExpr(self._casts)
        if self._conf is None:
            self._conf = df.sparkSession.conf
        # Spark would run the first partition alone, and then the others. All of them must run: an
        # operator that keeps state writes it at the end of its partition.
        with changed_setting(self._conf, _FIRST_PARTITIONS, _ALL):
            collected = self._rows(type(df)(java.limit(self.limit + 1), df.sparkSession))
        if len(collected) > self.limit:
            return None
        return [_as_bytes(row.asDict(recursive=True)) for row in collected]

    def _rows(self, df: DataFrame) -> list[Row]:
        """`df.collect()` without the call site, and with fewer JVM calls for its socket."""
        try:
            from pyspark.util import _load_from_socket
        except ImportError:
            # Another version of Spark, with other internals.
            return df.collect()
        from pyspark.serializers import BatchedSerializer, CPickleSerializer

        serializer = BatchedSerializer(CPickleSerializer())  # type: ignore[no-untyped-call]
        if self._array_text is None:
            jvm: Any = df.sparkSession.sparkContext._jvm  # noqa: SLF001
            self._array_text = jvm.java.util.Arrays.toString
        address = df._jdf.collectToPython()  # noqa: SLF001
        found = _PORT_AND_SECRET.match(self._array_text(address))
        if found is not None:
            address = (int(found[1]), found[2])
        loaded: Any = _load_from_socket(address, serializer)
        # Before Spark 4.2 a plain iterator.
        with loaded if hasattr(loaded, "__exit__") else nullcontext(loaded) as rows:
            return list(rows)

    def _find_casts(self, df: DataFrame) -> Any:
        if are_ready(df.schema, self._topic):
            return None
        java: Any = df
        casts = cast_expressions(df.schema, self._topic, with_times=self._with_times)
        return java._jseq(casts)  # noqa: SLF001


def _as_bytes(row: dict[str, Any]) -> dict[str, Any]:
    """The row with `bytes` for Spark's byte arrays, as on the other routes."""
    for name in ("key", "value"):
        content = row.get(name)
        if content is not None:
            row[name] = bytes(content)
    return row


class AttachedRecord(Protocol):
    """A record that travels with the rows: the ledger's (`sink/ledger/entry_writer.py`)."""

    place: TopicPartition

    def begin(self) -> None:
        """Sends the requests that must be answered before the record is written."""

    def settle(self) -> None:
        """Waits for their answers."""

    def seal(self, opened_ms: int) -> bytearray:
        """The record's batch."""

    def sent(self) -> None:
        """Notes that the record was acknowledged with the rows."""


def write_collected(
    plan: PackingPlan,
    identity: ProducerIdentity,
    rows: list[dict[str, Any]],
    attached: AttachedRecord | None = None,
) -> Iterator[dict[str, Any]]:
    """Writes these rows as a single task would, and the attached record with them if possible."""
    packer = Packer(plan, 0)
    with cluster_of(plan.options).writer(identity) as writer:
        delivery = Delivery(writer)
        with _in_flight(attached):
            for batch in packer.pack_rows(rows):
                delivery.put(batch.place, batch.data)
        if attached is not None and writer.travels_with_others(attached.place):
            writer.put(attached.place, attached.seal(delivery.opened_ms))
        written = writer.flush()
    if attached is not None and written.pop(attached.place, None) is not None:
        attached.sent()
    yield from report_rows(_DRIVER, delivery.opened_ms, written, [packer.manifest()])


@contextmanager
def _in_flight(attached: AttachedRecord | None) -> Iterator[None]:
    """Keeps the first requests of the attached record in flight during the block.

    If the block fails, that is the failure to report, whatever becomes of the requests.
    """
    if attached is None:
        yield
        return
    try:
        attached.begin()
        yield
    except BaseException:
        with suppress(Exception):
            attached.settle()
        raise
    attached.settle()
