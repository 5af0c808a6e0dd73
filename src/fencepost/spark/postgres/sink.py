"""`PostgresSink`: one database transaction per micro-batch, over all executors.

    sink = PostgresSink("postgresql://db.example/shop", "orders", mode="upsert", order="offset")
    df.writeStream.foreachBatch(sink).option("checkpointLocation", "...").start()

This door holds what TransactionalSink holds (`doors/foreach_batch.py`): one call per batch, and a
second one, or one after a caught failure, is refused (`doors/calls.py`). A batch is one DataFrame.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, Literal

from fencepost.base.arguments import checked
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.outside.connection import Database
from fencepost.outside.table.ledger import DEFAULT_TABLE, LedgerTable
from fencepost.spark.doors.calls import Call, RunCalls, calls_of
from fencepost.spark.doors.checks import check_version
from fencepost.spark.engine.hosts import check_sending
from fencepost.spark.engine.session import is_connect
from fencepost.spark.failures import SinkRefused
from fencepost.spark.installation import require_spark
from fencepost.spark.ledger.entry import encode_entry, with_damage
from fencepost.spark.ledger.rule import Overrides
from fencepost.spark.postgres.batch import BatchWrite, Destination, read_entry
from fencepost.spark.postgres.sentences import HOW_TO_WRITE_ALL
from fencepost.spark.sentences import told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fencepost.spark.engine.micro_batch import MicroBatch

log = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 3
"""How often a batch is tried before the query fails."""
DATABASE_SECONDS: Final = 60.0
"""How long a batch waits for a database that has answered before, as while it restarts."""


@checked
class PostgresSink:
    """A function for `foreachBatch` that writes every batch into a table exactly once.

    Call it once per batch, with all rows of the batch: `sink(df, batch_id)`.

    `mode="append"` inserts every row. `mode="upsert"` replaces the row with the same key: the
    columns of `key`, or the table's primary key. If a batch may have several rows of a key, `order`
    names the columns that say which is the newest. Such a column need not be one of the table. With
    append, rows are inserted in this order.

    `sink_id` is the key of the sink's row in `ledger_table`, by default the name of the table: give
    each query its own if several write into one table. `adopt`, `take_over`, `allow_empty_state`
    and `may_skip` allow what the ledger refuses, as with TransactionalSink.
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        mode: Literal["append", "upsert"] = "append",
        order: str | Sequence[str] | None = None,
        sink_id: str | None = None,
        ledger_table: str = DEFAULT_TABLE,
        adopt: bool = False,
        take_over: str | None = None,
        allow_empty_state: bool = False,
        may_skip: bool = False,
        max_attempts: int = MAX_ATTEMPTS,
        database_seconds: float = DATABASE_SECONDS,
        on_step: Callable[[str, int], None] | None = None,
    ) -> None:
        require_spark()
        if mode == "append" and key is not None:
            raise ConfigError(
                'key= has a meaning with mode="upsert" only: append inserts every row'
            )
        self.table = table
        self.sink_id = sink_id or table
        self._destination = Destination(
            Database(dsn),
            LedgerTable(ledger_table, self.sink_id),
            table,
            _names("key", key) if mode == "upsert" else None,
            _names("order", order),
        )
        self._overrides = Overrides(adopt, take_over, allow_empty_state, may_skip)
        self._max_attempts = max(1, max_attempts)
        self._database_seconds = database_seconds
        self._on_step = on_step
        self._last: MicroBatch | None = None
        """The last finished batch of the current run."""

    def __repr__(self) -> str:
        return f"<PostgresSink {self.sink_id!r} into {self._destination.database}>"

    @property
    def ledger_statement(self) -> str:
        """The SQL that creates the ledger table, which the sink does itself if it may."""
        return self._destination.ledger.creation()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Writes all rows of the batch. Spark calls this for every batch."""
        try:
            self._handle(df, Call(batch_id, (df,)))
        except FencepostError as problem:
            raise told(problem) from None

    def _handle(self, df: DataFrame, call: Call) -> None:
        if not hasattr(df, "sparkSession"):
            raise SinkRefused(
                f"the sink got {type(df).__name__}, and needs the DataFrame of a batch. Nothing "
                "was written"
            )
        micro_batch = self._find_batch(df.sparkSession, call)
        calls = self._calls_of(micro_batch)
        try:
            calls.begin(call)
        except SinkRefused:
            self._record_damage(calls, micro_batch)
            raise
        try:
            micro_batch.check_batch()
            with micro_batch.in_thread(df.sparkSession):
                self._write(df, micro_batch, calls)
        except BaseException as problem:
            calls.fail(call, problem)
            raise
        calls.finish(call)
        if calls.damage is not None:
            self._record_damage(calls, micro_batch)

    def _find_batch(self, session: SparkSession, call: Call) -> MicroBatch:
        from fencepost.spark.engine.micro_batch import read_micro_batch

        if is_connect(session):
            raise SinkRefused(
                "PostgresSink does not run on Spark Connect, where it cannot count the tasks of a "
                "job: use a classic session. Nothing was written"
            )
        before = self._last
        try:
            return read_micro_batch(session, call.batch_id, before)
        except SinkRefused as problem:
            if before is not None and before.is_running():
                # Most likely a call of the same run, from a thread without the query's properties.
                self._calls_of(before).fail(call, problem)
            raise

    def _calls_of(self, micro_batch: MicroBatch) -> RunCalls:
        where = (str(self._destination.database), self._destination.ledger.table)
        return calls_of(self.sink_id, where, micro_batch.run, HOW_TO_WRITE_ALL)

    def _write(self, df: DataFrame, micro_batch: MicroBatch, calls: RunCalls) -> None:
        last, self._last = self._last, None
        is_known = last is not None and last.run == micro_batch.run
        if not is_known:
            self._check_start(df.sparkSession)
        batch = micro_batch.as_batch(is_again=calls.is_again)
        write = BatchWrite(
            self._destination, df, micro_batch, batch, self._overrides, calls.check, self._step
        )
        # At the start of a run nothing says that there is such a database: it fails at once.
        write.patience = self._database_seconds if is_known else 0.0
        verdict = write.run(self._max_attempts, self._database_seconds)
        log.info("%s, batch %d: %s", self.sink_id, micro_batch.batch_id, verdict.value)
        self._last = micro_batch

    def _check_start(self, session: SparkSession) -> None:
        """Checks what the first batch of a run needs."""
        check_version(session)
        if self._destination.database.has_secrets:
            check_sending(
                session,
                "the connection string has a password for PostgreSQL",
                "or leave it out, and let the executors find it in .pgpass",
            )

    def _record_damage(self, calls: RunCalls, micro_batch: MicroBatch) -> None:
        """Records in the ledger what a restart must know. The caller gets its refusal anyway."""
        damage = calls.pop_damage()
        if damage is None:
            return
        database, ledger = self._destination.database, self._destination.ledger
        try:
            with closing(database.connect()) as connection, database.explaining("the ledger"):
                entry = read_entry(ledger, ledger.lock(connection))
                damaged = with_damage(entry, micro_batch.query_id, damage.short, damage.lost)
                if damaged is not None:
                    text = encode_entry(damaged).decode()
                    ledger.write(connection, damaged.query_id, damaged.batch_id, text)
                    connection.commit()
        except FencepostError as problem:
            log.warning(
                "batch %d: the refused call could not be recorded in the ledger: %s",
                micro_batch.batch_id,
                problem,
            )

    def _step(self, step: str, batch_id: int) -> None:
        log.debug("%s, batch %d: %s", self.sink_id, batch_id, step)
        if self._on_step is not None:
            self._on_step(step, batch_id)


def _names(argument: str, given: str | Sequence[str] | None) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given or ())
    if not all(names) or len({*names}) != len(names):
        raise ConfigError(f"{argument}= is {given!r}, and must be names of columns, each once")
    return names
