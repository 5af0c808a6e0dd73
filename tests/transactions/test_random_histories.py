"""Random histories of three producers on a broker that stops, crashes and moves coordinators.

Method: a random generator chooses every step. Each transaction writes unique values, and may move
an offset that only its producer moves. Requests and replies are recorded; at the end the logs must
agree with them:

- a transaction whose commit was acknowledged is complete and visible once; one that was never
  committed is not visible at all;
- one whose end was sent but not acknowledged is complete or not visible at all;
- the offset of a producer is that of its last visible transaction.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from fencepost.wire.apis import ApiKey
from tests.broker.node_stage import Stage
from tests.broker.raw import ClosedError
from tests.broker.requests import create_topic
from tests.halves import half_of
from tests.transactions.protocol import TV1, TV2
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offset,
    state_of,
    values,
)

PARTITIONS = 3
STEPS = 120
DROPPED = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.PRODUCE,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.END_TXN,
)


class Refused(Exception):  # noqa: N818 - it is a reply.
    """A request failed, so the transaction is over for its producer."""


@dataclass
class ProducerTransaction:
    """One transaction as its producer sees it."""

    number: int
    written: list[tuple[int, bytes]] = field(default_factory=list)
    moves_offset: bool = False
    asked: bool | None = None
    """Whether a commit or an abort was sent; None for neither."""
    answered: bool = False

    @property
    def must_be_there(self) -> bool:
        return self.asked is True and self.answered

    @property
    def may_be_there(self) -> bool:
        return self.asked is True


class Actor:
    """One producer, its transactions, and its partition of the source."""

    def __init__(self, index: int, stage: Stage, rng: random.Random) -> None:
        self._rng = rng
        self.index = index
        self.producer = WireProducer(stage, f"id-{index}", rng.choice([TV1, TV2]))
        self.past: list[ProducerTransaction] = []
        self.txn = ProducerTransaction(0)
        self.is_initialised = False

    def act(self) -> None:
        """A random step of the producer; after a failure it starts again with an init."""
        try:
            if not self.is_initialised:
                self.producer.initialise()
                self.is_initialised = True
            self._rng.choice([self.write, self.write, self.write, self.move_offset, self.end])()
        except (ClosedError, Refused, AssertionError):
            self.give_up()

    def give_up(self) -> None:
        self.is_initialised = False
        self._next()

    def _next(self) -> None:
        self.past.append(self.txn)
        self.txn = ProducerTransaction(self.txn.number + 1)

    def write(self) -> None:
        index = self._rng.randrange(PARTITIONS)
        value = b"%d/%d/%d" % (self.index, self.txn.number, len(self.txn.written))
        # Recorded before it is sent, because it may be written even if its reply is lost.
        self.txn.written.append((index, value))
        self.producer.join(("t", index))
        if self.producer.produce("t", value, index=index).error_code != NONE:
            raise Refused

    def move_offset(self) -> None:
        self.txn.moves_offset = True
        self.producer.send_offsets("g", {("source", self.index): self.txn.number})

    def end(self) -> None:
        commit = self._rng.random() < 0.6
        if not self.txn.written and not self.txn.moves_offset:
            return  # TV1 cannot end a transaction that has not begun.
        self.txn.asked = commit
        retry = self.producer.twin()
        try:
            error = self.producer.end(commit=commit)
        except ClosedError:
            if self._rng.random() < 0.5:
                raise
            error = retry.end(commit=commit)
            self.producer = retry
        if error != NONE:
            raise Refused
        self.txn.answered = True
        self._next()


class BrokerHistory:
    """Everything that happens to one broker."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._durability = self._rng.choice(["os", "fsync"])
        recovery = self._rng.choice(["resume", "resume", "abort"])
        self.stage = Stage(
            durability=self._durability, settings={"transaction.recovery.ongoing": recovery}
        ).start()
        create_topic(self.stage, "t", PARTITIONS)
        create_topic(self.stage, "source", 3)
        await_coordinator(self.stage, "g", GROUP)
        self.actors = [Actor(index, self.stage, self._rng) for index in range(3)]

    def step(self) -> None:
        chance = self._rng.random()
        if chance < 0.80:
            self._rng.choice(self.actors).act()
        elif chance < 0.86:
            self.stage.node.faults.drop(self._rng.choice(DROPPED), effect=self._rng.random() < 0.5)
        elif chance < 0.90:
            self.stage.advance(self._rng.choice([100, 5_000, 30_000, 80_000]))
        elif chance < 0.94:
            self._move_coordinators()
        else:
            self._restart()

    def _move_coordinators(self) -> None:
        """Unloads and loads again: a load drops what was served before."""
        self.stage.node.coordinators.load_all()
        self.stage.advance(500)

    def _restart(self) -> None:
        end = self._rng.choice(["stop", "kill", "power" if self._durability == "fsync" else "kill"])
        if end == "stop":
            self.stage.stop()
        elif end == "kill":
            self.stage.kill()
        else:
            self.stage.lose_power()
        assert not self.stage.fatal
        self.stage = self.stage.again()
        self.stage.advance(500)
        for actor in self.actors:
            actor.producer.client = self.stage

    def finish(self) -> None:
        """Aborts everything that is open."""
        while self.stage.node.faults:
            self.stage.node.faults._waiting.clear()
        for actor in self.actors:
            actor.give_up()
            actor.producer.initialise()
        self.stage.advance(10_000)

    def check(self) -> None:
        seen = [Counter(values(self.stage, "t", index=index)) for index in range(PARTITIONS)]
        for actor in self.actors:
            there = -1
            for txn in actor.past:
                shown = [seen[index].pop(value, 0) for index, value in txn.written]
                assert max(shown, default=0) <= 1, f"{txn} is visible more than once"
                assert len(set(shown)) <= 1, f"{txn} is torn: {shown}"
                if shown:
                    assert shown[0] or not txn.must_be_there, f"{txn} is lost"
                    assert not shown[0] or txn.may_be_there, f"{txn} should not be visible"
                if txn.moves_offset and self._is_there(txn, shown):
                    there = txn.number
            offset = committed_offset(self.stage, "g", "source", actor.index)
            assert offset == there or self._is_doubtful(actor, offset)
            assert state_of(self.stage, actor.producer.transactional_id) == "Empty"
        assert not any(seen), "no producer has written this"

    @staticmethod
    def _is_there(txn: ProducerTransaction, shown: list[int]) -> bool:
        return bool(shown[0]) if shown else txn.must_be_there

    @staticmethod
    def _is_doubtful(actor: Actor, offset: int) -> bool:
        """For a transaction with only an offset and an unacknowledged end, both are right."""
        return any(
            txn.number == offset and txn.may_be_there and not txn.answered and not txn.written
            for txn in actor.past
        )


@pytest.mark.parametrize("seed", half_of(range(30)))
def test_random_histories_leave_no_partial_transaction_and_keep_every_reply(seed: int) -> None:
    history = BrokerHistory(seed)
    for _ in range(STEPS):
        history.step()
    history.finish()
    history.check()
    assert not history.stage.fatal
    assert not history.stage.problems
    history.stage.abandon()
    assert any(txn.must_be_there for actor in history.actors for txn in actor.past)


def test_the_check_detects_torn_lost_and_unwanted_transactions() -> None:
    """A planted fault of each kind must be found."""
    for planted, complaint in (
        (
            ProducerTransaction(0, [(0, b"0/0/0"), (1, b"nowhere")], asked=True, answered=True),
            "torn",
        ),
        (ProducerTransaction(0, [(0, b"nowhere")], asked=True, answered=True), "lost"),
        (ProducerTransaction(0, [(0, b"0/0/0")], asked=False, answered=True), "not be visible"),
    ):
        history = BrokerHistory(1)
        one = history.actors[0].producer.initialise()
        one.send("t", b"0/0/0")
        one.commit()
        history.finish()
        history.actors[0].past = [planted]
        with pytest.raises(AssertionError, match=complaint):
            history.check()
        history.stage.abandon()


def test_random_histories_include_lost_replies_and_fenced_producers() -> None:
    """Over all seeds, some ends are lost and some producers are fenced."""
    unanswered = fenced = 0
    for seed in range(10):
        history = BrokerHistory(seed)
        for _ in range(STEPS):
            history.step()
        everything = [txn for actor in history.actors for txn in actor.past]
        unanswered += sum(txn.asked is not None and not txn.answered for txn in everything)
        fenced += sum(txn.asked is None and bool(txn.written) for txn in everything)
        history.stage.abandon()
    assert unanswered > 3
    assert fenced > 3
