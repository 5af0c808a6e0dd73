"""Writes one micro-batch in one transaction: attempts, the commit, and a commit in doubt.

A failed attempt is aborted and repeated with a fresh epoch. If the answer to EndTxn is lost, a
fresh epoch ends the transaction either way, and the ledger then says which. A fenced producer stops
with an error; it does not fence its successor, and checks for one before it settles a commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fencepost.base.failures import FencepostError
from fencepost.client.failures import ProducerFenced, UnknownOutcome
from fencepost.spark.failures import BatchTooLarge, SinkFailed
from fencepost.spark.sink.jobs.job_failures import failure_of_job, is_final
from fencepost.spark.sink.ledger.decision import Decision, Verdict
from fencepost.spark.sink.receipts import Receipt, now_ms
from fencepost.spark.sink.run_state import RunState, WriteRequest
from fencepost.spark.transport.accounts import sum_accounts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.sink.batch.micro_batch import MicroBatch
    from fencepost.spark.sink.batch.parts import Part
    from fencepost.spark.sink.jobs.job import JobPlan
    from fencepost.spark.sink.ledger.entry import LedgerView
    from fencepost.spark.sink.ledger.store import LedgerStore
    from fencepost.spark.sink.settings import SinkSettings
    from fencepost.spark.transport.accounts import Account

log = logging.getLogger(__name__)


@dataclass(slots=True)
class BatchWriter:
    """Writes the parts of one request, or drains them if the batch is already committed."""

    request: WriteRequest
    run: RunState
    ledger: LedgerStore
    settings: SinkSettings
    max_attempts: int
    decide: Callable[[RunState, WriteRequest], Decision]
    """Asks the ledger what to do with the batch."""
    step: Callable[[str, int], None]
    """Logs a step and calls the user's `on_step`."""
    _attempts: int = field(default=0, init=False)
    _commit_ms: int | None = field(default=None, init=False)

    def write(self, verdict: Verdict) -> Receipt:
        """Returns once the batch is committed; raises if it is not."""
        began_ms, micro_batch = now_ms(), self.request.micro_batch
        receipt = self._drain() if verdict is Verdict.DRAIN else self._write(verdict)
        return replace(
            receipt,
            attempts=self._attempts,
            commit_ms=self._commit_ms,
            began_ms=began_ms,
            ended_ms=now_ms(),
            query_id=micro_batch.query_id,
            run_id=micro_batch.run_id,
        )

    def _write(self, verdict: Verdict) -> Receipt:
        producer, failures = self.run.producer, 0
        while failures < self.max_attempts:
            if producer.is_doubtful and self._settle():
                return self._drain()
            if producer.freshen():
                self._step("fenced")
            try:
                receipt, view = self._attempt(verdict, is_first=not failures)
            except BatchTooLarge as problem:
                producer.abandon()
                self.run.limits.learn(problem)
                continue
            except FencepostError as problem:
                if producer.has_timed_out():
                    # Another attempt would take as long.
                    raise producer.timed_out() from problem
                if isinstance(problem, ProducerFenced):
                    raise producer.fenced() from problem
                producer.abandon()
                failures += 1
                if failures == self.max_attempts or is_final(problem):
                    raise
                log.warning("batch %d, attempt %d: %s", self.request.batch_id, failures, problem)
                continue
            if self._commit(view):
                self.run.remember_direct(failed=bool(failures))
                return receipt
            failures += 1
        raise SinkFailed(
            f"batch {self.request.batch_id}: the answer to EndTxn was lost {self.max_attempts} "
            "times, and each time the transaction turned out to be aborted. Check the brokers' "
            "logs and the network"
        )

    def _step(self, step: str) -> None:
        self.step(step, self.request.batch_id)

    def _step_in_transaction(self, step: str) -> None:
        """A step at which the transaction is open: if the user's hook raises, it is aborted."""
        try:
            self._step(step)
        except FencepostError:
            raise
        except BaseException:
            with suppress(FencepostError):  # The hook's exception matters more.
                self.run.producer.abandon()
            raise

    def _drain(self) -> Receipt:
        """Runs the plan and drops the rows: a stateful query must store its state in any case."""
        from fencepost.spark.sink.jobs.counts import Counts

        request = self.request
        self._step("draining")
        counts = Counts(request.micro_batch, self.run.jobs, len(request.parts))
        for part in request.parts:
            counts.begin_run(part.df)
            part.df.write.format("noop").mode("overwrite").save()
        counts.finish()
        return Receipt(request.batch_id, Verdict.DRAIN)

    # One attempt.

    def _attempt(self, verdict: Verdict, *, is_first: bool) -> tuple[Receipt, LedgerView]:
        """Everything but the commit: rows and ledger entry are in the transaction afterwards."""
        from fencepost.spark.sink.jobs.counts import Counts

        request, run, micro_batch = self.request, self.run, self.request.micro_batch
        self._step("writing")
        self._attempts += 1
        identity = run.producer.lend()
        counts = Counts(micro_batch, run.jobs, len(request.parts), is_first=is_first)
        entry_writer = self.ledger.entry_writer(
            identity,
            micro_batch,
            run.view,
            sources=run.sources,
            is_stateful=run.is_stateful,
            parts=request.all_names,
        )
        accounts = {}
        for part in request.parts:
            plan = self._plan_part(part, identity, is_first=is_first)
            # The entry goes with the last rows, when everything else is in the transaction.
            attached = entry_writer if part is request.parts[-1] else None
            plan = replace(plan, attached=attached, before_run=counts.begin_run)
            accounts[part.name] = account = _run_job(part.df, micro_batch, plan)
            run.remember_size(part, account)
        counts.finish()
        account = sum_accounts(accounts.values())
        self._step_in_transaction("written")
        view = entry_writer.finish(account.opened_ms)
        self._step_in_transaction("entered")
        request.calls.check()
        return Receipt(request.batch_id, verdict, account, entry_writer.open_ms, accounts), view

    def _plan_part(self, part: Part, identity: ProducerIdentity, *, is_first: bool) -> JobPlan:
        """How one DataFrame is written. Only a first attempt uses one of the quicker routes.

        They need the engine: to count rows that are read twice, and to see whether a plan fits.
        """
        from fencepost.spark.sink.jobs.job import JobPlan
        from fencepost.spark.sink.jobs.preserving import source_partitions

        may_be_quick = is_first and self.request.micro_batch.has_engine
        collector = self.run.collector_of(part)
        if not may_be_quick:
            collector.limit = 0
        preserves = self.settings.preserve_partitioning
        return JobPlan(
            self.settings,
            identity,
            self.request.batch_id,
            part.topic,
            self.run.limits.batch_bytes(part.topic),
            part.reserved,
            collector,
            may_be_quick and self.run.may_write_directly,
            self.run.by_permit,
            source_partitions=source_partitions(self.request.micro_batch) if preserves else None,
        )

    # The commit.

    def _commit(self, view: LedgerView) -> bool:
        """False if the transaction turned out to be aborted; the producer is fresh again then."""
        self._step_in_transaction("ending")
        began = time.monotonic()
        try:
            self.run.producer.commit()
        except UnknownOutcome as problem:
            log.warning("batch %d: %s", self.request.batch_id, problem)
            return self._settle()
        finally:
            self._commit_ms = round(1_000 * (time.monotonic() - began))
        self.run.view = view
        return True

    def _settle(self) -> bool:
        """Whether the last transaction was committed. A fresh epoch makes the answer final."""
        self._step("settling")
        run, request = self.run, self.request
        if run.producer.is_taken():
            raise run.producer.fenced("The ledger will tell whether this batch is visible")
        run.producer.fence()
        run.view = self.ledger.read(request.micro_batch.query_id, run.producer)
        again = replace(request, is_again=True)
        return self.decide(run, again).verdict is Verdict.DRAIN


def _run_job(df: DataFrame, micro_batch: MicroBatch, plan: JobPlan) -> Account:
    from fencepost.spark.sink.jobs.job import run_job

    try:
        return run_job(df, plan)
    except FencepostError:
        raise
    except Exception as problem:  # noqa: BLE001 - raised again in one sentence.
        stopped = "was aborted. Nothing of it is visible"
        raise failure_of_job(problem, df, micro_batch, stopped) from None
