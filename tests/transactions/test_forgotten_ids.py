"""A start restores the coordinator's state: checkpoints, tombstones and compaction in any order.

Method: a whole broker on a disk in memory, with segments of a few records. Transactions begin and
end in both protocols, idle ids expire, logs are compacted, checkpoints saved, and the broker is
stopped, killed or loses power. A model keeps every id with its producer and state. After each step
the live state must be the model's, and the fold of the log's records too; after a start, the state
that was loaded from checkpoint and log.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Final

import pytest
from hypothesis import settings
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
from fencepost.base.failures import SyncError
from fencepost.base.ids import TRANSACTION_STATE_TOPIC
from fencepost.base.seams import Disk
from fencepost.broker.coordinators import log_loader
from fencepost.broker.coordinators.checkpoint_keeper import checkpoint_path, read_checkpoint
from fencepost.coordinator.txn.apply import CoordinatorState, fold
from fencepost.coordinator.txn.states import State
from fencepost.partition.partition import Partition
from fencepost.records.entry import Entry
from fencepost.wire.apis import ApiKey
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic
from tests.transactions.protocol import PROTOCOLS, TV1, Protocol
from tests.transactions.requests import init_request
from tests.transactions.wire import WireProducer, await_coordinator, retried

pytestmark = pytest.mark.interpreted

IDS: Final = ("a", "b", "c", "d")
EXPIRATION_MS: Final = 60_000
LOOK_MS: Final = 5_000
DELETE_RETENTION_MS: Final = 1_000
SETTINGS: Final = {
    "transactional.id.expiration.ms": str(EXPIRATION_MS),
    "transaction.remove.expired.transaction.cleanup.interval.ms": str(LOOK_MS),
    "transaction.max.timeout.ms": str(10**9),
    "transaction.state.log.segment.bytes": "400",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.delete.retention.ms": str(DELETE_RETENTION_MS),
    "log.retention.check.interval.ms": str(10**9),
    "log.cleaner.min.cleanable.ratio": "0.001",
    # Only when a rule runs it.
    "log.cleaner.backoff.ms": str(10**9),
}

Known = tuple[State, int, int]
"""The model of an id: its state, producer id and epoch."""


def compact(stage: Stage) -> None:
    """One round over every compacted log, as housekeeping runs it."""
    for sync in stage.node.housekeeping._compact():
        if sync is not None:
            sync.run()


def save_checkpoints(stage: Stage) -> None:
    for coordinator in stage.node.transactions.coordinators():
        coordinator.checkpoint._save()
    stage.settle()


def keep_busy(stage: Stage) -> Known:
    """Another id writes, so that segments are sealed."""
    producer = WireProducer(stage, "busy", TV1)
    for _ in range(4):
        assert producer.init() == ErrorCode.NONE
    return (State.EMPTY, *producer.identity)


class Forgetting(RuleBasedStateMachine):
    """See the module's docstring."""

    stage: Stage

    @initialize(durability=st.sampled_from(["os", "fsync"]))
    def begin_life(self, durability: str) -> None:
        self.durability = durability
        self.stage = Stage(durability=durability, settings=SETTINGS).start()
        create_topic(self.stage, "t")
        await_coordinator(self.stage, "a")
        self.stage.settle()
        self.model: dict[str, Known] = {}
        self.producers: dict[str, WireProducer] = {}

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            assert not self.stage.fatal
            self.stage.abandon()

    # -- transactions ------------------------------------------------------------------------------

    @rule(name=st.sampled_from(IDS), protocol=st.sampled_from(PROTOCOLS))
    def initialise(self, name: str, protocol: Protocol) -> None:
        producer = WireProducer(self.stage, name, protocol)
        retried(self.stage, lambda: producer.init(timeout_ms=10**8))
        self.producers[name] = producer
        self.model[name] = (State.EMPTY, *producer.identity)

    def known(self) -> list[str]:
        return sorted(self.model.keys() & set(IDS))

    @precondition(lambda self: self.known())
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.known()))
        producer = self.producers[name]
        producer.client = self.stage
        if producer.protocol is TV1:
            assert producer.add_one("t") == ErrorCode.NONE
        assert producer.produce("t", b"value").error_code == ErrorCode.NONE
        self.model[name] = (State.ONGOING, *producer.identity)

    @precondition(lambda self: any(known[0] is State.ONGOING for known in self.model.values()))
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data: st.DataObject, commit: bool) -> None:
        ongoing = [name for name in self.known() if self.model[name][0] is State.ONGOING]
        name = data.draw(st.sampled_from(ongoing))
        producer = self.producers[name]
        producer.client = self.stage
        if commit:
            producer.commit()
        else:
            producer.abort()
        state = State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT
        self.model[name] = (state, *producer.identity)

    # -- time, compaction, checkpoints -------------------------------------------------------------

    @rule(rounds=st.sampled_from([0, 3]))
    def expire(self, rounds: int) -> None:
        """Idle ids expire, those with an open transaction do not; tombstones may be removed."""
        self.stage.advance(EXPIRATION_MS + 2 * LOOK_MS)
        self.model = {n: known for n, known in self.model.items() if known[0] is State.ONGOING}
        self.compact(rounds)

    @rule(rounds=st.sampled_from([1, 3]))
    def compact(self, rounds: int) -> None:
        """Seals segments; the first round sets a tombstone's horizon, the next one removes it."""
        for _ in range(rounds):
            self.model["busy"] = keep_busy(self.stage)
            compact(self.stage)
            self.stage.advance(DELETE_RETENTION_MS)

    @rule()
    def save(self) -> None:
        save_checkpoints(self.stage)

    # -- ends --------------------------------------------------------------------------------------

    @rule()
    def stop(self) -> None:
        self.stage.stop()
        self.stage = self.stage.again()

    @rule()
    def kill(self) -> None:
        self.stage = self.stage.kill().again()

    @precondition(lambda self: self.durability == "fsync")
    @rule()
    def lose_power(self) -> None:
        self.stage = self.stage.lose_power().again()

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def the_live_state_is_the_models_and_the_logs(self) -> None:
        if not hasattr(self, "stage"):
            return
        self.stage.settle()
        (coordinator,) = self.stage.node.transactions.coordinators()
        live = {
            name: (txn.state, txn.producer_id, txn.producer_epoch)
            for name, txn in coordinator.state.transactions.items()
        }
        assert live == self.model
        partition = self.stage.partition(TRANSACTION_STATE_TOPIC, 0)
        assert coordinator.state == fold(partition.entries())
        assert coordinator.state == loaded_now(self.stage.disk, partition)


def loaded_now(disk: Disk, partition: Partition) -> CoordinatorState:
    """What a load would find now, before it expires ids."""
    offset, _, records = read_checkpoint(disk, partition)
    saved = fold(Entry(-1, -1, -1, False, each.key, each.value) for each in records)
    return fold(partition.entries(offset), saved)


def test_expiry_compaction_checkpoints_and_starts_in_any_order_keep_the_state() -> None:
    run_state_machine_as_test(
        Forgetting, settings=settings(max_examples=30, stateful_step_count=40, deadline=None)
    )


def with_a_forgotten_id(durability: str) -> tuple[Stage, WireProducer]:
    """A checkpoint was saved during a transaction of the id, which then committed and expired."""
    stage = Stage(durability=durability, settings=SETTINGS).start()
    create_topic(stage, "t")
    await_coordinator(stage, "gone")
    stage.settle()
    forgotten = WireProducer(stage, "gone", TV1)
    assert forgotten.init(timeout_ms=10**8) == ErrorCode.NONE
    forgotten.send("t", b"value")
    save_checkpoints(stage)
    forgotten.commit()
    stage.advance(EXPIRATION_MS + 2 * LOOK_MS)
    return stage, forgotten


@pytest.mark.parametrize(
    ("durability", "end"),
    [("os", "stop"), ("os", "kill"), ("fsync", "stop"), ("fsync", "kill"), ("fsync", "lose_power")],
)
def test_an_id_whose_tombstone_was_compacted_away_stays_expired(durability: str, end: str) -> None:
    stage, forgotten = with_a_forgotten_id(durability)
    for _ in range(3):
        keep_busy(stage)
        compact(stage)
        stage.advance(DELETE_RETENTION_MS)
    getattr(stage, end)()
    again = stage.again()
    assert "gone" not in again.node.transactions.coordinators()[0].state.transactions
    forgotten.client = again
    assert forgotten.end(commit=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    again.stop()


def test_a_log_is_not_compacted_while_its_coordinator_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The load has read the record of an id, but not yet its tombstone."""
    stage, _ = with_a_forgotten_id("os")
    for _ in range(2):
        keep_busy(stage)
        stage.advance(DELETE_RETENTION_MS)
    stage.kill()
    monkeypatch.setattr(log_loader, "ENTRIES_PER_TURN", 2)
    again = stage.again()
    assert again.node.transactions.is_loading
    partition = again.partition(TRANSACTION_STATE_TOPIC, 0)
    before = list(partition.entries())
    compact(again)
    assert list(partition.entries()) == before
    again.settle()
    compact(again)
    assert len(list(partition.entries())) < len(before)
    again.stop()


def test_tombstones_are_kept_until_the_removal_of_a_checkpoint_is_durable() -> None:
    """A sync of the folder that fails ends the process: a second one would report success."""
    stage, _ = with_a_forgotten_id("os")
    keep_busy(stage)
    compact(stage)
    stage.advance(DELETE_RETENTION_MS)
    keep_busy(stage)
    save_checkpoints(stage)
    partition = stage.partition(TRANSACTION_STATE_TOPIC, 0)
    before = list(partition.entries())
    stage.disk.fail_for_a_while(1, 1, kinds=["sync_dir"])
    with pytest.raises(SyncError):
        compact(stage)
    assert list(partition.entries()) == before
    again = stage.kill().again()
    partition = again.partition(TRANSACTION_STATE_TOPIC, 0)
    assert list(partition.entries())[: len(before)] == before
    compact(again)
    assert len(list(partition.entries())) < len(before)
    again.stop()


def test_a_checkpoint_from_before_a_compaction_round_is_not_saved_after_it() -> None:
    """The save waits for its sync while the round begins."""
    stage, _ = with_a_forgotten_id("fsync")
    (coordinator,) = stage.node.transactions.coordinators()
    line = stage.connect()
    line.send(ApiKey.INIT_PRODUCER_ID, 4, init_request("late"))
    coordinator.checkpoint._save()
    coordinator.checkpoint.before_compaction()
    stage.settle()
    assert not stage.disk.exists(checkpoint_path(coordinator.partition))
    stage.stop()


def test_a_failed_sync_of_compacted_files_ends_the_round_and_not_the_broker() -> None:
    """The new segment is discarded, the log is unchanged, and the next round compacts it."""
    stage, _ = with_a_forgotten_id("os")
    keep_busy(stage)
    partition = stage.partition(TRANSACTION_STATE_TOPIC, 0)
    before = list(partition.entries())
    steps = stage.node.housekeeping._compact()
    assert isinstance(steps, Generator)
    failed = False
    for sync in steps:
        if sync is not None and not any(path.endswith(".cleaned") for path in sync.paths):
            sync.run()
        elif sync is not None:
            failed = True
            with suppress(StopIteration):  # The round was the last step.
                steps.throw(SyncError("planted"))
    assert failed
    assert list(partition.entries()) == before
    compact(stage)
    assert len(list(partition.entries())) < len(before)
    stage.stop()
