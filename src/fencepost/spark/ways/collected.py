"""The route of the smallest batches: the driver collects the rows and writes them itself.

A job with Python workers costs more than everything else in a batch of ten rows. So after a small
batch the driver collects the next one, up to a limit. If there are more rows than the limit, it
drops them and the batch takes another route, which runs its plan a second time.

The driver is then the only writer, and the batches of all partitions travel in one request: brokers
look up a transaction once per request, not once per partition.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.ids import TopicPartition
from fencepost.spark.connection import cluster_of
from fencepost.spark.engine.private_names import COLLECT
from fencepost.spark.engine.session import changed_setting
from fencepost.spark.ways.accounts import Account, manifest_of, reconcile_reports, report_of
from fencepost.spark.ways.delivery import Delivery, explained_refusals
from fencepost.spark.ways.packing.by_record import Placement, pack_plain
from fencepost.spark.ways.packing.rows import are_ready, select_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.spark.ways.row_writer import WriteJob

MAX_COLLECTED_ROWS: Final = 1_000
"""The most rows that the driver writes itself: packing them takes some milliseconds."""

MAX_COLLECTED_BYTES: Final = 1024 * 1024
MIN_LIMIT: Final = 100
LIMIT_GROWTH: Final = 10
"""The limit is this many times the rows of the last batch."""
_ALL: Final = str(2**31 - 1)


class RowCollector:
    """Collects the rows of small batches in one run of a query."""

    def __init__(self, topic: str | None, *, with_times: bool = False) -> None:
        self._topic = topic
        self._with_times = with_times
        self.limit = 0
        """How many rows of the next batch the driver would collect; 0: it does not try."""

    def remember(self, account: Account) -> None:
        """Adapts the limit to the last batch: its rows, and a large batch ends the collecting."""
        is_small = account.rows <= MAX_COLLECTED_ROWS and account.size_bytes <= MAX_COLLECTED_BYTES
        wanted = max(MIN_LIMIT, LIMIT_GROWTH * account.rows)
        self.limit = min(MAX_COLLECTED_ROWS, wanted) if is_small else 0

    def write(self, job: WriteJob) -> Account | None:
        """Writes all rows, or returns None if there are more than the limit."""
        df = job.part.df
        if not are_ready(df.schema, self._topic):
            df = select_rows(df, self._topic, with_times=self._with_times)
        # Otherwise Spark would run the first partition alone, and then the others.
        with changed_setting(df.sparkSession.conf, COLLECT.first, _ALL):
            collected = df.limit(self.limit + 1).collect()
        if len(collected) > self.limit:
            return None
        return self._send(job, [row.asDict(recursive=True) for row in collected])

    def _send(self, job: WriteJob, rows: Sequence[dict[str, Any]]) -> Account:
        """Packs the rows, and sends the batches of all partitions together."""
        for row in rows:
            # Spark's byte arrays, as on the other routes.
            for name in ("key", "value"):
                if row.get(name) is not None:
                    row[name] = bytes(row[name])
        batches = list(pack_plain(job.packing, Placement(job.packing, 0), rows))
        packed: Counter[TopicPartition] = Counter()
        for batch in batches:
            packed[batch.place] += batch.record_count
        cluster = cluster_of(job.packing.options)
        with cluster.writer(job.identity) as writer, explained_refusals():
            delivery = Delivery(writer)
            for batch in batches:
                delivery.put(batch.place, batch.data)
            written = writer.flush()
        manifest = manifest_of(0, len(rows), packed)
        account = reconcile_reports([report_of(0, delivery.opened_ms, written, [manifest])])
        self.remember(account)
        return account
