"""Goal: however a step of a transaction fails, its batch is visible once or not at all.

Method: a producer, a ledger and rows that fail where they are told to, and note what they did. What
the brokers would hold is folded from those notes.
"""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest

from fencepost.base.failures import FencepostError
from fencepost.client.failures import ProducerFenced, UnknownOutcome
from fencepost.client.transactions import ProducerIdentity
from fencepost.spark.failures import BatchTooLarge, RowRefused, SinkFailed, SinkFenced, SinkRefused
from fencepost.spark.ledger.entry import LedgerEntry, LedgerView
from fencepost.spark.ledger.rule import Batch, Decision, Verdict
from fencepost.spark.transaction import transaction as module
from fencepost.spark.transaction.receipts import Receipt
from fencepost.spark.transaction.states import MOVES, OPEN, State
from fencepost.spark.transaction.transaction import Transaction
from fencepost.spark.ways.accounts import Account

WRITE = Decision(Verdict.WRITE, "the next batch")


class World:
    """Brokers, a producer, a ledger and rows in one: `plan` has the fate of each step, in order."""

    transactional_id = "id"
    timeout_ms = 1_000
    has_identity = True

    def __init__(self, **plan: list[Any]) -> None:
        self.plan = {name: list(fates) for name, fates in plan.items()}
        self.epoch = 0
        self.open: list[int] = []
        """The epochs of the rows in the open transaction."""
        self.visible: list[int] = []
        self.steps: list[str] = []

    def fate(self, step: str) -> Any:
        self.steps.append(step)
        fates = self.plan.get(step)
        found = fates.pop(0) if fates else None
        if isinstance(found, BaseException):
            raise found
        return found

    # The producer.

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity("id", 7, self.epoch, 2)

    def freshen(self) -> bool:
        return False

    def fence(self) -> None:
        self.fate("fence")
        self.epoch += 1
        self.open = []

    def lend(self) -> ProducerIdentity:
        return self.identity

    def commit(self) -> None:
        fate = self.plan.get("commit", [None])[0] if self.plan.get("commit") else None
        if not (isinstance(fate, UnknownOutcome) and "never" in str(fate)):
            self.visible += self.open
            self.open = []
            self.epoch += 1
        self.fate("commit")

    def abandon(self) -> bool:
        if self.fate("abort") is False:
            return False
        self.open = []
        self.epoch += 1
        return True

    def is_taken(self) -> bool:
        return bool(self.fate("is taken"))

    def has_timed_out(self) -> bool:
        return bool(self.fate("timed out"))

    def timed_out(self) -> SinkRefused:
        return SinkRefused("timed out")

    def fenced(self, outcome: str = "") -> SinkFenced:
        return SinkFenced(f"fenced. {outcome}")

    # The ledger.

    def read(self, producer: Any) -> LedgerView:
        return LedgerView(entry=LedgerEntry("q", 3) if self.visible else None)

    def decide(self, view: LedgerView, batch: Batch, *_: Any) -> Decision:
        assert batch.is_again
        assert batch.parts is None
        return Decision(Verdict.DRAIN if view.entry is not None else Verdict.WRITE, "")

    # The rows.

    def write(self, identity: ProducerIdentity, *, is_first: bool) -> dict[str, Account]:
        self.open.append(identity.producer_epoch)
        self.fate("write")
        return {"out": Account(1, {})}

    def check(self) -> None:
        self.fate("check")

    def drain(self) -> None:
        self.fate("drain")

    def learn(self, problem: BatchTooLarge) -> None:
        self.fate("learn")


class FakeEntry:
    """The ledger's part of a transaction."""

    def __init__(self, ledger: World, *_: Any) -> None:
        self._world = ledger
        self.open_ms = 0
        self.view = LedgerView(entry=LedgerEntry("q", 3))

    def commit_sources(self) -> None:
        self._world.fate("offsets")

    def write(self, opened_ms: int) -> None:
        self._world.fate("enter")


@pytest.fixture(autouse=True)
def fake_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EntryWriter", FakeEntry)


def run(world: World, attempts: int = 3) -> tuple[Transaction, Receipt]:
    found: Any = world
    transaction = Transaction(found, found, Batch("q", 3, parts=("out",), run_id="run"))
    transaction.fence()
    transaction.decide(WRITE)
    return transaction, transaction.run(WRITE, found, attempts)


def lost(never: bool) -> UnknownOutcome:
    return UnknownOutcome("never sent" if never else "the answer is lost")


def test_a_batch_is_written_entered_and_ended_once() -> None:
    world = World()
    transaction, receipt = run(world)
    assert transaction.state is State.COMMITTED
    assert (receipt.verdict, receipt.attempts, receipt.rows) == (Verdict.WRITE, 1, 1)
    assert world.visible == [0]
    assert transaction.view.entry == LedgerEntry("q", 3)


@pytest.mark.parametrize("step", ["write", "offsets", "enter", "check"])
@pytest.mark.parametrize("is_answered", [True, False], ids=["aborted", "abort in doubt"])
def test_a_step_that_fails_once_costs_an_attempt_and_nothing_else(
    step: str, is_answered: bool
) -> None:
    fates: dict[str, list[Any]] = {step: [SinkFailed("once")]}
    world = World(abort=[None if is_answered else False], **fates)
    transaction, receipt = run(world)
    assert (transaction.state, receipt.attempts) == (State.COMMITTED, 2)
    assert len(world.visible) == 1
    assert world.open == []
    assert ("fence" in world.steps) is not is_answered, "only a doubt needs a new fence"


@pytest.mark.parametrize("step", ["write", "offsets", "enter", "check", "commit"])
@pytest.mark.parametrize(
    "problem", [SinkFailed("always"), RowRefused("a row"), KeyboardInterrupt()], ids=repr
)
def test_a_batch_that_fails_for_good_is_not_visible_and_not_left_open(
    step: str, problem: BaseException
) -> None:
    if step == "commit":
        problem, world = SinkFailed("answers"), World(commit=[lost(True)] * 3)
    else:
        world = World(**{step: [problem] * 9})
    with pytest.raises(type(problem)):
        run(world)
    assert (world.visible, world.open) == ([], [])


@pytest.mark.parametrize("never", [True, False], ids=["not executed", "executed"])
def test_a_lost_answer_is_settled_by_the_ledger(never: bool) -> None:
    world = World(commit=[lost(never)])
    transaction, receipt = run(world)
    assert (transaction.state, receipt.attempts) == (State.COMMITTED, 2 if never else 1)
    assert len(world.visible) == 1
    assert transaction.view.entry is not None


def test_an_owner_that_was_replaced_does_not_settle() -> None:
    world = World(commit=[lost(True)], **{"is taken": [True]})
    with pytest.raises(SinkFenced, match="The ledger will tell"):
        run(world)
    assert "fence" not in world.steps, "the successor goes on"


@pytest.mark.parametrize("step", ["write", "enter"])
def test_a_fenced_producer_stops_and_does_not_abort_its_successor(step: str) -> None:
    world = World(**{step: [ProducerFenced("init", 90)]})
    with pytest.raises(SinkFenced):
        run(world)
    assert "abort" not in world.steps


def test_a_transaction_that_timed_out_is_not_tried_again() -> None:
    world = World(write=[SinkFailed("slow")], **{"timed out": [True]})
    with pytest.raises(SinkRefused, match="timed out"):
        run(world)
    assert world.steps.count("write") == 1


def test_a_batch_that_is_too_large_costs_no_attempt() -> None:
    world = World(write=[BatchTooLarge("out", 9, 9_000)] * 4)
    _, receipt = run(world, attempts=1)
    assert receipt.attempts == 5
    assert world.steps.count("learn") == 4
    assert len(world.visible) == 1


def test_a_batch_that_turns_out_to_be_committed_after_a_failure_is_drained() -> None:
    world = World(write=[SinkFailed("late")], abort=[False])
    world.visible = [9]
    transaction, receipt = run(world)
    assert (transaction.state, receipt.verdict) == (State.DRAINED, Verdict.DRAIN)
    assert world.visible == [9]


def test_a_write_that_nothing_records_is_settled_by_the_coordinator() -> None:
    world: Any = World(commit=[lost(False)])
    world.was_committed = lambda: True
    transaction = Transaction(world, None, Batch("w", 0, is_version=True))
    transaction.fence()
    transaction.decide()
    transaction.lend()
    transaction.enter({"out": Account(1, {})})
    assert transaction.end()
    assert transaction.state is State.COMMITTED


def test_a_transaction_passes_to_another_process() -> None:
    transaction: Any = Transaction(None, None, Batch("q", 3))  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(transaction)) == transaction


@pytest.mark.parametrize(("now", "then"), list(itertools.product(State, State)))
def test_only_moves_of_the_table_are_possible(now: State, then: State) -> None:
    transaction: Any = Transaction(None, None, Batch("q", 3), state=now)  # type: ignore[arg-type]
    if then in MOVES[now]:
        transaction._move(then)
        assert transaction.state is then
    else:
        with pytest.raises(AssertionError):
            transaction._move(then)


def test_every_state_is_reached_and_every_open_one_can_be_aborted() -> None:
    reached = {State.PLANNED}
    while more := {then for now in reached for then in MOVES[now]} - reached:
        reached |= more
    assert reached == set(State)
    assert all({State.ABORTED, State.IN_DOUBT} <= MOVES[state] for state in OPEN)
    assert issubclass(SinkFailed, FencepostError)
