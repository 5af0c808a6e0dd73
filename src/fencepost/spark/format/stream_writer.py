"""The writer of `df.writeStream.format("fencepost")`.

Spark creates it twice per batch. The copy that is pickled for the tasks makes the plan of the
batch, and with it the fence, at that moment (`plan.py`). The copy that commits or aborts makes
none. So the constructor has no effects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from fencepost.spark.compiled import freeze_loaded_objects
from fencepost.spark.format.commit import abort_stream_batch, commit_stream_batch
from fencepost.spark.format.plan import BatchPlan, plan_batch, verdict_of
from fencepost.spark.format.task import TaskReport, find_place, run_task
from fencepost.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.spark.format.options import WriteOptions
    from fencepost.spark.sink.ledger.decision import Verdict


class StreamWriter(DataSourceStreamArrowWriter):
    """One transaction per micro-batch."""

    def __init__(self, options: WriteOptions, token: str) -> None:
        """`token`: with which tasks find the steps that write for them."""
        self._options = options
        self._token = token
        self._plan: BatchPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles this writer when it plans a batch, several times; the plan is made once."""
        if self._plan is None:
            self._plan = plan_batch(self._options)
            freeze_loaded_objects()
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Runs in a task."""
        with plain_errors():
            return self._write(iterator)

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        plan, place = self._plan, find_place()
        assert plan is not None

        def decide() -> Verdict:
            return verdict_of(plan, self._options, place.query_id, place.batch_id)

        return run_task(plan, decide, place, iterator, self._token)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Runs on the driver's machine once all tasks have reported."""
        with plain_errors():
            commit_stream_batch(self._options, messages, batchId)
        freeze_loaded_objects()

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Runs there if a task or the commit failed, or if the query was stopped."""
        abort_stream_batch(self._options, messages)
