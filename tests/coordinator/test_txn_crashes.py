"""Kills and power loss at any moment: replies stay true, and no transaction ends twice.

Method: hypothesis drives a node with explicit syncs, through real logs on a disk that loses
unsynced bytes. In TV2 every transaction has a different epoch, which identifies its markers. The
model records requests and replies; after every restart the logs must agree with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TRANSACTION_STATE_TOPIC
from fencepost.coordinator.txn.states import State
from tests.broker.transactions.shell import Answer, ShellNode

pytestmark = pytest.mark.interpreted

ROUNDS = st.tuples(
    st.sampled_from(["go on", "go on", "go on", "go on", "init", "wait"]),
    st.integers(0, 3),
    # The files that are synced before the next round, in this order: the coordinator's log, the
    # topic's.
    st.sampled_from(["", "l", "t", "lt", "tl", "ltl", "ltlt"]),
    st.sampled_from(["", "", "", "kill", "power"]),
)
steps = st.lists(ROUNDS, max_size=14)


@dataclass
class Ended:
    """An EndTxn that was sent: its producer, its outcome, and the partitions of its transaction."""

    answer: Answer
    producer_id: int
    epoch: int
    commit: bool
    partitions: set[int]
    heard: bool = False


@dataclass
class ProducerModel:
    """The view of a single producer with the id `a`."""

    node: ShellNode
    identity: tuple[int, int] | None = None
    asked_init: Answer | None = None
    adding: list[tuple[Answer, int]] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    given_out: list[tuple[int, int]] = field(default_factory=list)

    def step(self, event: str, number: int, syncs: str, crash: str) -> None:
        if event == "init":
            self.asked_init = self.asked_init or self.node.init()
        elif event == "wait":
            self.node.pass_time(number * 40_000)
        else:
            self.go_on(number)
        self.listen()
        for sync in syncs:
            self.node.sync(TRANSACTION_STATE_TOPIC if sync == "l" else "t")
            self.listen()
        if crash:
            self.crash(power_lost=crash == "power")

    def go_on(self, number: int) -> None:
        """The producer's next step: get its id, add a partition or two, end."""
        if self.identity is None:
            self.asked_init = self.asked_init or self.node.init()
            return
        joined = {index for answer, index in self.adding if answer.error is ErrorCode.NONE}
        if len(joined) <= number % 2:
            answer = self.node.add(*self.identity, {"t": (number,)}, version=2)
            self.adding.append((answer, number))
            return
        commit = number < 2
        answer = self.node.end(*self.identity, commit=commit, version=2)
        self.ended.append(Ended(answer, *self.identity, commit, joined))

    def listen(self) -> None:
        if self.asked_init is not None and self.asked_init.reply is not None:
            reply = self.asked_init.reply
            error, producer_id, epoch = reply.error, reply.producer_id, reply.producer_epoch
            self.asked_init = None
            if error is ErrorCode.NONE:
                self.take((producer_id, epoch))
        for ended in self.ended:
            if not ended.heard and ended.answer.reply is not None:
                ended.heard = True
                reply = ended.answer.reply
                error, producer_id, epoch = reply.error, reply.producer_id, reply.producer_epoch
                if error is ErrorCode.NONE:
                    self.take((producer_id, epoch))

    def take(self, identity: tuple[int, int]) -> None:
        assert identity not in self.given_out, f"{identity} was given out twice"
        self.given_out.append(identity)
        self.identity = identity
        self.adding.clear()

    def crash(self, *, power_lost: bool) -> None:
        self.node = self.node.restart(power_lost=power_lost)
        self.node.load()
        self.node.sync_all()
        self.asked_init = None
        self.check()

    def check(self) -> None:
        """Nothing is half done, and every reply still holds."""
        node = self.node
        (coordinator,) = node.transactions.coordinators()
        assert not coordinator.pending
        for txn in coordinator.state.transactions.values():
            assert txn.state not in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
        outcomes: dict[int, set[bool]] = {}
        for index in range(4):
            for commit, epoch, _ in node.markers_in("t", index):
                outcomes.setdefault(epoch, set()).add(commit)
        assert all(len(found) == 1 for found in outcomes.values()), (
            "a transaction was both committed and aborted"
        )
        for ended in self.ended:
            if ended.answer.error is not ErrorCode.NONE:
                continue
            for index in ended.partitions:
                marked = [
                    c for c, epoch, _ in node.markers_in("t", index) if epoch == ended.epoch + 1
                ]
                assert marked, f"t-{index} has no marker of epoch {ended.epoch + 1}"
                assert set(marked) == {ended.commit}


@settings(max_examples=400)
@given(steps, st.booleans())
def test_replies_hold_and_transactions_end_once_after_any_crash(
    sequence: list[tuple[str, int, str, str]], fsync: bool
) -> None:
    node = ShellNode(fsync=fsync)
    node.load()
    model = ProducerModel(node)
    for event, number, syncs, crash in sequence:
        # A power loss may remove bytes that were only in the page cache: that promise needs
        # fsync.
        model.step(event, number, syncs, "kill" if crash and not fsync else crash)
    model.crash(power_lost=fsync)
