"""Any sequence of requests: the promises to clients hold after every step.

Method: hypothesis chooses events for one transactional id, from producers that keep their former
identities. The ledger checks fold(log) == fold(compacted log) == live state after each step.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.txn.apply import CoordinatorState, apply, read_entry
from fencepost.coordinator.txn.events import Reply
from fencepost.coordinator.txn.states import TRANSITIONS, State
from tests.coordinator.txn.ledger import TXN, Ledger, transaction
from tests.halves import examples

EVENTS = ("init", "resume", "add", "commit", "abort", "time out", "complete", "expire", "fail")

steps = st.lists(
    st.tuples(
        st.sampled_from(EVENTS),
        st.integers(0, 3),  # which of all identities given out, newest first
        st.integers(-1, 1),  # the difference of its epoch
        st.sampled_from([0, 2]),  # the protocol of the request
        st.integers(0, 4),  # a partition
    ),
    max_size=40,
)
first_epochs = st.sampled_from([0, 7, 32764, 32765, 32766])


class RandomProducers:
    """All producers that ever used the id, and the replies they got."""

    def __init__(self, first_epoch: int, cluster_version: int) -> None:
        self.ledger = Ledger(transaction(epoch=first_epoch), cluster_version=cluster_version)
        self.identities = [(4000, first_epoch)]
        self.joined: set[int] = set()

    def identity(self, back: int, off: int) -> tuple[int, int]:
        producer_id, epoch = self.identities[-1 - min(back, len(self.identities) - 1)]
        return producer_id, epoch + off

    def step(self, event: str, back: int, off: int, version: int, partition: int) -> None:
        ledger = self.ledger
        # A client uses TV2 only if the cluster has announced it.
        version = min(version, ledger.cluster_version)
        ledger.now_ms += 1_000
        if TXN not in ledger.state.transactions and event not in ("init", "fail"):
            return
        if event == "init":
            self.learn(ledger.init())
        elif event == "resume":
            self.learn(ledger.init(*self.identity(back, off)))
        elif event == "add":
            self.add(self.identity(back, off), partition, version)
        elif event in ("commit", "abort"):
            self.end(self.identity(back, off), event == "commit", version)
        elif event == "time out":
            ledger.time_out()
        elif event == "complete":
            self.complete()
        elif event == "expire":
            ledger.expire(expiration_ms=5_000)
        else:
            ledger.append_fails = 1

    def learn(self, reply: Reply) -> None:
        error, producer_id, epoch = reply.error, reply.producer_id, reply.producer_epoch
        if error is not ErrorCode.NONE:
            return
        assert 0 <= epoch < 32767, "no client ever gets the last epoch"
        self.identities.append((producer_id, epoch))

    def add(self, identity: tuple[int, int], partition: int, version: int) -> None:
        ledger = self.ledger
        before = ledger.txn
        current = ledger.identity
        error = ledger.add(*identity, {"t": (partition,)}, version=version)
        if error is ErrorCode.NONE:
            assert identity == current, "only the current producer can add"
            assert partition in ledger.txn.partitions["t"]
            for topic, indexes in before.partitions.items():
                assert set(indexes) <= set(ledger.txn.partitions[topic])
        else:
            assert ledger.txn == before

    def end(self, identity: tuple[int, int], commit: bool, version: int) -> None:
        ledger = self.ledger
        before = ledger.txn
        written = len(ledger.log)
        reply = ledger.end(*identity, commit=commit, version=version)
        if version == 2:
            self.learn(reply)
        if len(ledger.log) > written:
            assert identity == (before.producer_id, before.producer_epoch)
            assert ledger.txn.partitions == before.partitions, "every partition gets its marker"
            assert not commit or before.state == State.ONGOING
        else:
            assert ledger.txn == before

    def complete(self) -> None:
        ledger = self.ledger
        if ledger.txn.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            committed = ledger.txn.state == State.PREPARE_COMMIT
            ledger.append_fails = 0
            ledger.complete()
            target = State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT
            assert ledger.txn.state == target, "the Prepare record has fixed the outcome"


def check_log(ledger: Ledger) -> None:
    """Every record follows from the one before by the table, and no identity goes backwards."""
    state = CoordinatorState()
    for entry in ledger.log:
        before = state.transactions.get(TXN)
        record = read_entry(entry)
        assert record is not None
        apply(state, record)
        after = state.transactions.get(TXN)
        if before is None or after is None:
            continue
        assert after.state in TRANSITIONS[State(before.state)]
        if after.producer_id == before.producer_id:
            assert after.producer_epoch >= before.producer_epoch
        else:
            assert after.producer_epoch == 0
            assert after.previous_producer_id == before.producer_id
            assert before.producer_epoch >= 32766


@settings(max_examples=examples(300))
@given(steps, first_epochs, st.sampled_from([0, 2]))
def test_any_requests_keep_log_and_state_equal_and_never_give_out_the_last_epoch(
    sequence: list[tuple[str, int, int, int, int]], first_epoch: int, cluster_version: int
) -> None:
    client = RandomProducers(first_epoch, cluster_version)
    for event, back, off, version, partition in sequence:
        client.step(event, back, off, version, partition)
    check_log(client.ledger)


@settings(max_examples=examples(100))
@given(steps, first_epochs, st.sampled_from([0, 2]))
def test_a_transaction_can_be_completed_after_a_crash_at_any_step(
    sequence: list[tuple[str, int, int, int, int]], first_epoch: int, cluster_version: int
) -> None:
    client = RandomProducers(first_epoch, cluster_version)
    for event, back, off, version, partition in sequence:
        client.step(event, back, off, version, partition)
        ledger = client.ledger
        known = ledger.state.transactions.get(TXN)
        recovered = Ledger(known, cluster_version=cluster_version)
        if known is not None and known.state == State.ONGOING:
            recovered.time_out()
        if known is not None and TXN in recovered.state.open:
            recovered.complete()
        assert not recovered.state.open
        assert recovered.init().error is ErrorCode.NONE
