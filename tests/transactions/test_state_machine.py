"""Producers of both protocols against a small model: the broker matches it after every step.

Method: hypothesis chooses the steps: of the owner of an id or of a fenced producer, in either
protocol, on a broker that is stopped, killed, loses power, moves its coordinators and lets time
pass. Every request gets its reply before the next one is sent, so the model knows every offset. It
keeps the values and markers of each partition in order, and the open transaction of each id; what
readers, administrators and groups may see follows from that. (`broker/histories` covers lost
replies and concurrent requests.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from tests.broker.node_stage import Stage
from tests.broker.requests import batch_of, create_topic
from tests.halves import examples
from tests.transactions.protocol import PROTOCOLS, TV1, Protocol
from tests.transactions.requests import produce_request
from tests.transactions.wire import (
    GROUP,
    NONE,
    WireProducer,
    await_coordinator,
    committed_offsets,
    consume,
    end_offset,
    state_of,
)

IDS: Final = ("a", "b", "c")
PARTITIONS: Final = 2
TIMEOUT_MS: Final = 60_000
LOOK_MS: Final = 10_000
"""How often the broker checks for transactions past their timeout."""

ids = st.sampled_from(IDS)
indexes = st.integers(0, PARTITIONS - 1)
protocols = st.sampled_from(PROTOCOLS)


# -- the model -------------------------------------------------------------------------------------


@dataclass
class ModelTransaction:
    """One transaction: its partitions, and how it ended."""

    joined: set[int] = field(default_factory=set)
    """Partitions that get a marker."""
    offset: int | None = None
    """The offset of its group, pending until the end."""
    committed: bool | None = None
    """None while it is open."""

    @property
    def is_open(self) -> bool:
        return self.committed is None


@dataclass
class WrittenValue:
    """One value in a partition; None for one that belongs to no transaction."""

    value: bytes
    txn: ModelTransaction | None


MARKER: Final = None


class BrokerModel:
    """The expected state of the broker."""

    def __init__(self) -> None:
        self.logs: list[list[WrittenValue | None]] = [[] for _ in range(PARTITIONS)]
        self.open: dict[str, ModelTransaction] = {}
        self.offsets = dict.fromkeys(IDS, -1)

    def begin(self, name: str) -> ModelTransaction:
        return self.open.setdefault(name, ModelTransaction())

    def end(self, name: str, *, commit: bool) -> None:
        """Decides the outcome and writes the markers."""
        txn = self.open.pop(name)
        txn.committed = commit
        for index in txn.joined:
            self.logs[index].append(MARKER)
        if commit and txn.offset is not None:
            self.offsets[name] = txn.offset

    def stable(self, index: int) -> int:
        """The last stable offset: where the first open transaction begins, else the end."""
        for offset, entry in enumerate(self.logs[index]):
            if entry is not None and entry.txn is not None and entry.txn.is_open:
                return offset
        return len(self.logs[index])

    def committed(self, index: int) -> list[bytes]:
        return [
            entry.value
            for entry in self.logs[index][: self.stable(index)]
            if entry is not None and (entry.txn is None or entry.txn.committed)
        ]

    def everything(self, index: int) -> list[bytes]:
        return [entry.value for entry in self.logs[index] if entry is not None]


# -- the machine -----------------------------------------------------------------------------------


class Transactions(RuleBasedStateMachine):
    """The broker and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = BrokerModel()
        self.owners: dict[str, WireProducer] = {}
        self.fenced: list[WireProducer] = []
        self.late: set[str] = set()
        """Ids whose transaction the broker has aborted without its owner noticing yet."""
        self.count = 0

    @initialize(
        durability=st.sampled_from(["os", "fsync"]), recovery=st.sampled_from(["resume", "abort"])
    )
    def start(self, durability: str, recovery: str) -> None:
        self.durability, self.recovery = durability, recovery
        given = {"transaction.recovery.ongoing": recovery}
        self.stage = Stage(durability=durability, settings=given).start()
        create_topic(self.stage, "t", PARTITIONS)
        create_topic(self.stage, "source", len(IDS))
        await_coordinator(self.stage, "g", GROUP)
        for name in IDS:
            self.take_over(name, TV1)

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            self.stage.abandon()
            assert not self.stage.fatal
            assert not self.stage.problems

    # -- producers ---------------------------------------------------------------------------------

    @rule(name=ids, protocol=protocols)
    def take_over(self, name: str, protocol: Protocol) -> None:
        """Another producer initialises; the open transaction of its predecessor is aborted."""
        if name in self.owners:
            self.fenced.append(self.owners[name])
        self.owners[name] = WireProducer(self.stage, name, protocol).initialise()
        self.late.discard(name)
        if name in self.model.open:
            self.model.end(name, commit=False)

    @rule(name=ids, protocol=protocols)
    def change_protocol(self, name: str, protocol: Protocol) -> None:
        """Also inside a transaction: the version of each request decides."""
        self.owners[name].protocol = protocol

    @rule(name=ids, index=indexes)
    def join(self, name: str, index: int) -> None:
        """AddPartitionsToTxn, perhaps without a write."""
        error = self.owners[name].add_one("t", index)
        if name in self.late:
            assert error == ErrorCode.PRODUCER_FENCED
        else:
            assert error == NONE
            self.model.begin(name).joined.add(index)

    @rule(name=ids, index=indexes)
    def write(self, name: str, index: int) -> None:
        owner = self.owners[name]
        value = self._value()
        if name in self.late:
            assert owner.produce("t", value, index=index).error_code == (
                ErrorCode.INVALID_PRODUCER_EPOCH
            )
            return
        if owner.protocol is TV1:
            assert owner.add_one("t", index) == NONE
        told = owner.produce("t", value, index=index)
        assert (told.error_code, told.base_offset) == (NONE, len(self.model.logs[index]))
        txn = self.model.begin(name)
        txn.joined.add(index)
        self.model.logs[index].append(WrittenValue(value, txn))

    @rule(name=ids)
    def send_offset(self, name: str) -> None:
        if name in self.late:
            return
        self.count += 1
        self.owners[name].send_offsets("g", {("source", IDS.index(name)): self.count})
        self.model.begin(name).offset = self.count

    @rule(name=ids, commit=st.booleans(), retries=st.integers(0, 1))
    def end(self, name: str, commit: bool, retries: int) -> None:
        owner = self.owners[name]
        before = owner.twin()
        error = owner.end(commit=commit)
        assert error == self._expected(name, commit=commit)
        if error != NONE:
            return
        self.late.discard(name)
        if name in self.model.open:
            self.model.end(name, commit=commit)
        for _ in range(retries):
            assert before.twin().end(commit=commit) == NONE, "a retry after a lost reply"

    def _expected(self, name: str, *, commit: bool) -> ErrorCode:
        protocol = self.owners[name].protocol
        if name in self.model.open:
            return ErrorCode.NONE
        if name in self.late and protocol is TV1:
            return ErrorCode.PRODUCER_FENCED
        if protocol is TV1:
            return self._again(name, commit=commit)
        return ErrorCode.INVALID_TXN_STATE if commit else ErrorCode.NONE

    def _again(self, name: str, *, commit: bool) -> ErrorCode:
        """TV1 cannot distinguish a second end from a retry of the first."""
        ended = "CompleteCommit" if commit else "CompleteAbort"
        repeated = state_of(self.stage, name) == ended
        return ErrorCode.NONE if repeated else ErrorCode.INVALID_TXN_STATE

    @precondition(lambda self: self.fenced)
    @rule(data=st.data(), index=indexes, what=st.sampled_from(["write", "join", "offset", "init"]))
    def come_back_fenced(self, data: st.DataObject, index: int, what: str) -> None:
        """Every request of a producer with an earlier epoch is refused."""
        zombie = data.draw(st.sampled_from(self.fenced)).twin(self.stage)
        if what == "write":
            error = zombie.produce("t", b"zombie", index=index).error_code
            assert error == ErrorCode.INVALID_PRODUCER_EPOCH
        elif what == "join":
            assert zombie.add_one("t", index) == ErrorCode.PRODUCER_FENCED
        elif what == "offset":
            (error,) = zombie.commit_offsets("g", {("source", 0): 10**6}).values()
            assert error == ErrorCode.INVALID_PRODUCER_EPOCH
        elif zombie.transactional_id not in self.model.open:
            identity = {"producer_id": zombie.producer_id, "epoch": zombie.epoch}
            assert zombie.init(**identity) == ErrorCode.PRODUCER_FENCED

    @rule(index=indexes)
    def write_plainly(self, index: int) -> None:
        value = self._value()
        request = produce_request({("t", index): batch_of(value)}, transactional_id=None)
        reply = self.stage.call(ApiKey.PRODUCE, 11, request)
        assert reply.responses[0].partition_responses[0].error_code == NONE
        self.model.logs[index].append(WrittenValue(value, None))

    def _value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    # -- the broker --------------------------------------------------------------------------------

    @rule()
    def wait_past_every_timeout(self) -> None:
        self.stage.advance(TIMEOUT_MS + 2 * LOOK_MS)
        self._abort_all()

    @rule(how=st.sampled_from(["stop", "kill", "power"]))
    def restart(self, how: str) -> None:
        if how == "stop":
            self.stage.stop()
        elif how == "kill" or self.durability == "os":
            self.stage.kill()
        else:
            self.stage.lose_power()
        self.stage = self.stage.again()
        self.stage.advance(100)
        for owner in self.owners.values():
            owner.client = self.stage
        if self.recovery == "abort":
            self._abort_all()

    @rule()
    def move_coordinators(self) -> None:
        """Unloads and loads again: a load drops what was served before."""
        self.stage.node.coordinators.load_all()
        self.stage.advance(100)
        if self.recovery == "abort":
            self._abort_all()

    def _abort_all(self) -> None:
        for name in list(self.model.open):
            self.model.end(name, commit=False)
            self.late.add(name)

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def partitions_show_what_the_model_says(self) -> None:
        for index in range(PARTITIONS):
            model = self.model
            assert end_offset(self.stage, "t", index=index, committed=False) == len(
                model.logs[index]
            )
            assert end_offset(self.stage, "t", index=index) == model.stable(index)
            assert consume(self.stage, "t", index=index).values == model.committed(index)
            everything = consume(self.stage, "t", index=index, committed=False)
            assert everything.values == model.everything(index)

    @invariant()
    def groups_see_what_was_committed_and_know_what_is_pending(self) -> None:
        told = committed_offsets(self.stage, "g", "source", *range(len(IDS)), stable=True)
        for name, each in zip(IDS, told, strict=True):
            txn = self.model.open.get(name)
            if txn is not None and txn.offset is not None:
                assert each.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
            else:
                assert (each.error_code, each.committed_offset) == (NONE, self.model.offsets[name])

    @invariant()
    def nothing_hangs(self) -> None:
        for name in IDS:
            state = state_of(self.stage, name)
            assert (state == "Ongoing") == (name in self.model.open)
            assert not state.startswith("Prepare")


EXAMPLES: Final = settings(max_examples=examples(60), stateful_step_count=25)


def test_the_broker_matches_the_model_after_any_steps() -> None:
    run_state_machine_as_test(Transactions, settings=EXAMPLES)


class Forgetful(Transactions):
    """A planted fault: the model treats an abort as a commit."""

    @rule(name=ids, index=indexes)
    def write_and_abort(self, name: str, index: int) -> None:
        self.take_over(name, TV1)
        self.write(name, index)
        txn = self.model.open[name]
        self.end(name, commit=False, retries=0)
        txn.committed = True


def test_the_state_machine_detects_a_planted_fault() -> None:
    # Found is enough: the shortest steps to it take long to find.
    only_found = settings(EXAMPLES, max_examples=60, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Forgetful, settings=only_found)
