"""One batch on its way into the table: attempts, until the ledger has it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import FencepostError
from fencepost.outside.connection import Database, require_writable
from fencepost.outside.failures import (
    DatabaseRefused,
    DatabaseUnavailable,
    ExtraMissing,
    OutsideError,
)
from fencepost.outside.table.ledger import LedgerTable
from fencepost.outside.table.staging import Staging, differing, drop_all
from fencepost.outside.table.target import read_target, shape_of
from fencepost.spark.failures import CountsDisagree, EntryUnreadable, SinkRefused
from fencepost.spark.ledger.entry import LedgerEntry, decode_entry, encode_entry, next_entry
from fencepost.spark.ledger.rule import Batch, Overrides, Verdict, decide
from fencepost.spark.postgres.columns import values_of
from fencepost.spark.postgres.copying import CopyPlan, copy_frame
from fencepost.spark.postgres.sentences import TABLE_SENTENCES
from fencepost.spark.sentences import failure_of_job, find_failure, is_final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fencepost.outside.connection import Connection
    from fencepost.spark.engine.micro_batch import MicroBatch

log = logging.getLogger(__name__)

_OF_THE_DATABASE: Final = (DatabaseRefused, DatabaseUnavailable, ExtraMissing)
_FINAL: Final = (DatabaseRefused, ExtraMissing)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the rows of a sink go."""

    database: Database
    ledger: LedgerTable
    table: str
    key: tuple[str, ...] | None
    """What identifies a row: nothing, the table's primary key; None: every row is inserted."""
    order: tuple[str, ...]


@dataclass(slots=True)
class BatchWrite:
    """One call of the sink."""

    destination: Destination
    df: DataFrame
    micro_batch: MicroBatch
    batch: Batch
    overrides: Overrides
    check: Callable[[], None]
    """Called before the COMMIT: SinkRefused if the batch must not be committed."""
    step: Callable[[str, int], None]
    """Called between any two effects, for logs and tests."""
    patience: float = 0.0
    """How long to wait for a database that does not answer."""
    staging: Staging | None = None
    """That of the last attempt."""

    def run(self, max_attempts: int, patience: float) -> Verdict:
        """Returns once the batch is in the table. `patience`: once the database has answered."""
        failures = 0
        while True:
            try:
                return self._attempt(patience)
            except FencepostError as problem:
                failures += 1
                if is_final(problem) or isinstance(problem, _FINAL) or failures == max_attempts:
                    self._leave_nothing()
                    raise
                number = self.batch.batch_id
                log.warning("batch %d, attempt %d: %s", number, failures, problem)

    def _attempt(self, patience: float) -> Verdict:
        with closing(self._connect()) as connection:
            self.patience = patience
            connection.autocommit = True
            verdict, owner = self._read(connection)
            drop_all(connection, self.destination.database, owner)
            if verdict is not Verdict.DRAIN:
                self._stage(connection, owner)
                # The tasks must reach this very server, if the connection string names several.
                server = self.destination.database.at(connection)
        if verdict is Verdict.DRAIN:
            self._drain()
            return verdict
        assert self.staging is not None
        self._step("staged")
        reported = self._copy(CopyPlan(server, self.staging))
        self._step("copied")
        with closing(self._connect()) as connection:
            verdict = self._merge(connection, self.staging, reported)
            self._step("committed")
            connection.autocommit = True
            self.staging.drop(connection, self.destination.database)
        self._step("dropped")
        return verdict

    def _connect(self) -> Connection:
        database = self.destination.database
        connection = database.connect_patiently(self.patience, self.micro_batch.is_stopping)
        try:
            require_writable(connection, database)
            connection.rollback()
        except BaseException:
            connection.close()
            raise
        return connection

    # Before the rows.

    def _read(self, connection: Connection) -> tuple[Verdict, str]:
        """Decides without the lock, which spares the job in most cases; `_merge` decides again.

        Also returns whose staging tables are this sink's.
        """
        ledger = self.destination.ledger
        with self.destination.database.explaining("a look at the ledger"):
            ledger.ensure(connection)
            found, owner = ledger.read(connection), ledger.owner(connection)
        return self._decide(self._decoded(found)), owner

    def _stage(self, connection: Connection, owner: str) -> None:
        destination = self.destination
        values = values_of(self.df.schema)
        with destination.database.explaining(f"a look at {destination.table}"):
            target = read_target(connection, destination.table)
        shape = shape_of(target, values, destination.key, destination.order)
        staging = Staging.of(shape, owner, self.batch.batch_id)
        with destination.database.explaining("the creation of the staging table"):
            self._step("staging")
            staging.create(connection)
        self.staging = staging

    def _leave_nothing(self) -> None:
        """Drops the staging table after a failure, which matters more than one in here."""
        if self.staging is None:
            return
        with suppress(OutsideError), closing(self.destination.database.connect()) as connection:
            connection.autocommit = True
            self.staging.drop(connection, self.destination.database)

    # The rows.

    def _copy(self, plan: CopyPlan) -> dict[int, int]:
        try:
            return copy_frame(self.df, plan)
        except FencepostError:
            raise
        except Exception as problem:  # noqa: BLE001 - raised again in one sentence.
            raise self._failure_of(problem) from None

    def _drain(self) -> None:
        """Runs the plan and drops the rows: a stateful query must store its state."""
        self._step("draining")
        try:
            self.df.write.format("noop").mode("overwrite").save()
        except Exception as problem:  # noqa: BLE001 - raised again in one sentence.
            raise self._failure_of(problem) from None

    def _failure_of(self, problem: Exception) -> FencepostError:
        if not self.micro_batch.is_stopping():
            for kind in _OF_THE_DATABASE:
                if (found := find_failure(kind, str(problem))) is not None:
                    log.info("the job of %s failed", self.micro_batch, exc_info=problem)
                    return kind(f"batch {self.batch.batch_id}, on an executor: {found}")
        return failure_of_job(problem, self.df, self.micro_batch)

    # What counts.

    def _merge(
        self, connection: Connection, staging: Staging, reported: Mapping[int, int]
    ) -> Verdict:
        from psycopg import IsolationLevel

        ledger = self.destination.ledger
        # Whatever the database's default is: the second of two has to see what the first committed.
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        with self.destination.database.explaining("the merge"):
            before = self._decoded(ledger.lock(connection))
            self._step("locked")
            verdict = self._decide(before)
            if verdict is Verdict.DRAIN:
                connection.rollback()
                return verdict
            if (difference := differing(reported, staging.count(connection))) is not None:
                raise CountsDisagree(f"{difference}. Nothing was written")
            staging.merge(connection, reported)
            self._step("merged")
            entry = next_entry(before, self._entry())
            ledger.write(connection, entry.query_id, entry.batch_id, encode_entry(entry).decode())
            self.check()
            self._step("committing")
            # From here on this run may have written the batch.
            self.batch = replace(self.batch, is_again=True)
            connection.commit()
        return verdict

    def _entry(self) -> LedgerEntry:
        batch, ended = self.batch, self.batch.ended
        return LedgerEntry(
            batch.query_id,
            batch.batch_id,
            batch.fingerprint,
            sources=None if ended is None else ended.reached,
            topic_ids={} if ended is None else ended.id_texts,
            is_stateful=batch.is_stateful,
            run_id=batch.run_id,
        )

    def _decide(self, entry: LedgerEntry | None) -> Verdict:
        decision = decide(entry, self.batch, self.overrides, TABLE_SENTENCES)
        if decision.verdict is Verdict.REFUSE:
            sink_id = self.destination.ledger.sink_id
            raise SinkRefused(f"sink_id {sink_id!r}: {decision.reason}. Nothing was written")
        return decision.verdict

    def _decoded(self, text: str | None) -> LedgerEntry | None:
        return read_entry(self.destination.ledger, text)

    def _step(self, step: str) -> None:
        self.step(step, self.batch.batch_id)


def read_entry(ledger: LedgerTable, text: str | None) -> LedgerEntry | None:
    """The entry in the ledger's row."""
    try:
        return None if text is None else decode_entry(text.encode())
    except EntryUnreadable as problem:
        raise SinkRefused(
            f"the row of {ledger.sink_id!r} in {ledger.table} cannot be read: {problem}. A "
            "newer fencepost can read what it has written. Otherwise look at the table; only if "
            "the batch is not there, delete the row and pass adopt=True once. Nothing was written"
        ) from problem
