"""One Kafka transaction: a micro-batch, or a batch write, from the fence to its end.

Theory of operation. The driver owns the transaction. Every attempt to write has its own identity
(producer id and epoch), which the writers of rows only borrow. `states.py` has the table of states,
and each step here is one move in it:

    fence    a fresh epoch ends what a predecessor left open, and fences its executors; then the
             ledger is read, which no one else can change from now on
    decide   the ledger's rule: write, drain, take over, complete or refuse (`ledger/rule.py`)
    lend     rows are written with this identity: on a route of `ways/`, or by the tasks of a format
    enter    what was acknowledged is counted; source offsets and the ledger's record join the
             transaction (`ledger/writer.py`)
    end      EndTxn makes all of it visible at once
    abort    nothing becomes visible, and the executors are fenced

If an answer is lost, `find_outcome` fences: a fresh epoch ends the transaction either way, and then
the ledger says which. Of a write that no ledger records, the coordinator's state is the only
witness.

`run` takes all steps, and repeats a failed attempt; TransactionalSink uses it. The doors of
format("fencepost") take them one by one, because Spark plans, writes and commits in separate
processes: a transaction can be pickled.

A fenced producer stops with an error. It does not fence its successor, and looks for one before it
asks for the outcome.

The ledger need not be a record about a batch. In Spark's Real-Time Mode a batch has no offsets
before its end, so a sink for it, which does not exist yet, would have many short transactions, one
producer per source partition, and the position of the source as its ledger: the steps stay, fence
reads the committed position of the query's group, decide drops the rows below it, and enter commits
the new one in the same transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from fencepost.base.failures import FencepostError
from fencepost.client.failures import ProducerFenced, UnknownOutcome
from fencepost.spark.failures import BatchTooLarge, SinkFailed
from fencepost.spark.ledger.entry import LedgerView
from fencepost.spark.ledger.rule import NO_OVERRIDES, Decision, Overrides, Verdict
from fencepost.spark.ledger.sources import NO_SOURCES, SourceUse
from fencepost.spark.ledger.writer import EntryWriter
from fencepost.spark.sentences import is_final
from fencepost.spark.transaction.receipts import Receipt, now_ms
from fencepost.spark.transaction.sparing import check_ledger, refusal_of
from fencepost.spark.transaction.states import MOVES, OPEN, State
from fencepost.spark.ways.accounts import Account, sum_accounts

if TYPE_CHECKING:
    from fencepost.client.transactions import ProducerIdentity
    from fencepost.spark.ledger.rule import Batch
    from fencepost.spark.ledger.store import LedgerStore
    from fencepost.spark.transaction.identity import DriverProducer

log = logging.getLogger(__name__)

NOT_READ: Final = LedgerView()
_UNRECORDED: Final = Decision(Verdict.WRITE, "nothing records this write")
_WHO_TELLS: Final = "The ledger will tell whether this batch is visible"


def _no_step(step: str, batch_id: int) -> None:
    pass


class Rows(Protocol):
    """The DataFrames of a batch."""

    def write(self, identity: ProducerIdentity, *, is_first: bool) -> Mapping[str, Account]:
        """Writes all rows; what was acknowledged of each DataFrame. Raises FencepostError."""

    def check(self) -> None:
        """Called before the end: SinkRefused if the batch must not be committed."""

    def drain(self) -> None:
        """Runs the plans and drops the rows: a stateful query must store its state."""

    def learn(self, problem: BatchTooLarge) -> None:
        """Makes batches smaller; RowRefused if that is not possible."""


class Entered(NamedTuple):
    """Everything that is in a transaction which may be ended."""

    accounts: Mapping[str, Account]
    account: Account
    view: LedgerView
    """The ledger after the commit."""
    open_ms: int
    """How long the transaction was open by then."""


@dataclass(slots=True)
class Transaction:
    """One batch on its way into the topics."""

    producer: DriverProducer
    ledger: LedgerStore | None
    """None: a batch write that nothing records."""
    batch: Batch
    """Without a query id where only the tasks know it: they set it, and decide (`decide`)."""
    view: LedgerView = NOT_READ
    """The ledger before the batch; after the commit, with it."""
    sources: SourceUse = NO_SOURCES
    overrides: Overrides = NO_OVERRIDES
    step: Callable[[str, int], None] = _no_step
    """Called at every step, for logs and tests. If it raises, the transaction is aborted."""
    state: State = State.PLANNED
    entered: Entered | None = None
    commit_ms: int | None = None
    """How long EndTxn took, and the search for the outcome if its answer was lost."""

    # Step by step.

    def fence(self) -> None:
        """Gets an epoch that no one has written with; with the first one, reads the ledger.

        SinkRefused if the ledger refuses the batch, before its owner is fenced.
        """
        if not self.producer.has_identity:
            if self.ledger is not None and self.batch.query_id:
                check_ledger(self.ledger, self.batch, self.sources, self.overrides)
            self.step("fencing", self.batch.batch_id)
            self.producer.fence()
            self.step("fenced", self.batch.batch_id)
            if self.ledger is not None:
                self.view = self.ledger.read(self.producer)
                self.step("ledger read", self.batch.batch_id)
        elif self.producer.freshen():
            self.step("fenced", self.batch.batch_id)
        self._move(State.FENCED)

    def last_is(self, query_id: str, batch_id: int | None) -> bool:
        """Whether this is the last batch in the ledger."""
        entry = self.view.entry
        return entry is not None and (entry.query_id, entry.batch_id) == (query_id, batch_id)

    def decide(self, known: Decision | None = None) -> Decision:
        """What to do with the batch; SinkRefused if the ledger refuses it."""
        decision = known
        if decision is None:
            decision = _UNRECORDED if self.ledger is None else self._ask(self.ledger)
        self._move(State.DECIDED)
        return decision

    def lend(self) -> ProducerIdentity:
        """The identity, for the writers of rows."""
        self.step("writing", self.batch.batch_id)
        self._move(State.WRITING)
        return self.producer.lend()

    def enter(self, accounts: Mapping[str, Account]) -> None:
        """Counts what was written, and adds source offsets and ledger record."""
        account = sum_accounts(accounts.values())
        self.step("written", self.batch.batch_id)
        view, open_ms = self.view, 0
        if self.ledger is not None:
            identity = self.producer.identity
            entry = EntryWriter(self.ledger, identity, self.batch, self.view, self.sources)
            entry.commit_sources()
            entry.write(account.opened_ms)
            view, open_ms = entry.view, entry.open_ms
        self.entered = Entered(accounts, account, view, open_ms)
        self._move(State.ENTERED)
        self.step("entered", self.batch.batch_id)

    def end(self) -> bool:
        """Commits; False if the transaction turned out to be aborted."""
        assert self.entered is not None
        began = time.monotonic()
        self._move(State.ENDING)
        try:
            self.producer.commit()
            is_committed = True
            self.view = self.entered.view
        except UnknownOutcome as problem:
            log.warning("batch %d: %s", self.batch.batch_id, problem)
            self._move(State.IN_DOUBT)
            is_committed = self.find_outcome()
        finally:
            self.commit_ms = round(1_000 * (time.monotonic() - began))
        self._move(State.COMMITTED if is_committed else State.ABORTED)
        return is_committed

    def abort(self) -> None:
        """Ends an attempt that failed; it stays in doubt if the coordinator does not answer."""
        self._move(State.ABORTED if self.producer.abandon() else State.IN_DOUBT)

    def find_outcome(self) -> bool:
        """Whether the transaction in doubt was committed: the one place that finds out."""
        self.step("settling", self.batch.batch_id)
        if self.ledger is None:
            return self.producer.was_committed()
        if self.producer.is_taken():
            raise self.producer.fenced(_WHO_TELLS)
        # A fresh epoch makes the answer final.
        self.producer.fence()
        self.view = self.ledger.read(self.producer)
        # Overrides allow to write; they do not say what was written. And this run may have written.
        again = replace(self.batch, is_again=True, parts=None)
        return self.ledger.decide(self.view, again, self.sources).verdict is Verdict.DRAIN

    # All steps, for a door that runs in one process.

    def run(self, decision: Decision, rows: Rows, max_attempts: int) -> Receipt:
        """From the decision to the end: returns once the batch is committed or drained."""
        began_ms, attempts, failures = now_ms(), 0, 0
        while decision.verdict is not Verdict.DRAIN:
            attempts += 1
            problem = self._attempt(rows, is_first=not failures)
            if problem is None and self.end():
                return self._receipt(decision.verdict, attempts, began_ms)
            failures += not isinstance(problem, BatchTooLarge)
            if failures == max_attempts or (problem is not None and is_final(problem)):
                raise problem or self._answers_lost(failures)
            log.warning("batch %d, attempt %d: %s", self.batch.batch_id, attempts, problem)
            if self.state is State.IN_DOUBT and self.find_outcome():
                # Its plan may not have run to the end.
                decision = Decision(Verdict.DRAIN, "the batch turned out to be committed")
                self._move(State.DECIDED)
                break
            if self.state is State.IN_DOUBT:
                self._move(State.ABORTED)
            self.fence()
            self.decide(decision)
        self.step("draining", self.batch.batch_id)
        rows.drain()
        self._move(State.DRAINED)
        return self._receipt(Verdict.DRAIN, attempts, began_ms)

    def _attempt(self, rows: Rows, *, is_first: bool) -> FencepostError | None:
        """Everything but the end. Returns the failure of an attempt that was aborted."""
        try:
            self.enter(rows.write(self.lend(), is_first=is_first))
            rows.check()
            self.step("ending", self.batch.batch_id)
        except FencepostError as problem:
            self._give_up(problem)
            if isinstance(problem, BatchTooLarge):
                rows.learn(problem)
            return problem
        except BaseException:
            with suppress(FencepostError):  # What was raised matters more.
                self._give_up(None)
            raise
        return None

    def _give_up(self, problem: FencepostError | None) -> None:
        """Aborts after a failure; raises if the brokers or a successor have ended it already."""
        if self.state not in OPEN:
            return
        if self.producer.has_timed_out():
            self._move(State.ABORTED)
            # Another attempt would take as long.
            raise self.producer.timed_out() from problem
        if isinstance(problem, ProducerFenced):
            self._move(State.ABORTED)
            raise self.producer.fenced() from problem
        self.abort()

    def _ask(self, ledger: LedgerStore) -> Decision:
        decision = ledger.decide(self.view, self.batch, self.sources, self.overrides)
        what = (self.batch.batch_id, decision.verdict.value, decision.reason)
        log.info("batch %d: %s (%s)", *what)
        if decision.verdict is Verdict.REFUSE:
            raise refusal_of(ledger.transactional_id, decision)
        return decision

    def _move(self, state: State) -> None:
        assert state in MOVES[self.state], f"from {self.state} to {state}"
        self.state = state

    def _receipt(self, verdict: Verdict, attempts: int, began_ms: int) -> Receipt:
        entered = None if verdict is Verdict.DRAIN else self.entered
        return Receipt(
            self.batch.batch_id,
            verdict,
            account=entered and entered.account,
            open_ms=entered.open_ms if entered else 0,
            parts=entered.accounts if entered else {},
            attempts=attempts,
            commit_ms=self.commit_ms,
            began_ms=began_ms,
            ended_ms=now_ms(),
            query_id=self.batch.query_id,
            run_id=self.batch.run_id,
        )

    def _answers_lost(self, times: int) -> SinkFailed:
        return SinkFailed(
            f"batch {self.batch.batch_id}: the answer to EndTxn was lost {times} times, and each "
            "time the transaction turned out to be aborted. Check the brokers' logs and the network"
        )
