"""Which batch of which query this is, as Spark's engine knows it.

`foreachBatch` is given a DataFrame and a number. The query's id stands in the properties of the thread that calls us;
its source offsets are reachable only through the engine's own object, which is not a public interface. Where that
fails (another Spark, another kind of session) the offsets are unknown, and the ledger decides without a fingerprint.

Every question to the JVM costs some of a millisecond in every batch, so each is asked when its answer is needed, and
what stays the same in a run of a query is asked once.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger import Batch, fingerprint_of
from fencepost.spark.offsets import parse_all, parse_sources, parse_starts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_BETWEEN: Final = "\x00"
"""Between the offsets of two sources: no JSON has this character."""

_KEEPING_STATE: Final = frozenset(
    {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "GlobalLimit"}
)
"""Nodes of a logical plan that keep state where they are streaming; so do those named `...WithState...`."""


class Moment:
    """One call of the sink."""

    def __init__(self, query_id: str, run_id: str, batch_id: int, execution: Any = None) -> None:
        self.query_id = query_id
        self.run_id = run_id
        self.batch_id = batch_id
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

    def next(self, batch_id: int) -> Moment:
        """A later call in the same run."""
        return Moment(self.query_id, self.run_id, batch_id, self._execution)

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
        except (Py4JError, AttributeError, TypeError) as problem:
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
            progress = getattr(self._execution.getLatestExecutionContext(), which)()
            # An offset as text is its JSON.
            text: str = progress.values().mkString(_BETWEEN)
        except (Py4JError, AttributeError, TypeError) as problem:
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
    """A map of the JVM. Asked before each step: py4j's own loop goes on until Java throws, which takes it 20 ms."""
    found = {}
    entries = options.entrySet().iterator()
    while entries.hasNext():
        entry = entries.next()
        found[entry.getKey()] = entry.getValue()
    return found


def read_moment(df: DataFrame, batch_id: int, before: Moment | None = None) -> Moment:
    """Asks the engine about the batch that it has just handed to us. `before` is the batch that we saw last."""
    session = df.sparkSession
    try:
        context = session.sparkContext
    except AttributeError:
        raise SinkRefused(
            "TransactionalSink was called in a session of Spark Connect, from which the driver cannot be reached: run the "
            "query in a classic session (SparkSession.builder.master(...), or spark-submit). Nothing was written"
        ) from None
    query_id = context.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        raise SinkRefused(
            "TransactionalSink was called outside of a streaming query: use it as "
            "df.writeStream.foreachBatch(TransactionalSink(...))"
        )
    # Spark lets no more than one run of a query live.
    if before is not None and before.query_id == query_id and before.is_running():
        return before.next(batch_id)
    return _find_run(session, query_id, batch_id)


def _find_run(session: SparkSession, query_id: str, batch_id: int) -> Moment:
    try:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001
        queries = session._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
        execution = queries.get(jvm.java.util.UUID.fromString(query_id))
        return Moment(query_id, execution.runId().toString(), batch_id, execution)
    except (Py4JError, AttributeError, TypeError) as problem:
        log.warning("the run of batch %d is not known: %s", batch_id, problem)
        return Moment(query_id, "", batch_id)
