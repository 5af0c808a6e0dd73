"""The route of the smallest batches: the driver collects the rows and writes them itself.

A job with Python workers costs more than everything else in a batch of ten rows. So after a small
batch the driver collects the next one, up to a limit. If there are more rows than the limit, it
drops them and the batch takes another route, which runs its plan a second time.

The driver is then the only writer, and the batches of all partitions travel in one request: brokers
look up a transaction once per request, not once per partition. The ledger's record travels with
them, so the rows are held back until it is made.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.spark.connection import cluster_of
from fencepost.spark.engine.frames import QuickCollect
from fencepost.spark.sentences import failure_of_job
from fencepost.spark.ways.accounts import Account, manifest_of, reconcile_reports, report_of
from fencepost.spark.ways.delivery import Delivery, explained_refusals
from fencepost.spark.ways.packing.by_record import Placement, pack_plain
from fencepost.spark.ways.packing.rows import are_ready, cast_expressions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from fencepost.spark.ways.row_writer import WriteJob

MAX_COLLECTED_ROWS: Final = 1_000
"""The most rows that the driver writes itself: packing them takes some milliseconds."""

MAX_COLLECTED_BYTES: Final = 1024 * 1024
MIN_LIMIT: Final = 100
LIMIT_GROWTH: Final = 10
"""The limit is this many times the rows of the last batch."""

Sealed = tuple[TopicPartition, bytearray]
"""The ledger's record as a batch, and its partition."""


class RowCollector:
    """Collects the rows of small batches in one run of a query."""

    def __init__(self, topic: str | None, *, with_times: bool = False) -> None:
        self._topic = topic
        self._with_times = with_times
        self._first_rows = QuickCollect(self._casts)
        self.limit = 0
        """How many rows of the next batch the driver would collect; 0: it does not try."""

    def remember(self, account: Account) -> None:
        """Adapts the limit to the last batch: its rows, and a large batch ends the collecting."""
        is_small = account.rows <= MAX_COLLECTED_ROWS and account.size_bytes <= MAX_COLLECTED_BYTES
        wanted = max(MIN_LIMIT, LIMIT_GROWTH * account.rows)
        self.limit = min(MAX_COLLECTED_ROWS, wanted) if is_small else 0

    def collect(self, job: WriteJob) -> CollectedRows | None:
        """All rows, or None if there are more than the limit."""
        collected = self._first_rows.collect(job.part.df, self.limit + 1)
        if len(collected) > self.limit:
            return None
        return CollectedRows(self, job, [row.asDict(recursive=True) for row in collected])

    def _casts(self, schema: StructType) -> list[str] | None:
        """The expressions that cast such columns; None: there is nothing to cast."""
        if are_ready(schema, self._topic):
            return None
        return cast_expressions(schema, self._topic, with_times=self._with_times)


class CollectedRows:
    """The rows of a small batch in the driver's memory: packed, and not sent."""

    def __init__(
        self, collector: RowCollector, job: WriteJob, rows: Sequence[dict[str, Any]]
    ) -> None:
        for row in rows:
            # Spark's byte arrays, as on the other routes.
            for name in ("key", "value"):
                if row.get(name) is not None:
                    row[name] = bytes(row[name])
        self.part = job.part
        self._micro_batch = job.micro_batch
        self._collector = collector
        self._identity = job.identity
        self._options = job.packing.options
        placement = Placement(job.packing, 0)
        self._batches = list(pack_plain(job.packing, placement, rows))
        packed: Counter[TopicPartition] = Counter()
        for batch in self._batches:
            packed[batch.place] += batch.record_count
        self._manifest = manifest_of(0, len(rows), packed)

    def send(self, sealed: Sealed | None) -> tuple[Account, bool]:
        """Sends the rows and, if one broker can take both, the record; whether it did."""
        try:
            return self._send(sealed)
        except FencepostError:
            raise
        except Exception as problem:  # noqa: BLE001 - raised again in one sentence.
            raise failure_of_job(problem, self.part.df, self._micro_batch) from None

    def _send(self, sealed: Sealed | None) -> tuple[Account, bool]:
        with cluster_of(self._options).writer(self._identity) as writer, explained_refusals():
            delivery = Delivery(writer)
            for batch in self._batches:
                delivery.put(batch.place, batch.data)
            is_sent = sealed is not None and writer.travels_with_others(sealed[0])
            if sealed is not None and is_sent:
                writer.put(*sealed)
            written = writer.flush()
        if sealed is not None and is_sent:
            del written[sealed[0]]
        report = report_of(0, delivery.opened_ms, written, [self._manifest])
        account = reconcile_reports([report])
        self._collector.remember(account)
        return account, is_sent
