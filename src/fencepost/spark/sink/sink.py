"""One Kafka transaction per micro-batch, over all executors, topics and partitions.

    sink = TransactionalSink("localhost:9092", transactional_id="refunds", topic="refunds-emitted")
    df.writeStream.foreachBatch(sink).option("checkpointLocation", "...").start()

Theory of operation. The driver owns the transaction. Every attempt to write a batch has its own
identity (producer id and epoch); executors only borrow it. The steps of a batch:

    call      one call per batch: a second one, or one after a caught failure, is refused
              (`calls.py`)
    check     an id that belongs to another query is refused before its owner is fenced
              (`checks.py`)
    fence     a fresh epoch ends what a predecessor left open and fences its executors
              (`producer.py`)
    decide    the ledger decides: write, drain, take over or refuse (`ledger/decision.py`)
    pack      rows become record batches, on all cores (`transport/packing/`)
    deliver   one task per topic-partition sends them to the brokers (`transport/delivery.py`)
    count     every partition once, every row once (`transport/accounts.py`)
    enter     source offsets, if the sources are in this cluster, and the ledger record join the
              transaction; if the driver writes the rows itself, the record goes in the same
              request (`ledger/entry_writer.py`)
    commit    EndTxn makes all of it visible at once

`batch_writer.py` runs the steps from pack to commit. Several DataFrames (`sink.write`) are packed
and delivered one after the other in the same transaction, each by its own job. A union would need
only one job, but several of its tasks would run a shared plan at the same time, which stateful
operators do not support, and Spark would count its rows several times (`jobs/counts.py`).

After a commit the next batch goes straight to packing: with transaction version 2 the answer to
EndTxn contains the next epoch; with version 1 the driver requests it, and the request fails if
another producer has taken over the id.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import SinkRefused
from fencepost.spark.installation import require_spark
from fencepost.spark.session import allows_barrier, is_connect_process
from fencepost.spark.sink.at_least_once import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    UnfencedWriter,
    is_at_least_once,
)
from fencepost.spark.sink.batch.checkpoint import checked_path
from fencepost.spark.sink.batch.parts import frames_of, read_parts, without_loops
from fencepost.spark.sink.batch.read_topics import read_in_batch, topics_by_id
from fencepost.spark.sink.batch_writer import BatchWriter
from fencepost.spark.sink.calls import BatchPosition, Call, RunCalls, calls_of
from fencepost.spark.sink.ledger.decision import Batch, Decision, Overrides, Verdict
from fencepost.spark.sink.ledger.entry import with_damage
from fencepost.spark.sink.ledger.store import LedgerStore
from fencepost.spark.sink.limits import TopicLimits
from fencepost.spark.sink.one_sentence import in_one_sentence, while_reaching
from fencepost.spark.sink.producer import DriverProducer
from fencepost.spark.sink.receipts import Receipt, ReceiptHistory
from fencepost.spark.sink.run_state import RunState, WriteRequest
from fencepost.spark.sink.settings import read_settings
from fencepost.spark.sink.topic_creation import TopicCreation
from fencepost.spark.slots import announce_if_active

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fencepost.spark.sink.batch.micro_batch import MicroBatch
    from fencepost.spark.sink.batch.origins import SourceUse

log = logging.getLogger(__name__)

_NEXT: Final = Decision(Verdict.WRITE, "the next batch of this run; those between had no rows")

MAX_ATTEMPTS: Final = 3
"""How often the job of one batch is tried before the query fails."""

_STATE_OF_RUN: Final = frozenset({"_receipts", "_run", "_unfenced", "_stop_watching"})

MAX_ID_BYTES: Final = 1_000
"""Far more than a name needs. Kafka's own limit is that of its strings, 32,767 bytes, and the
group's name is longer."""


class TransactionalSink:
    """A function for `foreachBatch` that writes every batch exactly once.

    Call it once per batch, with all rows of the batch: `sink(df, batch_id)`, or
    `sink.write({"topic": df, ...}, batch_id)`.

    Call `sink.skip(batch_id)` for a batch that writes nothing; with `may_skip` the function may
    leave such calls out.

    `guarantee="at-least-once"` writes without a transaction (`at_least_once.py`).

    `commit_source_offsets`: None commits the source offsets in the same transaction if all sources
    are topics of the sink's cluster; True refuses to start if they are not; False never commits
    them.

    `preserve_partitioning` writes each row to the partition it was read from, without a shuffle
    (`jobs/preserving.py`).

    `write_timestamps` writes the column `timestamp` as the time of the records.

    `may_write_to_sources` allows to write to a topic that the query reads (`read_topics.py`).
    """

    _stop_watching: Callable[[], None] | None = None
    """Ends the wait for the start of the query."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        transactional_id: str | None = None,
        topic: str | None = None,
        guarantee: str = EXACTLY_ONCE,
        ledger_topic: str | None = None,
        checkpoint: str | None = None,
        options: Mapping[str, Any] | None = None,
        adopt: bool = False,
        take_over: str | None = None,
        allow_empty_state: bool = False,
        may_skip: bool = False,
        commit_source_offsets: bool | None = None,
        exchange: Literal["auto", "plain"] = "auto",
        preserve_partitioning: bool = False,
        write_timestamps: bool = False,
        may_write_to_sources: bool = False,
        create_topics: Mapping[str, Any] | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        on_step: Callable[[str, int], None] | None = None,
    ) -> None:
        require_spark()
        about_transactions = {
            "transactional_id": transactional_id,
            "ledger_topic": ledger_topic,
            "checkpoint": checkpoint,
            "adopt": adopt,
            "take_over": take_over,
            "allow_empty_state": allow_empty_state,
            "may_skip": may_skip,
            "commit_source_offsets": commit_source_offsets,
            "preserve_partitioning": preserve_partitioning,
        }
        is_unfenced = is_at_least_once(guarantee, about_transactions, options or {})
        self.transactional_id = "" if is_unfenced else checked_id(transactional_id)
        self.topic = topic
        self.guarantee = guarantee
        self.checkpoint = checked_path(checkpoint)
        self.settings = replace(
            read_settings(bootstrap_servers, options or {}, exchange),
            preserve_partitioning=preserve_partitioning,
            write_timestamps=write_timestamps,
        )
        self._ledger = LedgerStore(self.settings.client, self.transactional_id, ledger_topic)
        if topic == self._ledger.topic:
            raise ConfigError(
                f"topic {topic!r} holds the ledger, and rows cannot go there: correct topic= or "
                "ledger_topic="
            )
        self._overrides = Overrides(adopt, take_over, allow_empty_state, may_skip)
        self._commit_source_offsets = commit_source_offsets
        self._may_write_to_sources = may_write_to_sources
        self._max_attempts = max(1, max_attempts)
        self._creation = TopicCreation(create_topics)
        self._on_step = on_step
        self._begin()
        if not is_unfenced:
            # Before the query plans its first batch, if there is a session.
            announce_if_active()
            if "pyspark" in sys.modules:
                from fencepost.spark.sink.start_check import watch_start

                self._stop_watching = watch_start(self)

    def __repr__(self) -> str:
        name = self.guarantee if self.is_unfenced else repr(self.transactional_id)
        return f"<TransactionalSink {name}>"

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts as a new sink: the state of the run belongs to this process."""
        return {name: kept for name, kept in self.__dict__.items() if name not in _STATE_OF_RUN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        self._receipts = ReceiptHistory()
        self._run: RunState | None = None
        self._stop_watching = None
        self._unfenced = UnfencedWriter(
            self.settings,
            self.topic,
            self._max_attempts,
            self._creation,
            self._step,
            may_write_to_sources=self._may_write_to_sources,
        )

    @property
    def is_unfenced(self) -> bool:
        """Whether this sink writes without a transaction."""
        return self.guarantee == AT_LEAST_ONCE

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The outcome of the last batches, oldest first: at most `RECEIPTS_KEPT` of them."""
        found = self._receipts.snapshot()
        if not found and is_connect_process():
            raise SinkRefused(
                "on Spark Connect the sink runs on the server, and its receipts stay there: "
                f"`fencepost ledger show {self.transactional_id}` tells the last committed batch"
            )
        return found

    @property
    def last_receipt(self) -> Receipt | None:
        """The outcome of the last batch; None before the first. A Connect client has none."""
        receipts = self.receipts
        return receipts[-1] if receipts else None

    @property
    def group(self) -> str:
        """The group to which the source offsets are committed."""
        return self._ledger.group

    @in_one_sentence
    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Writes all rows of the batch. Spark calls this for every batch."""
        self._handle_call(df.sparkSession, batch_id, (df,), {None: df})

    @in_one_sentence
    def write(
        self, parts: Mapping[str, DataFrame] | Mapping[str | None, DataFrame], batch_id: int
    ) -> None:
        """Writes all rows of the batch, in several DataFrames by topic, in one transaction.

        The DataFrame under None goes where `sink(df, batch_id)` would write it: to the topic of the
        sink, or to those that its column `topic` names.
        """
        frames = frames_of(parts)
        self._handle_call(_session_of(frames), batch_id, frames, parts)

    @in_one_sentence
    def skip(self, batch_id: int) -> None:
        """Records a batch that writes nothing, and commits the source offsets."""
        self._handle_call(_session_of(()), batch_id, (), {})

    def _handle_call(
        self, session: SparkSession, batch_id: int, frames: tuple[Any, ...], given: Any
    ) -> None:
        from fencepost.spark.sink.batch.micro_batch import read_micro_batch

        if self.is_unfenced:
            self._write_unfenced(session, batch_id, given)
            return
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        run, call = self._run, Call(batch_id, frames)
        before = None if run is None else run.micro_batch
        try:
            micro_batch = read_micro_batch(
                session, batch_id, before, has_rows=bool(frames), checkpoint=self.checkpoint
            )
        except SinkRefused as problem:
            if before is not None and before.is_running():
                # Most likely a call of the same run, from a thread without the query's properties.
                self._calls_of(before).fail(call, problem)
            raise
        calls = self._calls_of(micro_batch)
        try:
            position = calls.begin(call)
        except SinkRefused:
            self._record_damage(calls, micro_batch)
            raise
        if position is BatchPosition.FINISHED:
            log.warning("batch %d is in the topics, so there is nothing to skip", batch_id)
            return
        try:
            micro_batch.check_batch()
            parts = read_parts(given, self.topic, self._ledger.topic)
            with micro_batch.in_thread(session):
                names = tuple(part.name for part in parts)
                request = WriteRequest(micro_batch, parts, names, calls, calls.is_again)
                self._process(session, request, position)
        except BaseException as problem:
            calls.fail(call, problem)
            raise
        calls.finish(call)
        self._record_damage(calls, micro_batch)

    def _write_unfenced(self, session: SparkSession, batch_id: int, given: Any) -> None:
        receipt = self._unfenced.write(session, batch_id, given)
        if receipt is not None:
            self._receipts.add(receipt)
            self._step("ended", batch_id)

    def _calls_of(self, micro_batch: MicroBatch) -> RunCalls:
        servers = map(str, self.settings.client.bootstrap)
        return calls_of(self.transactional_id, servers, micro_batch.run)

    def _process(
        self, session: SparkSession, request: WriteRequest, position: BatchPosition
    ) -> None:
        run, micro_batch = self._run, request.micro_batch
        # If anything is raised before the batch is over, the next call starts from the beginning.
        self._run = None
        if run is None or run.micro_batch.run != micro_batch.run:
            run, position = self._start_run(session, request), BatchPosition.UNKNOWN
        run.micro_batch = micro_batch
        request = self._without_loops(request, run.sources)
        decision = _NEXT if position is BatchPosition.NEXT else self._decide(run, request)
        self._creation.ensure(self.settings.client, (part.topic for part in request.parts))
        receipt = BatchWriter(
            request.only(decision.missing),
            run,
            self._ledger,
            self.settings,
            self._max_attempts,
            self._decide,
            self._step,
        ).write(decision.verdict)
        self._receipts.add(receipt)
        if receipt.verdict is not Verdict.DRAIN:
            self._step("ended", request.batch_id)
        self._run = run

    def _record_damage(self, calls: RunCalls, micro_batch: MicroBatch) -> None:
        """Records in the ledger what a restart must know. The caller gets its refusal anyway."""
        damage = calls.take_damage()
        if damage is None:
            return
        try:
            run = self._run
            if run is None or run.micro_batch.run != micro_batch.run:
                self._ledger.prepare()
                producer = self._fenced_producer()
                view = self._ledger.read(micro_batch.query_id, producer)
            else:
                producer, view = run.producer, run.view
            damaged = with_damage(view.entry, micro_batch.query_id, damage.short, damage.lost)
            if damaged is not None:
                producer.freshen()
                self._ledger.write(producer.lend(), damaged, view)
                producer.commit()
        except FencepostError as problem:
            log.warning(
                "batch %d: the refused call could not be recorded in the ledger: %s",
                micro_batch.batch_id,
                problem,
            )
        self._run = None

    # The start of a run.

    def find_refusal(self, query_id: str, next_id: int) -> tuple[str | None, str]:
        """The query of the ledger, and why it refuses the next batch of this query, if it does."""
        from fencepost.spark.sink.checks import NO_SOURCES, refusal_of

        if cluster_of(self.settings.client).find_topic(self._ledger.topic) is None:
            return None, ""
        self._ledger.prepare()
        view = self._ledger.peek(query_id, stable=False)
        owner = None if view.entry is None else view.entry.query_id
        if owner != query_id:
            return owner, ""
        batch = Batch(query_id, next_id)
        decision = self._ledger.decide(view, batch, NO_SOURCES, self._overrides)
        is_refused = decision.verdict is Verdict.REFUSE
        return owner, str(refusal_of(self.transactional_id, decision)) if is_refused else ""

    def _step(self, step: str, batch_id: int) -> None:
        log.debug("%s, batch %d: %s", self.transactional_id or self.guarantee, batch_id, step)
        if self._on_step is not None:
            self._on_step(step, batch_id)

    def _start_run(self, session: SparkSession, request: WriteRequest) -> RunState:
        """Checks, fences, then reads the ledger."""
        from fencepost.spark.sink.batch.origins import use_sources
        from fencepost.spark.sink.checks import (
            check_ledger,
            check_start,
            check_timeout,
            naming_checkpoint,
            warn_about_checkpoint,
        )
        from fencepost.spark.sink.jobs.counts import JobCounter

        client, micro_batch = self.settings.client, request.micro_batch
        check_start(session, self.transactional_id, self.settings, micro_batch)
        with while_reaching(client):
            self._ledger.prepare()
            sources = use_sources(self._commit_source_offsets, micro_batch, client)
            self._without_loops(request, sources)
            batch = request.as_batch()
            with naming_checkpoint(micro_batch):
                check_ledger(self._ledger, self.transactional_id, batch, sources, self._overrides)
            self._step("fencing", request.batch_id)
            producer = self._fenced_producer()
            self._step("fenced", request.batch_id)
            view = self._ledger.read(micro_batch.query_id, producer)
        self._step("ledger read", request.batch_id)
        warn_about_checkpoint(micro_batch)
        check_timeout(self.transactional_id, self.settings, view.entry)
        return RunState(
            micro_batch,
            producer,
            view,
            TopicLimits(self.settings),
            sources,
            JobCounter(session),
            micro_batch.is_stateful,
            by_permit=not allows_barrier(session),
            with_times=self.settings.write_timestamps,
        )

    def _without_loops(self, request: WriteRequest, sources: SourceUse) -> WriteRequest:
        """The request, whose rows cannot go to a topic that the query reads."""
        if self._may_write_to_sources:
            return request
        micro_batch = request.micro_batch
        if micro_batch.has_engine:
            read = read_in_batch(sources.read, micro_batch)
        else:
            read = topics_by_id(micro_batch.end_offsets, self._ledger)
        return replace(request, parts=without_loops(request.parts, read, self._ledger.topic))

    def _fenced_producer(self) -> DriverProducer:
        producer = DriverProducer(self.transactional_id, self.settings)
        producer.fence()
        return producer

    def _decide(self, run: RunState, request: WriteRequest) -> Decision:
        from fencepost.spark.sink.checks import refusal_of

        entry, last = run.view.entry, request.calls.last
        query_id = request.micro_batch.query_id
        if entry is not None and entry.batch_id == last and entry.query_id == query_id:
            return _NEXT
        decision = self._ledger.decide(run.view, request.as_batch(), run.sources, self._overrides)
        log.info("batch %d: %s (%s)", request.batch_id, decision.verdict.value, decision.reason)
        if decision.verdict is Verdict.REFUSE:
            raise refusal_of(self.transactional_id, decision)
        return decision


def checked_id(transactional_id: Any) -> str:
    """The id, if it can be a record's key and part of a group's name."""
    if not transactional_id or not isinstance(transactional_id, str):
        raise ConfigError("transactional_id must be a name that only this query uses")
    try:
        size_bytes = len(transactional_id.encode("utf-8"))
    except UnicodeEncodeError as problem:
        raise ConfigError(
            f"transactional_id {transactional_id!a} has a character that is not Unicode text "
            f"({problem.reason}): choose a plain name"
        ) from None
    if size_bytes > MAX_ID_BYTES:
        raise ConfigError(
            f"transactional_id has {size_bytes} bytes, and brokers would not accept it: choose a "
            f"name of at most {MAX_ID_BYTES} bytes"
        )
    return transactional_id


def _session_of(frames: tuple[Any, ...]) -> SparkSession:
    """The session of the first DataFrame, or the active one of this thread."""
    from pyspark.sql import SparkSession

    for frame in frames:
        if hasattr(frame, "sparkSession"):
            found: SparkSession = frame.sparkSession
            return found
    active = SparkSession.getActiveSession()
    if active is None:
        raise SinkRefused(
            "TransactionalSink was called outside of a streaming query: call it in the function "
            "that you pass to foreachBatch. Nothing was written"
        )
    return active
