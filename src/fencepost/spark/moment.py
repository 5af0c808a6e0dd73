"""Which batch of which query this is, as Spark's engine knows it.

`foreachBatch` is given a DataFrame and a number. The query's id stands in the properties of the thread that calls us;
its source offsets are reachable only through the engine's own object, which is not a public interface. Where that
fails (another Spark, another kind of session) the offsets are unknown, and the ledger decides without a fingerprint.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger import Batch, fingerprint_of
from fencepost.spark.offsets import parse_sources, parse_starts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moment:
    """One call of the sink."""

    query_id: str
    run_id: str
    batch_id: int
    start_offsets: tuple[str, ...] = ()
    end_offsets: tuple[str, ...] = ()
    _execution: Any = field(default=None, repr=False, compare=False)

    @property
    def run(self) -> tuple[str, str]:
        return (self.query_id, self.run_id)

    def as_batch(self) -> Batch:
        """What the ledger wants to know."""
        fingerprint = fingerprint_of(self.end_offsets) if self.end_offsets else ""
        # Spark has no start offsets for the first batch; our source says them in its end offsets.
        start = parse_sources(self.start_offsets) or parse_starts(self.end_offsets)
        return Batch(self.query_id, self.batch_id, fingerprint, start)

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
                    found.append(dict(leaf.relation().options().asCaseSensitiveMap()))
            return found
        except Py4JError as problem:
            # A source of the older kind (files, rate) has no relation to ask.
            log.debug("the options of the sources are not known: %s", problem)
            return None

    def is_running(self) -> bool:
        """Whether the engine says that the query lives; False where we cannot ask it."""
        try:
            return self._execution is not None and bool(self._execution.isActive())
        except Py4JError:
            return False

    def is_stopping(self) -> bool:
        """Whether somebody has asked the query to stop: then a failed job is not tried again."""
        return self._execution is not None and not self.is_running()


def read_moment(df: DataFrame, batch_id: int) -> Moment:
    """Asks the engine about the batch that it has just handed to us."""
    session = df.sparkSession
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        raise SinkRefused(
            "TransactionalSink was called outside of a streaming query: use it as "
            "df.writeStream.foreachBatch(TransactionalSink(...))"
        )
    try:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001
        queries = session._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
        execution = queries.get(jvm.java.util.UUID.fromString(query_id))
        context = execution.getLatestExecutionContext()
        return Moment(
            query_id,
            execution.runId().toString(),
            batch_id,
            _jsons(context.startOffsets()),
            _jsons(context.endOffsets()),
            execution,
        )
    except (Py4JError, AttributeError, TypeError) as problem:
        log.warning("the source offsets of batch %d are not known: %s", batch_id, problem)
        return Moment(query_id, "", batch_id)


def _jsons(progress: Any) -> tuple[str, ...]:
    """The offsets of all sources of a StreamProgress, as the checkpoint stores them."""
    found: list[str] = []
    iterator = progress.iterator()
    while iterator.hasNext():
        found.append(iterator.next()._2().json())  # noqa: SLF001  (a Scala pair)
    return tuple(sorted(found))
