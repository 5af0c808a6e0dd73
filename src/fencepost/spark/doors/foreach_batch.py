"""`TransactionalSink`: one Kafka transaction per micro-batch, over all executors and topics.

    sink = TransactionalSink("localhost:9092", transactional_id="refunds", topic="refunds-emitted")
    df.writeStream.foreachBatch(sink).option("checkpointLocation", "...").start()

This door turns a call of the user's function into one transaction (`transaction/transaction.py`):

    call    one call per batch: a second one, or one after a caught failure, is refused (`calls.py`)
    run     the first call of a run checks the session, the query and its sources (`run.py`)
    fence, decide, run
            the steps of the transaction; `run` writes the DataFrames, each on its route
            (`ways/row_writer.py`), and commits

Several DataFrames (`sink.write`) are written one after the other in the same transaction, each by
its own job. A union would need only one job, but several of its tasks would run a shared plan at
the same time, which stateful operators do not support.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from fencepost.base.arguments import checked, checked_topic
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.spark.doors.calls import Call, RunCalls, calls_of
from fencepost.spark.doors.parts import (
    HOLDS_THE_LEDGER,
    TopicCreation,
    frames_of,
    read_parts,
    session_of,
)
from fencepost.spark.doors.run import RunState, record_damage, start_run
from fencepost.spark.engine.session import is_connect_process
from fencepost.spark.engine.slots import announce_if_active
from fencepost.spark.engine.stored_batch import checked_path
from fencepost.spark.failures import SinkRefused
from fencepost.spark.installation import require_spark
from fencepost.spark.ledger.rule import Decision, Overrides, Verdict
from fencepost.spark.ledger.store import LedgerStore
from fencepost.spark.sentences import told, while_reaching
from fencepost.spark.settings import checked_id, read_settings
from fencepost.spark.transaction.receipts import Receipt, ReceiptHistory
from fencepost.spark.transaction.transaction import Transaction
from fencepost.spark.ways.row_writer import BatchRows, Part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fencepost.spark.engine.micro_batch import MicroBatch

log = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 3
"""How often the job of one batch is tried before the query fails."""

_NEXT: Final = Decision(Verdict.WRITE, "the next batch of this run; those between had no rows")
_STATE_OF_RUN: Final = frozenset({"_receipts", "_run"})


@checked
class TransactionalSink:
    """A function for `foreachBatch` that writes every batch exactly once.

    Call it once per batch, with all rows of the batch: `sink(df, batch_id)`, or
    `sink.write({"topic": df, ...}, batch_id)`.

    Call `sink.skip(batch_id)` for a batch that writes nothing; with `may_skip` the function may
    leave such calls out.

    `settings.ARGUMENTS` says what each argument means.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        transactional_id: str | None = None,
        topic: str | None = None,
        ledger_topic: str | None = None,
        checkpoint: str | None = None,
        options: Mapping[str, Any] | None = None,
        adopt: bool = False,
        take_over: str | None = None,
        allow_empty_state: bool = False,
        may_skip: bool = False,
        commit_source_offsets: bool | None = None,
        exchange: Literal["auto", "plain"] = "auto",
        write_timestamps: bool = False,
        may_write_to_sources: bool = False,
        create_topics: Mapping[str, Any] | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        on_step: Callable[[str, int], None] | None = None,
    ) -> None:
        require_spark()
        self.transactional_id = checked_id(transactional_id)
        self.topic = None if topic is None else checked_topic("topic", topic)
        self.checkpoint = checked_path(checkpoint)
        self.settings = replace(
            read_settings(bootstrap_servers, options or {}, exchange),
            write_timestamps=write_timestamps,
        )
        if ledger_topic is not None:
            checked_topic("ledger_topic", ledger_topic)
        self._ledger = LedgerStore(self.settings.client, self.transactional_id, ledger_topic)
        if topic == self._ledger.topic:
            raise ConfigError(
                f"topic {topic!r} holds the ledger, and rows cannot go there: correct topic= or "
                "ledger_topic="
            )
        self._overrides = Overrides(adopt, take_over, allow_empty_state, may_skip)
        self._commits = commit_source_offsets
        self._may_write_to_sources = may_write_to_sources
        self._max_attempts = max(1, max_attempts)
        self._creation = None if create_topics is None else TopicCreation(create_topics)
        self._on_step = on_step
        self._begin()
        # Before the query plans its first batch, if there is a session.
        announce_if_active()

    def __repr__(self) -> str:
        return f"<TransactionalSink {self.transactional_id!r}>"

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts as a new sink: the state of the run belongs to this process."""
        return {name: kept for name, kept in self.__dict__.items() if name not in _STATE_OF_RUN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        self._receipts = ReceiptHistory()
        self._run: RunState | None = None

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

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Writes all rows of the batch. Spark calls this for every batch."""
        self._call(df.sparkSession, Call(batch_id, (df,)), None)

    def write(
        self, parts: Mapping[str, DataFrame] | Mapping[str | None, DataFrame], batch_id: int
    ) -> None:
        """Writes all rows of the batch, in several DataFrames by topic, in one transaction.

        The DataFrame under None goes where `sink(df, batch_id)` would write it: to the topic of the
        sink, or to those that its column `topic` names.
        """
        frames = frames_of(parts)
        self._call(session_of(frames), Call(batch_id, frames), parts)

    def skip(self, batch_id: int) -> None:
        """Records a batch that writes nothing, and commits the source offsets."""
        self._call(session_of(()), Call(batch_id), {})

    def _call(self, session: SparkSession, call: Call, given: Any) -> None:
        try:
            self._handle(session, call, given)
        except FencepostError as problem:
            raise told(problem) from None

    def _handle(self, session: SparkSession, call: Call, given: Any) -> None:
        """`given`: the argument of `sink.write`; None for a single DataFrame."""
        micro_batch = self._find_batch(session, call)
        calls = self._calls_of(micro_batch)
        try:
            if not calls.begin(call):
                log.warning("batch %d is in the topics, so there is nothing to skip", call.batch_id)
                return
        except SinkRefused:
            self._record_damage(calls, micro_batch)
            raise
        try:
            micro_batch.check_batch()
            parts = self._parts(call, given)
            with micro_batch.in_thread(session):
                self._write(session, micro_batch, parts, calls)
        except BaseException as problem:
            calls.fail(call, problem)
            raise
        calls.finish(call)
        if calls.damage is not None:
            self._record_damage(calls, micro_batch)

    def _find_batch(self, session: SparkSession, call: Call) -> MicroBatch:
        from fencepost.spark.engine.micro_batch import read_micro_batch

        before = None if self._run is None else self._run.micro_batch
        try:
            return read_micro_batch(
                session,
                call.batch_id,
                before,
                has_rows=bool(call.frames),
                checkpoint=self.checkpoint,
            )
        except SinkRefused as problem:
            if before is not None and before.is_running():
                # Most likely a call of the same run, from a thread without the query's properties.
                self._calls_of(before).fail(call, problem)
            raise

    def _calls_of(self, micro_batch: MicroBatch) -> RunCalls:
        return calls_of(self.transactional_id, self.settings.client.bootstrap, micro_batch.run)

    def _parts(self, call: Call, given: Any) -> tuple[Part, ...]:
        if given is not None:
            return read_parts(given, self.topic, self._ledger.topic)
        reserved = {} if self.topic is not None else {self._ledger.topic: HOLDS_THE_LEDGER}
        return (Part(self.topic, call.frames[0], reserved),)

    def _write(
        self,
        session: SparkSession,
        micro_batch: MicroBatch,
        parts: tuple[Part, ...],
        calls: RunCalls,
    ) -> None:
        """One batch in one transaction, from the fence to its end."""
        # If anything is raised before the batch is over, the next call starts from the beginning.
        run, self._run = self._run, None
        is_new = run is None or run.micro_batch.run != micro_batch.run
        if run is None or is_new:
            run = start_run(session, micro_batch, self.settings, self._ledger, self._commits)
        run.micro_batch = micro_batch
        if run.may_loop and not self._may_write_to_sources:
            parts = run.without_loops(parts, self._ledger)
        batch = micro_batch.as_batch([part.name for part in parts], is_again=calls.is_again)
        transaction = Transaction(
            run.producer,
            self._ledger,
            batch,
            run.view,
            run.sources,
            self._overrides,
            self._step,
        )
        with while_reaching(self.settings.client) if is_new else nullcontext():
            transaction.fence()
        # After the last batch of this run nothing is in doubt: those between had no rows.
        is_next = transaction.last_is(micro_batch.query_id, calls.last)
        decision = transaction.decide(_NEXT if is_next else None)
        if decision.missing:
            parts = tuple([part for part in parts if part.name in decision.missing])
        if self._creation is not None:
            self._creation.ensure(self.settings.client, parts)
        rows = BatchRows(parts, micro_batch, run.writer, calls.check)
        receipt = transaction.run(decision, rows, self._max_attempts)
        self._receipts.add(receipt)
        run.view = transaction.view
        if receipt.verdict is not Verdict.DRAIN:
            self._step("ended", micro_batch.batch_id)
        self._run = run

    def _record_damage(self, calls: RunCalls, micro_batch: MicroBatch) -> None:
        run, self._run = self._run, None
        record_damage(calls, micro_batch, run, self.settings, self._ledger)

    def _step(self, step: str, batch_id: int) -> None:
        log.debug("%s, batch %d: %s", self.transactional_id, batch_id, step)
        if self._on_step is not None:
            self._on_step(step, batch_id)
