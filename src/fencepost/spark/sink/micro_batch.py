"""Which batch of which query this is, as Spark's engine knows it.

`foreachBatch` is given a DataFrame and a number. The query's id stands in the properties of the
thread that calls us. A thread of the user's own has no such properties; there the query is the one
whose session the DataFrame belongs to, because the engine clones a session for each run. The source
offsets are reachable only through the engine's own object, which is not a public interface. Where
that fails (another Spark, another kind of session) the offsets are unknown, and the ledger decides
without a fingerprint.

The engine counts rows (`numInputRows`, `observe`) in the plan of the batch, and every run of that
plan adds to them. The sink may have to run it twice, so it sets the counts to zero before each run
(`forget_counts`).

Every question to the JVM costs some of a millisecond in every batch, so each is asked when its
answer is needed, and what stays the same in a run of a query is asked once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from fencepost.spark.failures import SinkRefused
from fencepost.spark.offsets import parse_all, parse_sources, parse_starts
from fencepost.spark.sink.ledger.ledger import Batch, fingerprint_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_BETWEEN: Final = "\x00"
"""Between the offsets of two sources: no JSON has this character."""

_KEEPING_STATE: Final = frozenset(
    {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "GlobalLimit"}
)
"""Nodes of a logical plan that keep state where they are streaming; so do those named
`...WithState...`."""

_QUERY_ID: Final = "sql.streaming.queryId"
_JOB_GROUP: Final = "spark.jobGroup.id"

_UNKNOWN: Final = (Py4JError, AttributeError, TypeError)
"""What asking an engine raises that has other inner parts than the one we know."""


class MicroBatch:
    """One call of the sink."""

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
        """Whether the calling thread is not one that Spark has made for the query."""
        self._execution = execution

    def __repr__(self) -> str:
        return f"<batch {self.batch_id} of query {self.query_id}, run {self.run_id}>"

    @property
    def run(self) -> tuple[str, str]:
        return (self.query_id, self.run_id)

    @cached_property
    def end_offsets(self) -> tuple[str, ...]:
        """Where each source ends, as the checkpoint stores it; nothing where we cannot know it."""
        return self._offsets("endOffsets")

    @cached_property
    def start_offsets(self) -> tuple[str, ...]:
        return self._offsets("startOffsets")

    @property
    def fingerprint(self) -> str:
        """A short name for what the batch was made from; empty where we cannot know it."""
        return fingerprint_of(self.end_offsets) if self.end_offsets else ""

    def as_batch(self) -> Batch:
        """What the ledger wants to know."""
        # Spark has no start offsets for the first batch; our source says them in its end offsets.
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
        """A later call in the same run."""
        return MicroBatch(
            self.query_id, self.run_id, batch_id, self._execution, is_foreign=is_foreign
        )

    @cached_property
    def _context(self) -> Any:
        """The engine's object of the batch that it is in."""
        return None if self._execution is None else self._execution.getLatestExecutionContext()

    @cached_property
    def _plan(self) -> Any:
        """What the engine runs in this batch, with its counts."""
        return None if self._context is None else self._context.executionPlan().executedPlan()

    def check_batch(self) -> None:
        """SinkRefused when the engine is in another batch than the caller says."""
        try:
            current = None if self._context is None else int(self._context.batchId())
        except (*_UNKNOWN, ValueError) as problem:
            log.debug("the engine does not say in which batch it is: %s", problem)
            return
        if current is not None and current != self.batch_id:
            raise SinkRefused(
                f"the sink was called for batch {self.batch_id}, but the query is in batch "
                f"{current}: pass on the batch id "
                "that Spark gives to your function, and do not return from the function before "
                "the sink has returned. "
                "Nothing was written"
            )

    def rdd_id(self) -> int | None:
        """The RDD as which the engine hands this batch to the user's function; None where we cannot know it."""
        try:
            if self._context is None:
                return None
            return int(self._context.executionPlan().toRdd().id())
        except _UNKNOWN as problem:
            log.debug("the RDD of batch %d is not known: %s", self.batch_id, problem)
            return None

    def forget_counts(self) -> None:
        """Sets the engine's counts of this batch to zero, so that rows which are about to run again count once."""
        try:
            if self._plan is not None:
                self._plan.resetMetrics()
        except _UNKNOWN as problem:
            log.debug("the counts of batch %d stay as they are: %s", self.batch_id, problem)

    def input_rows(self) -> tuple[int, ...]:
        """What each source has been counted to deliver in this batch; nothing where we cannot know it."""
        try:
            return tuple(int(metric.value()) for metric in self._source_metrics())
        except _UNKNOWN as problem:
            log.debug("the counts of batch %d are not known: %s", self.batch_id, problem)
            return ()

    def correct_input_rows(self, rows: tuple[int, ...]) -> None:
        """Sets these counts to what `input_rows` said before."""
        try:
            for metric, count in zip(self._source_metrics(), rows, strict=True):
                metric.set(count)
        except (*_UNKNOWN, ValueError) as problem:
            log.debug("the counts of batch %d stay as they are: %s", self.batch_id, problem)

    def _source_metrics(self) -> Iterator[Any]:
        if self._plan is None:
            return
        leaves = self._plan.collectLeaves().iterator()
        while leaves.hasNext():
            found = leaves.next().metrics().get("numOutputRows")
            if found.isDefined():
                yield found.get()

    @contextmanager
    def in_thread(self, context: SparkContext) -> Iterator[None]:
        """Lets the jobs of a thread that is not Spark's belong to the query, so that `query.stop()` ends them."""
        if not self.is_foreign:
            yield
            return
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

    def source_options(self) -> list[dict[str, str]] | None:
        """The options of every source of the query; None where we cannot know them all."""
        try:
            if self._execution is None:
                return None
            leaves = self._execution.logicalPlan().collectLeaves().iterator()
            found: list[dict[str, str]] = []
            while leaves.hasNext():
                leaf = leaves.next()
                if leaf.isStreaming():
                    found.append(_entries(leaf.relation().options().asCaseSensitiveMap()))
            return found
        except Py4JError as problem:
            # A source of the older kind (files, rate) has no relation to ask.
            log.debug("the options of the sources are not known: %s", problem)
            return None

    @cached_property
    def is_stateful(self) -> bool | None:
        """Whether the query's plan has an operator that keeps state; None where we cannot know it."""
        try:
            return None if self._execution is None else _keeps_state(self._execution.logicalPlan())
        except _UNKNOWN as problem:
            log.debug("whether the query keeps state is not known: %s", problem)
            return None

    def is_running(self) -> bool:
        """Whether the engine says that this run of the query lives; False where we cannot ask it."""
        try:
            return self._execution is not None and bool(self._execution.isActive())
        except Py4JError:
            return False

    def is_stopping(self) -> bool:
        """Whether somebody has asked the query to stop: then a failed job is not tried again."""
        return self._execution is not None and not self.is_running()

    def _offsets(self, which: str) -> tuple[str, ...]:
        if self._execution is None:
            return ()
        try:
            progress = getattr(self._context, which)()
            # An offset as text is its JSON.
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


def _entries(options: Any) -> dict[str, str]:
    """A map of the JVM.

    Asked before each step: py4j's own loop goes on until Java throws, which takes it 20 ms.
    """
    found = {}
    entries = options.entrySet().iterator()
    while entries.hasNext():
        entry = entries.next()
        found[entry.getKey()] = entry.getValue()
    return found


def read_micro_batch(
    session: SparkSession, batch_id: int, before: MicroBatch | None = None, *, has_rows: bool = True
) -> MicroBatch:
    """Asks the engine about the batch that it has just handed to us.

    `before` is the batch that we saw last.

    `session` is that of the batch's DataFrame; without rows (`has_rows`) it may be any.
    """
    try:
        context = session.sparkContext
    except AttributeError:
        raise SinkRefused(
            "TransactionalSink was called in a session of Spark Connect, from which the driver "
            "cannot be reached: run the "
            "query in a classic session (SparkSession.builder.master(...), or spark-submit). "
            "Nothing was written"
        ) from None
    query_id = context.getLocalProperty(_QUERY_ID)
    if query_id:
        # Spark lets no more than one run of a query live.
        if before is not None and before.query_id == query_id and before.is_running():
            return before.next(batch_id)
        return _find_run(session, query_id, batch_id)
    if not has_rows:
        raise SinkRefused(
            "sink.skip was called outside of a streaming query, or in a thread of its own, "
            "where the query is not known: "
            "call it in the function that you pass to foreachBatch. Nothing was written"
        )
    found = _find_by_session(session, batch_id)
    if found is None:
        raise SinkRefused(
            "TransactionalSink was called outside of a streaming query, or with a DataFrame "
            "that does not come from the "
            "query's batch: use it as df.writeStream.foreachBatch(TransactionalSink(...)); a "
            "thread of your own must be "
            "given a DataFrame that was made from the batch's. Nothing was written"
        )
    return found


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
    """The live query for which the engine has made this session."""
    try:
        java_session = session._jsparkSession  # noqa: SLF001
        # An enumeration, because py4j takes the map for one of Python's and would ask for its
        # values key by key.
        runs = java_session.sharedState().activeStreamingQueries().elements()
        while runs.hasMoreElements():
            execution = runs.nextElement()
            if java_session.equals(execution.sparkSessionForStream()):
                query_id, run_id = execution.id().toString(), execution.runId().toString()
                return MicroBatch(query_id, run_id, batch_id, execution, is_foreign=True)
    except _UNKNOWN as problem:
        log.warning("the query of batch %d is not known: %s", batch_id, problem)
    return None
