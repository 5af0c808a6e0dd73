"""`format("fencepost_with_faults")`: the format, with faults in the processes that Spark starts.

Spark plans, commits and aborts in processes of its own, which tests cannot reach. So the fault is
an option: `faultStep`, `faultBatch`, and `faultMarker`, the path where the test sees it.

    planned      the epoch is fresh, and the plan is about to leave
    first write  one task has written, and has more to write
    unreported   the same, and the other tasks do not report either
    kill         the executor of such a task is killed
    ending       everything is in the transaction, EndTxn is not sent
    sent         EndTxn was executed, Spark has not logged the batch
    fail         one task fails after it has written everything
    lost         the answer to EndTxn is lost
    extra        somebody writes with the identity of the batch
    silent       the tasks write, and report that they got no rows
    query        Spark does not tell the tasks their query
    batch        Spark does not tell the tasks their batch
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import UnknownOutcome
from fencepost.records.opened import Record
from fencepost.spark.data_source import FencepostSource
from fencepost.spark.doors.options import WriteOptions
from fencepost.spark.doors.routed_task import TaskReport
from fencepost.spark.doors.stream_format import StreamWriter
from fencepost.spark.engine.private_names import THREAD
from fencepost.spark.transaction.identity import DriverProducer
from tests.spark import chaos

FORMAT = "fencepost_with_faults"

_IN_MID_WRITE: dict[str, Callable[..., None]] = {
    "first write": chaos.wait_to_be_released,
    "unreported": chaos.wait_to_be_released,
    "kill": chaos.kill_executor,
}


def register(spark: SparkSession) -> None:
    spark.dataSource.register(FaultySource)


class FaultySource(FencepostSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        given = dict(self.options)
        fault = {name: given.pop(f"fault{name}", "") for name in ("step", "batch", "marker")}
        self.options = given
        genuine = super().streamWriter(schema, overwrite)
        _speak_by_name()
        return FaultyWriter(genuine._options, fault)


class FaultyWriter(StreamWriter):
    def __init__(self, options: WriteOptions, fault: dict[str, str]) -> None:
        super().__init__(options)
        self._step, self._marker = fault["step"], fault["marker"]
        self._batch = int(fault["batch"] or -1)

    def __getstate__(self) -> dict[str, Any]:
        is_new = self._transaction is None
        state = super().__getstate__()
        if is_new and self._transaction is not None:
            self._wait("planned", self._transaction.batch.batch_id)
        return state

    def _wait(self, step: str, batch_id: int) -> None:
        if (step, batch_id) == (self._step, self._batch):
            chaos.wait_to_be_released(self._marker)

    @property
    def _servers(self) -> str:
        return ",".join(map(str, self._options.settings.client.bootstrap))

    def write(self, iterator: Iterator[Any]) -> TaskReport:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        due = int(context.getLocalProperty("streaming.sql.batchId") or -1) == self._batch
        if due and self._step in _IN_MID_WRITE:
            act = _IN_MID_WRITE[self._step]
            around = chaos.AfterFirstWrite(self._servers, self._marker, act)
            genuine = super().write
            report: TaskReport = next(around(lambda rows: iter([genuine(rows)]), iterator))
            if self._step != "unreported":
                return report
            # Spark would pass the report of a task that was faster to abort().
            chaos.await_file(f"{self._marker}.released", 3600)
            return report
        if due and self._step in THREAD.names:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(THREAD, self._step, "noSuchProperty")
                return super().write(iterator)
        if due and self._step == "silent":
            return replace(super().write(iterator), rows=[])
        if due and self._step == "fail":
            with open(f"{self._marker}.attempts", "a") as attempts:
                attempts.write(f"{context.partitionId()}\n")
            report = super().write(iterator)
            if chaos.claim(self._marker):
                raise RuntimeError("the task fails with everything written")
            return report
        return super().write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        if self._step == "extra" and batchId == self._batch:
            self._write_extra(messages)
        genuine = DriverProducer.commit

        def commit(producer: DriverProducer) -> None:
            self._wait("ending", batchId)
            genuine(producer)
            if self._step == "lost" and chaos.claim(self._marker):
                raise UnknownOutcome("the answer is lost")

        DriverProducer.commit = commit  # type: ignore[method-assign, assignment]
        try:
            super().commit(messages, batchId)
        finally:
            DriverProducer.commit = genuine  # type: ignore[method-assign]
        self._wait("sent", batchId)

    def _write_extra(self, messages: list[TaskReport]) -> None:
        """A copy of a task, which nobody should have started, writes one more record."""
        row = next(row for message in messages for row in message.rows if row["topic"])
        place = TopicPartition(row["topic"], row["partition"])
        identity = messages[0].transaction.producer.identity
        with connect(self._servers) as cluster, cluster.writer(identity) as writer:
            writer._writer.queue_of(place).next_sequence = row["last_sequence"] + 1
            writer.write_records(place, [Record(value=b"extra")])
            writer.flush()

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        super().abort(messages, batchId)
        if self._marker:
            known = sum(message is not None for message in messages)
            Path(f"{self._marker}.aborted").write_text(str(known))


def _speak_by_name() -> None:
    """Once per process: see `chaos.speak_by_name`."""
    if not hasattr(Cluster, "speaks_by_name"):
        Cluster.speaks_by_name = os.getpid()  # type: ignore[attr-defined]
        chaos.speak_by_name(pytest.MonkeyPatch())
