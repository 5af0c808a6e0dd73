"""The batch and its query, read from Spark's engine.

`foreachBatch` receives a DataFrame and a number. The query's id is a local property of the calling
thread. A thread that the user started has no such property; there the query is the one whose
session the DataFrame belongs to, because the engine clones a session for each run. The source
offsets are only in the engine's own object, which is not a public interface. If that fails (another
Spark version) the offsets are unknown, and the ledger decides without a fingerprint.

All of this needs the driver. On Spark Connect the sink runs outside of it, and reads what it can
from the checkpoint (`stored_batch.py`).

Every call into the JVM costs a fraction of a millisecond per batch, so each is made only when
needed, and what stays the same during a run is read once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from fencepost.spark.engine.private_names import (
    BATCH,
    CHECKPOINT,
    JVM,
    PLAN,
    QUERIES,
    THREAD,
)
from fencepost.spark.engine.read_topics import leaf_options
from fencepost.spark.engine.session import is_connect
from fencepost.spark.engine.versions import current_batch, session_of_run
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger.entry import fingerprint_of
from fencepost.spark.ledger.rule import Batch
from fencepost.spark.offsets import (
    PartitionOffsets,
    SourceOffsets,
    parse_all,
    parse_sources,
    parse_starts,
)

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
        session: SparkSession | None = None,
    ) -> None:
        self.query_id = query_id
        self.run_id = run_id
        self.batch_id = batch_id
        self.run = (query_id, run_id)
        self.is_foreign = is_foreign
        """Whether the calling thread is not the query's own."""
        self._execution = execution
        self._session = session

    def __repr__(self) -> str:
        return f"<batch {self.batch_id} of query {self.query_id}, run {self.run_id}>"

    @cached_property
    def end_offsets(self) -> tuple[str, ...]:
        """The end offsets of each source, as the checkpoint stores them; empty if unknown."""
        return self._offsets(BATCH.end)

    @cached_property
    def start_offsets(self) -> tuple[str, ...]:
        """The start offsets of each source; empty if unknown."""
        return self._offsets(BATCH.start)

    @property
    def fingerprint(self) -> str:
        """A short hash of the end offsets; empty if they are unknown."""
        return fingerprint_of(self.end_offsets) if self.end_offsets else ""

    def as_batch(self, parts: Iterable[str] | None = None, *, is_again: bool = False) -> Batch:
        """The batch as the ledger compares and records it."""
        ended = self.ended
        return Batch(
            self.query_id,
            self.batch_id,
            self.fingerprint,
            self.start,
            {} if ended is None else ended.id_texts,
            is_stateful=self.is_stateful,
            parts=None if parts is None else tuple(parts),
            run_id=self.run_id,
            is_again=is_again,
            ended=ended,
            find_start=None if self._session is None else self.find_first_start,
            begun=fingerprint_of(self.start_offsets) if self.start_offsets else "",
        )

    @cached_property
    def ended(self) -> SourceOffsets | None:
        """Where the sources end; None if that is unknown or some source is not a topic."""
        return parse_all(self.end_offsets)

    @cached_property
    def start(self) -> PartitionOffsets | None:
        """Where the sources begin; None likewise."""
        # Spark has no start offsets for the first batch; our source stores them in its end offsets.
        if not self.start_offsets:
            return parse_starts(self.end_offsets)
        return parse_sources(self.start_offsets)

    def find_first_start(self) -> PartitionOffsets | None:
        """The start of the first batch, with the files of the checkpoint; None if unknown."""
        if self.batch_id != 0 or self._session is None:
            return None
        return parse_starts(self.end_offsets, self.initial_files)

    @cached_property
    def initial_files(self) -> tuple[str, ...]:
        from fencepost.spark.engine.stored_batch import readinitial_files

        assert self._session is not None
        with CHECKPOINT.optional():
            folder = str(getattr(self._execution, CHECKPOINT.folder)())
            return readinitial_files(self._session, folder)
        return ()

    @property
    def expected_rows(self) -> int | None:
        """How many offsets the batch has in its sources; None if they are unknown."""
        if self.start is None or self.ended is None:
            return None
        start = self.start
        return sum([end - start.get(tp, 0) for tp, end in self.ended.offsets.items()])

    def next(self, batch_id: int, *, is_foreign: bool = False) -> MicroBatch:
        """A later batch of the same run."""
        later = MicroBatch(
            self.query_id,
            self.run_id,
            batch_id,
            self._execution,
            is_foreign=is_foreign,
            session=self._session,
        )
        known = self.__dict__
        if batch_id == self.batch_id + 1 and "ended" in known:
            # It begins where this one ends: that saves a call into the JVM.
            later.start_offsets = self.end_offsets
            later.start = None if self.ended is None else self.ended.reached
        if "is_stateful" in known:
            later.is_stateful = self.is_stateful
        return later

    @cached_property
    def _context(self) -> Any:
        """The engine's object of its current batch."""
        return None if self._execution is None else current_batch(self._execution)

    def check_batch(self) -> None:
        """Raises SinkRefused if the engine is in another batch."""
        try:
            current = None if self._context is None else int(getattr(self._context, BATCH.number)())
        except (*_UNKNOWN, ValueError) as problem:
            log.debug("the engine's current batch is not known: %s", problem)
            return
        if current is not None and current != self.batch_id:
            raise SinkRefused(
                f"the sink was called for batch {self.batch_id}, but the query is in batch "
                f"{current}: pass the batch id that Spark passes to your function, and do not "
                "return from the function before the sink has returned. Nothing was written"
            )

    @contextmanager
    def in_thread(self, session: SparkSession) -> Iterator[None]:
        """Assigns the jobs of a user's thread to the query, so that `query.stop()` ends them."""
        if not self.is_foreign:
            yield
            return
        context = session.sparkContext
        ours = {
            THREAD.query: self.query_id,
            THREAD.run: self.run_id,
            THREAD.batch: str(self.batch_id),
            THREAD.group: self.run_id,
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
            plan = getattr(self._execution, PLAN.sources)()
            return list(leaf_options(plan, streaming_only=True))
        except _UNKNOWN as problem:
            log.debug("the options of the sources are not known: %s", problem)
            return []

    @cached_property
    def is_stateful(self) -> bool | None:
        """Whether the query's plan has a stateful operator; None if unknown."""
        try:
            return None if self._execution is None else _keeps_state(self._plan())
        except _UNKNOWN as problem:
            log.debug("cannot tell whether the query keeps state: %s", problem)
            return None

    def _plan(self) -> Any:
        return getattr(self._execution, PLAN.running)()

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
    if not getattr(node, PLAN.streaming)():
        return False
    name = str(getattr(node, PLAN.node)())
    if name in _KEEPING_STATE or "WithState" in name:
        return True
    found = getattr(node, PLAN.children)()
    children = [found.apply(index) for index in range(found.size())]
    if name == "Join" and all(getattr(child, PLAN.streaming)() for child in children):
        return True
    return any(_keeps_state(child) for child in children)


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
    is_known = before is not None and before.has_engine
    if not is_known and is_connect(session):
        from fencepost.spark.engine.stored_batch import read_connect_batch

        return read_connect_batch(session, batch_id, checkpoint)
    context = session.sparkContext
    # The engine's thread has the run as its job group, unless the user's function has changed it.
    if before is not None and context.getLocalProperty(THREAD.group) == before.run_id:
        return before.next(batch_id)
    query_id = context.getLocalProperty(THREAD.query)
    if query_id:
        # Spark allows one active run of a query at a time.
        if before is not None and before.query_id == query_id and before.is_running():
            return before.next(batch_id)
        return find_run(session, query_id, batch_id)
    if not has_rows:
        raise SinkRefused(
            "sink.skip was called outside of a streaming query, or in a thread of your own, where "
            "the query is not known: call it in the function that you pass to foreachBatch. "
            "Nothing was written"
        )
    found = _find_by_session(session, batch_id)
    if found is None:
        raise SinkRefused(
            "the sink was called outside of a streaming query, or with a DataFrame that "
            "does not come from the query's batch: use it as "
            "df.writeStream.foreachBatch(sink); in a thread of your own, pass a "
            "DataFrame derived from the batch's. Nothing was written"
        )
    return found


def find_run(session: SparkSession, query_id: str, batch_id: int) -> MicroBatch:
    """The active run of a query."""
    try:
        jvm = getattr(session.sparkContext, JVM.gateway)
        queries = _active_queries(getattr(session, JVM.session))
        execution = queries.get(jvm.java.util.UUID.fromString(query_id))
        run_id = execution.runId().toString()
        return MicroBatch(query_id, run_id, batch_id, execution, session=session)
    except _UNKNOWN as problem:
        log.warning("the run of batch %d is not known: %s", batch_id, problem)
        # The runs of a query must still be told apart: the engine's thread has it as its job group.
        run_id = session.sparkContext.getLocalProperty(THREAD.group)
        return MicroBatch(query_id, run_id or "", batch_id)


def _find_by_session(session: SparkSession, batch_id: int) -> MicroBatch | None:
    """The active query that this session was cloned for."""
    try:
        java_session = getattr(session, JVM.session)
        # An enumeration: py4j would treat the map as a Python dict and fetch its values key by key.
        runs = _active_queries(java_session).elements()
        while runs.hasMoreElements():
            execution = runs.nextElement()
            if java_session.equals(session_of_run(execution)):
                query_id, run_id = execution.id().toString(), execution.runId().toString()
                return MicroBatch(
                    query_id, run_id, batch_id, execution, is_foreign=True, session=session
                )
    except _UNKNOWN as problem:
        log.debug("the query of batch %d is not known: %s", batch_id, problem)
        raise SinkRefused(
            "this Spark does not show which query a thread of your own belongs to: call the sink "
            "in the thread in which Spark calls your function. Nothing was written"
        ) from None
    return None


def _active_queries(java_session: Any) -> Any:
    return getattr(getattr(java_session, QUERIES.shared)(), QUERIES.active)()
