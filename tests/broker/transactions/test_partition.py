"""Loading and unloading a coordinator partition, timeouts and expiration.

The numbers are the conformance cases.
"""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.broker.coordinators import log_loader
from fencepost.coordinator.txn.events import Reply
from fencepost.coordinator.txn.states import State
from fencepost.records.transaction_log import encode_key, encode_value
from tests.broker.transactions.shell import ShellNode
from tests.coordinator.txn.ledger import transaction

pytestmark = pytest.mark.interpreted

COORDINATOR_LOG = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
WEEK_MS = 604_800_000


def written(
    state: State, *, name: str = "a", update_ms: int = 1_000_000, epoch: int = 3
) -> ShellNode:
    """A node whose log has one record that is not loaded yet."""
    node = ShellNode()
    write(node, state, name=name, update_ms=update_ms, epoch=epoch)
    return node


def write(
    node: ShellNode, state: State, *, name: str = "a", update_ms: int = 1_000_000, epoch: int = 3
) -> None:
    metadata = transaction(state, epoch=epoch, update_ms=update_ms, start_ms=1_000_000)
    node.partitions[COORDINATOR_LOG].append_records(
        [(encode_key(name), encode_value(metadata))], node.now_ms
    )


def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_loader, "ENTRIES_PER_TURN", 1)


def test_case_17_an_id_of_a_partition_on_another_broker_gets_not_coordinator() -> None:
    node = ShellNode()
    assert node.init().error is ErrorCode.NOT_COORDINATOR
    assert node.add(1, 1).error is ErrorCode.NOT_COORDINATOR
    assert node.end(1, 1).error is ErrorCode.NOT_COORDINATOR
    assert node.verify(0) == [[ErrorCode.NOT_COORDINATOR]]
    assert node.transactions.describe("a").error is ErrorCode.NOT_COORDINATOR


def test_case_17_an_id_whose_log_is_being_read_gets_a_load_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow(monkeypatch)
    node = written(State.COMPLETE_COMMIT)
    node.load()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert node.init().error is loading
    assert node.verify(0, add=True) == [[loading]]
    assert node.transactions.describe("a").error is loading
    assert node.transactions.is_loading
    node.pass_time(0)
    assert node.init().reply == Reply(NONE, 4_000, 4)


def test_without_the_topic_requests_get_not_coordinator() -> None:
    node = ShellNode(topics={TRANSACTION_STATE_TOPIC: 0})
    assert node.init().error is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("prepared", "complete", "commit"),
    [
        (State.PREPARE_COMMIT, State.COMPLETE_COMMIT, True),
        (State.PREPARE_ABORT, State.COMPLETE_ABORT, False),
    ],
)
def test_case_42_prepared_transactions_are_completed_at_load(
    prepared: State, complete: State, commit: bool
) -> None:
    node = written(prepared)
    node.load()
    assert node.markers_in() == [(commit, 3, 0)]
    assert node.states() == [prepared, complete]


def test_open_transactions_continue_after_a_load() -> None:
    node = written(State.ONGOING)
    node.load()
    assert node.verify(0, producer_id=4_000, epoch=3) == [[NONE]]
    assert node.end(4_000, 3).error is NONE
    assert node.markers_in() == [(True, 3, 0)]


def test_open_transactions_are_aborted_at_load_if_configured() -> None:
    node = written(State.ONGOING)
    node.config.transaction_recovery_ongoing = "abort"
    node.load()
    assert node.states() == [State.ONGOING, State.PREPARE_ABORT, State.COMPLETE_ABORT]
    assert node.markers_in() == [(False, 4, 0)]
    assert node.end(4_000, 3, version=0).error is ErrorCode.PRODUCER_FENCED
    assert node.end(4_000, 3, commit=False, version=2).reply == Reply(NONE, 4_000, 4)


def test_expired_ids_get_a_tombstone_at_load() -> None:
    node = written(State.EMPTY, update_ms=1_000_000)
    node.now_ms += WEEK_MS
    node.load()
    assert node.states() == [State.EMPTY, None]
    assert node.transactions.describe("a").error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert node.init().reply == Reply(NONE, 9_000, 0)


def test_case_41_an_unreadable_record_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    node = written(State.EMPTY)
    node.partitions[COORDINATOR_LOG].append_records([(b"\0\7x", b"y"), (b"", b"")], 1)
    node.load()
    assert "2 records could not be decoded" in caplog.text
    assert node.init().reply == Reply(NONE, 4_000, 4)


def test_case_43_a_load_at_a_new_epoch_replaces_the_old_state() -> None:
    node = written(State.EMPTY)
    node.load()
    node.init()
    known = node.transactions.coordinators()[0].state.transactions
    known["a"].producer_epoch = 99
    known["of an earlier life"] = known["a"]
    node.partitions[COORDINATOR_LOG].bump_leader_epoch(5)
    node.load()
    assert node.txn().producer_epoch == 4, "the epoch in the log"
    assert list(node.transactions.coordinators()[0].state.transactions) == ["a"]
    node.add(4_000, 4)
    node.end(4_000, 4)
    assert node.markers_in() == [(True, 4, 5)]


def test_case_43_an_unload_stops_a_running_load(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)
    node = written(State.PREPARE_COMMIT)
    write(node, State.PREPARE_COMMIT, name="b")
    node.load()
    node.transactions.unload(0)
    node.pass_time(1_000)
    assert node.transactions.coordinators() == []
    assert node.markers_in() == []
    assert node.init().error is ErrorCode.NOT_COORDINATOR


def test_a_partition_can_be_unloaded_and_loaded_again() -> None:
    node = written(State.ONGOING)
    node.load()
    node.transactions.unload(0)
    assert node.end(4_000, 3).error is ErrorCode.NOT_COORDINATOR
    node.load()
    assert node.end(4_000, 3).error is NONE


def test_case_33_leadership_is_lost_before_the_prepare_record_is_durable() -> None:
    node = ShellNode(fsync=True)
    write(node, State.ONGOING)
    node.sync_all()
    node.load()
    end = node.end(4_000, 3)
    node.transactions.unload(0)
    node.sync_all()
    assert end.error is ErrorCode.NOT_COORDINATOR
    assert node.markers_in() == []
    node.load()
    node.sync_all()
    assert node.markers_in() == [(True, 3, 0)]
    assert node.states() == [State.ONGOING, State.PREPARE_COMMIT, State.COMPLETE_COMMIT]


def test_an_end_succeeds_if_leadership_is_lost_while_markers_are_written() -> None:
    node = written(State.ONGOING)
    node.load()
    node.fail_appends(TopicPartition("t", 0), times=1)
    end = node.end(4_000, 3)
    node.transactions.unload(0)
    assert end.error is NONE
    node.pass_time(10_000)
    assert node.markers_in() == []
    node.load()
    assert node.markers_in() == [(True, 3, 0)]


def test_case_44_kafka_16352_a_marker_of_the_old_epoch_does_not_complete_for_the_new_one() -> None:
    node = ShellNode(fsync=True)
    write(node, State.PREPARE_COMMIT)
    node.sync_all()
    node.load()
    node.partitions[COORDINATOR_LOG].bump_leader_epoch(1)
    node.load()
    assert node.markers_in() == [(True, 3, 0), (True, 3, 1)]
    node.sync_all()
    assert node.states() == [State.PREPARE_COMMIT, State.COMPLETE_COMMIT]
    assert node.txn().state == State.COMPLETE_COMMIT
    assert not node.init().replies
    node.sync_all()


def test_a_complete_record_of_the_old_epoch_does_not_settle_for_the_new_one() -> None:
    node = ShellNode(fsync=True)
    write(node, State.PREPARE_COMMIT)
    node.sync_all()
    node.load()
    node.sync()
    assert node.states()[-1] == State.COMPLETE_COMMIT
    node.load()
    node.sync_all()
    assert not node.init().replies
    node.sync_all()
    assert node.txn().producer_epoch == 4


@pytest.mark.parametrize("request_name", ["init", "add"])
def test_waiting_requests_get_not_coordinator_when_the_partition_is_unloaded(
    request_name: str,
) -> None:
    node = ShellNode(fsync=True)
    write(node, State.EMPTY)
    node.sync_all()
    node.load()
    answer = node.init() if request_name == "init" else node.add(4_000, 3)
    node.transactions.unload(0)
    node.sync_all()
    assert answer.error is ErrorCode.NOT_COORDINATOR


def test_nothing_happens_after_close() -> None:
    node = written(State.ONGOING)
    node.load()
    node.transactions.close()
    node.pass_time(WEEK_MS)
    assert node.states() == [State.ONGOING]


# -- time ------------------------------------------------------------------------------------------


def test_case_35_a_transaction_is_aborted_by_the_first_scan_after_its_timeout() -> None:
    node = written(State.ONGOING)
    node.load()
    node.pass_time(60_000)
    assert node.txn().state == State.ONGOING
    node.pass_time(10_000)
    assert node.txn().state == State.COMPLETE_ABORT
    assert node.markers_in() == [(False, 4, 0)]


def test_case_36_a_transaction_with_a_pending_change_is_left_for_the_next_scan() -> None:
    node = ShellNode(fsync=True)
    write(node, State.ONGOING)
    node.sync_all()
    node.load()
    add = node.add(4_000, 3, {"t": (1,)})
    node.pass_time(75_000)
    assert node.txn().state == State.ONGOING
    node.sync()
    assert add.error is NONE
    node.pass_time(10_000)
    node.sync_all()
    assert node.txn().state == State.COMPLETE_ABORT


def test_an_abort_that_cannot_be_written_is_retried_by_the_next_scan() -> None:
    node = written(State.ONGOING)
    node.load()
    node.fail_appends(COORDINATOR_LOG, times=2)
    node.pass_time(85_000)
    assert node.txn().producer_epoch == 3
    node.pass_time(10_000)
    assert node.txn().state == State.COMPLETE_ABORT
    assert node.txn().producer_epoch == 4


def test_many_transactions_that_time_out_together_are_all_aborted() -> None:
    node = ShellNode()
    for number in range(450):
        write(node, State.ONGOING, name=f"id-{number}")
    node.load()
    node.pass_time(75_000)
    coordinator = node.transactions.coordinators()[0]
    assert not coordinator.state.open
    assert not coordinator.pending


def test_unused_ids_expire() -> None:
    node = written(State.COMPLETE_COMMIT)
    node.load()
    node.pass_time(WEEK_MS + 2 * 3_600_000)
    assert node.states() == [State.COMPLETE_COMMIT, None]


def test_case_40_an_id_whose_tombstone_cannot_be_written_stays_usable() -> None:
    node = written(State.COMPLETE_COMMIT)
    node.load()
    node.now_ms += WEEK_MS
    node.fail_appends(COORDINATOR_LOG, times=1)
    node.transactions.clock.expire(node.transactions.coordinators()[0])
    assert node.add(4_000, 3).error is NONE


def test_an_id_is_pending_until_its_tombstone_is_durable() -> None:
    node = ShellNode(fsync=True)
    write(node, State.COMPLETE_COMMIT)
    node.sync_all()
    node.load()
    node.now_ms += WEEK_MS
    node.transactions.clock.expire(node.transactions.coordinators()[0])
    assert node.init().error is CONCURRENT
    node.sync()
    init = node.init()
    node.sync()
    assert init.reply == Reply(NONE, 9_000, 0)
