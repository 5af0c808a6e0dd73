"""The batch and its query, read from Spark's engine.

`foreachBatch` receives a DataFrame and a number. The query's id is a local property of the calling
thread. A thread that the user started has no such property; there the query is the one whose
session the DataFrame belongs to, because the engine clones a session for each run. The source
offsets are only in the engine's own object, which is not a public interface. If that fails (another
Spark version) the offsets are unknown, and the ledger decides without a fingerprint.

All of this needs the driver. On Spark Connect the sink runs outside of it, and reads what it can
from the checkpoint (`connect_batch.py`).

The engine counts rows (`numInputRows`, `observe`) in the plan of the batch, and every run of that
plan adds to them. The sink may have to run it twice, so it resets the counts before each run
(`reset_counts`).

Every call into the JVM costs a fraction of a millisecond per batch, so each is made only when
needed, and what stays the same during a run is read once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from fencepost.spark.failures import SinkRefused
from fencepost.spark.offsets import parse_all, parse_sources, parse_starts
from fencepost.spark.session import is_connect
from fencepost.spark.sink.batch.read_topics import leaf_options
from fencepost.spark.sink.ledger.decision import Batch
from fencepost.spark.sink.ledger.entry import fingerprint_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_BETWEEN: Final = "\x00"
"""Separates the offsets of two sources. JSON text cannot contain it."""

_KEEPING_STATE: Final = frozenset(
    {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "GlobalLimit"}
)
"""Nodes of a logical plan that keep state if they are streaming, in addition to
`...WithState...`."""

_QUERY_ID: Final = "sql.streaming.queryId"
_JOB_GROUP: Final = "spark.jobGroup.id"

_ROWS: Final = "numOutputRows"
_ROWS_IN_TEXT: Final = re.compile(
    rf"\b{_ROWS} -> SQLMetric\(id: \d+, name: [^()]*\([^()]*\), value: (\d+)\)"
)
"""The row count in the text of a plan node's metrics: one JVM call, where its parts take four."""

_TEMPORARY: Final = "temporary-"
_RANDOM: Final = re.compile(rf"({_TEMPORARY})?[0-9a-f-]{{36}}")
"""The folder of a checkpoint for which nobody has chosen a name."""
_LOCATION: Final = "spark.sql.streaming.checkpointLocation"

_UNKNOWN: Final = (Py4JError, AttributeError, TypeError)
"""Raised by calls into an engine with other internals than the supported one."""


class MicroBatch:
    """One batch of one run of a query."""

    has_engine = True
    """Whether the sink runs in the driver, where it can reach the engine."""
    sources_unknown = "the query reads something other than topics, or one topic twice"
    """Why the options of the sources are not known, if they are not."""

    def __init__(
        self,
        query_id: str,
        run_id: str,
        batch_id: int,
        execution: Any = None,
        *,
        is_foreign: bool = False,
    ) -> None:
        self.query_id = query_id
        self.run_id = run_id
        self.batch_id = batch_id
        self.is_foreign = is_foreign
        """Whether the calling thread is not the query's own."""
        self._execution = execution

    def __repr__(self) -> str:
        return f"<batch {self.batch_id} of query {self.query_id}, run {self.run_id}>"

    @property
    def run(self) -> tuple[str, str]:
        """Query id and run id."""
        return (self.query_id, self.run_id)

    @cached_property
    def end_offsets(self) -> tuple[str, ...]:
        """The end offsets of each source, as the checkpoint stores them; empty if unknown."""
        return self._offsets("endOffsets")

    @cached_property
    def start_offsets(self) -> tuple[str, ...]:
        """The start offsets of each source; empty if unknown."""
        return self._offsets("startOffsets")

    @property
    def fingerprint(self) -> str:
        """A short hash of the end offsets; empty if they are unknown."""
        return fingerprint_of(self.end_offsets) if self.end_offsets else ""

    def as_batch(self) -> Batch:
        """The batch as the ledger compares it."""
        # Spark has no start offsets for the first batch; our source stores them in its end offsets.
        start = parse_sources(self.start_offsets) or parse_starts(self.end_offsets)
        ended = parse_all(self.end_offsets)
        return Batch(
            self.query_id,
            self.batch_id,
            self.fingerprint,
            start,
            {} if ended is None else ended.id_texts,
            is_stateful=self.is_stateful,
        )

    def next(self, batch_id: int, *, is_foreign: bool = False) -> MicroBatch:
        """A later batch of the same run."""
        return MicroBatch(
            self.query_id, self.run_id, batch_id, self._execution, is_foreign=is_foreign
        )

    @cached_property
    def _context(self) -> Any:
        """The engine's object of its current batch."""
        return None if self._execution is None else self._execution.getLatestExecutionContext()

    @cached_property
    def _plan(self) -> Any:
        """The plan of this batch, which holds its counts."""
        return None if self._context is None else self._context.executionPlan().executedPlan()

    def next_batch_id(self) -> int | None:
        """The batch that comes after those that Spark has finished.

        None if one is unfinished, which Spark then repeats at once, or if nothing is known.
        """
        try:
            if self._execution is None:
                return None
            finished = self._execution.commitLog().getLatestBatchId()
            begun = self._execution.offsetLog().getLatestBatchId()
            if finished.isEmpty() or not begun.equals(finished):
                return None
            return int(finished.get()) + 1
        except _UNKNOWN as problem:
            log.debug("the last batch of the checkpoint is not known: %s", problem)
            return None

    def check_batch(self) -> None:
        """Raises SinkRefused if the engine is in another batch."""
        try:
            current = None if self._context is None else int(self._context.batchId())
        except (*_UNKNOWN, ValueError) as problem:
            log.debug("the engine's current batch is not known: %s", problem)
            return
        if current is not None and current != self.batch_id:
            raise SinkRefused(
                f"the sink was called for batch {self.batch_id}, but the query is in batch "
                f"{current}: pass the batch id that Spark passes to your function, and do not "
                "return from the function before the sink has returned. Nothing was written"
            )

    def rdd_id(self) -> int | None:
        """The RDD as which the engine passes this batch to the user; None if unknown."""
        try:
            if self._context is None:
                return None
            return int(self._context.executionPlan().toRdd().id())
        except _UNKNOWN as problem:
            log.debug("the RDD of batch %d is not known: %s", self.batch_id, problem)
            return None

    def reset_counts(self) -> None:
        """Sets the engine's counts of this batch to zero, before its rows are read again."""
        try:
            if self._plan is not None:
                self._plan.resetMetrics()
        except _UNKNOWN as problem:
            log.debug("the counts of batch %d stay as they are: %s", self.batch_id, problem)

    def input_rows(self) -> tuple[int, ...]:
        """The row counts of each source in this batch; empty if unknown."""
        try:
            found = (_rows_in(str(leaf.metrics().toString())) for leaf in self._leaves())
            return tuple(rows for rows in found if rows is not None)
        except (*_UNKNOWN, ValueError) as problem:
            log.debug("the counts of batch %d are not known: %s", self.batch_id, problem)
            return ()

    def correct_input_rows(self, rows: tuple[int, ...]) -> None:
        """Sets these counts to earlier values of `input_rows`."""
        try:
            found = (leaf.metrics().get(_ROWS) for leaf in self._leaves())
            metrics = [metric.get() for metric in found if metric.isDefined()]
            for metric, count in zip(metrics, rows, strict=True):
                metric.set(count)
        except (*_UNKNOWN, ValueError) as problem:
            log.debug("the counts of batch %d stay as they are: %s", self.batch_id, problem)

    def _leaves(self) -> Iterator[Any]:
        """The leaves of the batch's plan: its sources, and other data."""
        if self._plan is None:
            return
        leaves = self._plan.collectLeaves()
        for index in range(leaves.size()):
            yield leaves.apply(index)

    @contextmanager
    def in_thread(self, session: SparkSession) -> Iterator[None]:
        """Assigns the jobs of a user's thread to the query, so that `query.stop()` ends them."""
        if not self.is_foreign:
            yield
            return
        context = session.sparkContext
        ours = {
            _QUERY_ID: self.query_id,
            "sql.streaming.runId": self.run_id,
            "streaming.sql.batchId": str(self.batch_id),
            _JOB_GROUP: self.run_id,
        }
        before = {name: context.getLocalProperty(name) for name in ours}
        try:
            for name, value in ours.items():
                context.setLocalProperty(name, value)
            yield
        finally:
            for name, old in before.items():
                # None removes it, which the stubs do not say.
                context.setLocalProperty(name, old)  # type: ignore[arg-type]

    def source_options(self) -> list[dict[str, str] | None]:
        """The options of every source of the query, None for one that shows none.

        Empty if nothing is known.
        """
        try:
            if self._execution is None:
                return []
            return list(leaf_options(self._execution.logicalPlan(), streaming_only=True))
        except _UNKNOWN as problem:
            log.debug("the options of the sources are not known: %s", problem)
            return []

    @property
    def has_lasting_checkpoint(self) -> bool:
        """Whether the next start of the query finds this checkpoint again; True if unknown."""
        try:
            if self._execution is None:
                return True
            folder = str(self._execution.resolvedCheckpointRoot()).rpartition("/")[2]
            if not _RANDOM.fullmatch(folder):
                return True
            if folder.startswith(_TEMPORARY):
                return False
            # A query without a name has a random one in the folder that the session's setting
            # names. Otherwise the user has chosen this name.
            settings = self._execution.sparkSession().conf()
            return bool(self._execution.name()) or not settings.get(_LOCATION, "")
        except _UNKNOWN as problem:
            log.debug("the checkpoint of the query is not known: %s", problem)
            return True

    @cached_property
    def is_stateful(self) -> bool | None:
        """Whether the query's plan has a stateful operator; None if unknown."""
        try:
            return None if self._execution is None else _keeps_state(self._execution.logicalPlan())
        except _UNKNOWN as problem:
            log.debug("cannot tell whether the query keeps state: %s", problem)
            return None

    def is_running(self) -> bool:
        """Whether this run of the query is active; False if unknown."""
        try:
            return self._execution is not None and bool(self._execution.isActive())
        except Py4JError:
            return False

    def is_stopping(self) -> bool:
        """Whether the query is being stopped: a failed job is then not tried again."""
        return self._execution is not None and not self.is_running()

    def _offsets(self, which: str) -> tuple[str, ...]:
        if self._execution is None:
            return ()
        try:
            progress = getattr(self._context, which)()
            # The string form of an offset is its JSON.
            text: str = progress.values().mkString(_BETWEEN)
        except _UNKNOWN as problem:
            log.warning("the offsets of batch %d are not known: %s", self.batch_id, problem)
            return ()
        return tuple(sorted(text.split(_BETWEEN))) if text else ()


def _keeps_state(node: Any) -> bool:
    if not node.isStreaming():
        return False
    name = str(node.nodeName())
    if name in _KEEPING_STATE or "WithState" in name:
        return True
    found = node.children()
    children = [found.apply(index) for index in range(found.size())]
    if name == "Join" and all(child.isStreaming() for child in children):
        return True
    return any(_keeps_state(child) for child in children)


def _rows_in(metrics: str) -> int | None:
    """The row count in the text of a map of metrics; None if it has none, ValueError if unknown."""
    if _ROWS not in metrics:
        return None
    found = _ROWS_IN_TEXT.search(metrics)
    if found is None:
        raise ValueError(f"no row count in {metrics}")
    return int(found[1])


def read_micro_batch(
    session: SparkSession,
    batch_id: int,
    before: MicroBatch | None = None,
    *,
    has_rows: bool = True,
    checkpoint: str | None = None,
) -> MicroBatch:
    """Finds the query and the run of a batch.

    `session` is that of the batch's DataFrame; if `has_rows` is false it may be any. `before` is
    the last batch of this sink. Only Connect needs the checkpoint.
    """
    if is_connect(session):
        from fencepost.spark.sink.batch.connect_batch import read_connect_batch

        return read_connect_batch(session, batch_id, checkpoint)
    context = session.sparkContext
    # The engine's thread has the run as its job group, unless the user's function has changed it.
    if before is not None and context.getLocalProperty(_JOB_GROUP) == before.run_id:
        return before.next(batch_id)
    query_id = context.getLocalProperty(_QUERY_ID)
    if query_id:
        # Spark allows one active run of a query at a time.
        if before is not None and before.query_id == query_id and before.is_running():
            return before.next(batch_id)
        return _find_run(session, query_id, batch_id)
    if not has_rows:
        raise SinkRefused(
            "sink.skip was called outside of a streaming query, or in a thread of your own, where "
            "the query is not known: call it in the function that you pass to foreachBatch. "
            "Nothing was written"
        )
    found = _find_by_session(session, batch_id)
    if found is None:
        raise SinkRefused(
            "TransactionalSink was called outside of a streaming query, or with a DataFrame that "
            "does not come from the query's batch: use it as "
            "df.writeStream.foreachBatch(TransactionalSink(...)); in a thread of your own, pass a "
            "DataFrame derived from the batch's. Nothing was written"
        )
    return found


def find_run(session: SparkSession, query_id: str) -> MicroBatch:
    """The active run of a query, before its first batch."""
    return _find_run(session, query_id, -1)


def _find_run(session: SparkSession, query_id: str, batch_id: int) -> MicroBatch:
    try:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001
        queries = session._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
        execution = queries.get(jvm.java.util.UUID.fromString(query_id))
        return MicroBatch(query_id, execution.runId().toString(), batch_id, execution)
    except _UNKNOWN as problem:
        log.warning("the run of batch %d is not known: %s", batch_id, problem)
        return MicroBatch(query_id, "", batch_id)


def _find_by_session(session: SparkSession, batch_id: int) -> MicroBatch | None:
    """The active query that this session was cloned for."""
    try:
        java_session = session._jsparkSession  # noqa: SLF001
        # An enumeration: py4j would treat the map as a Python dict and fetch its values key by key.
        runs = java_session.sharedState().activeStreamingQueries().elements()
        while runs.hasMoreElements():
            execution = runs.nextElement()
            if java_session.equals(execution.sparkSessionForStream()):
                query_id, run_id = execution.id().toString(), execution.runId().toString()
                return MicroBatch(query_id, run_id, batch_id, execution, is_foreign=True)
    except _UNKNOWN as problem:
        log.warning("the query of batch %d is not known: %s", batch_id, problem)
    return None
