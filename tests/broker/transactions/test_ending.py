"""A commit from request to reply, on real partitions: order, durability and failures."""

from __future__ import annotations

import gc

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from fencepost.base.limits import END_TXN_WAIT_MS
from fencepost.broker.transactions.ending import ABORT_POINTS, COMMIT_POINTS, Ending
from fencepost.coordinator.txn.events import Reply
from fencepost.coordinator.txn.states import State
from tests.broker.transactions.shell import Broken, ShellNode

pytestmark = pytest.mark.interpreted

COORDINATOR_LOG = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


def begun(
    *, fsync: bool = False, partitions: dict[str, tuple[int, ...]] | None = None
) -> ShellNode:
    """A node whose id `a` has an open transaction of producer 9000 at epoch 0."""
    node = ShellNode(fsync=fsync)
    node.load()
    node.init()
    node.sync_all()
    node.add(9_000, 0, partitions)
    node.sync_all()
    assert node.txn().state == State.ONGOING
    node.points.clear()
    return node


@pytest.mark.parametrize(("commit", "points"), [(True, COMMIT_POINTS), (False, ABORT_POINTS)])
def test_an_end_passes_every_crash_point_in_order(commit: bool, points: tuple[str, ...]) -> None:
    node = begun()
    assert node.end(9_000, 0, commit=commit).error is NONE
    assert node.points == list(points)


def test_an_end_of_several_partitions_passes_a_crash_point_per_marker() -> None:
    node = begun(partitions={"t": (0, 1, 2)})
    node.end(9_000, 0)
    assert node.points.count(COMMIT_POINTS.marker_appended) == 3


def test_markers_reach_every_partition_and_the_next_transaction_can_begin_immediately() -> None:
    node = begun(partitions={"t": (0, 1)})
    assert node.end(9_000, 0).error is NONE
    assert node.markers_in("t", 0) == [(True, 0, 0)]
    assert node.markers_in("t", 1) == [(True, 0, 0)]
    assert node.txn().state == State.COMPLETE_COMMIT
    assert node.add(9_000, 0).error is NONE


@pytest.mark.parametrize("fsync", [False, True])
def test_a_finished_transaction_leaves_nothing_for_the_garbage_collector(fsync: bool) -> None:
    """At thousands of commits a second it would run often, and every request waits for it."""
    node = begun(fsync=fsync, partitions={"t": (0, 1)})
    gc.collect()
    gc.disable()
    try:
        node.end(9_000, 0)
        node.sync_all()
        assert node.txn().state == State.COMPLETE_COMMIT
        node.timers.clear()  # A loop drops cancelled timers; this list keeps them.
        assert [found for found in gc.get_objects() if isinstance(found, Ending)] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("version", [0, 2])
def test_markers_have_the_epoch_of_the_prepare_record(version: int) -> None:
    node = begun()
    node.end(9_000, 0, version=version)
    assert node.markers_in() == [(True, version // 2, 0)]


def test_replies_wait_until_their_records_are_durable() -> None:
    node = ShellNode(fsync=True)
    node.load()
    init = node.init()
    assert not init.replies
    node.sync()
    assert init.reply == Reply(NONE, 9_000, 0)
    add = node.add(9_000, 0)
    assert not add.replies
    node.sync()
    assert add.error is NONE


def test_each_step_of_an_end_waits_until_the_previous_one_is_durable() -> None:
    node = begun(fsync=True)
    end = node.end(9_000, 0)
    assert node.markers_in() == []
    node.sync()
    assert node.markers_in() == [(True, 0, 0)]
    assert node.txn().state == State.PREPARE_COMMIT
    node.sync()
    assert node.txn().state == State.COMPLETE_COMMIT
    assert not end.replies
    node.sync()
    assert end.error is NONE


def test_requests_during_an_end_get_a_retriable_error() -> None:
    node = begun(fsync=True)
    node.end(9_000, 0)
    for _ in range(2):
        assert node.init().error is CONCURRENT
        assert node.add(9_000, 0).error is CONCURRENT
        assert node.end(9_000, 0).error is CONCURRENT
        node.sync()
    node.sync()
    assert node.end(9_000, 0).error is NONE


def test_requests_during_an_append_that_is_not_durable_get_a_retriable_error() -> None:
    node = ShellNode(fsync=True)
    node.load()
    node.init()
    assert node.init().error is CONCURRENT
    node.sync()
    assert node.txn().producer_epoch == 0


def test_offsets_are_settled_before_the_reply() -> None:
    node = begun(partitions={CONSUMER_OFFSETS_TOPIC: (1,)})
    node.end(9_000, 0, commit=False)
    ((index, entry),) = node.settled
    assert index == 1
    assert entry.marker is not None
    assert (entry.offset, entry.producer_id, entry.marker.commit) == (0, 9_000, False)


def test_case_50_a_loading_group_coordinator_gets_its_marker_later() -> None:
    node = begun(partitions={CONSUMER_OFFSETS_TOPIC: (1,), "t": (0,)})
    node.groups_loading.add(1)
    end = node.end(9_000, 0)
    assert not end.replies
    assert node.markers_in() == [(True, 0, 0)]
    assert node.markers_in(CONSUMER_OFFSETS_TOPIC, 1) == []
    node.groups_loading.clear()
    node.pass_time(100)
    assert end.error is NONE
    assert len(node.settled) == 1


def test_while_markers_are_being_written_a_description_lists_partitions_without_one() -> None:
    node = begun(partitions={CONSUMER_OFFSETS_TOPIC: (1,), "t": (0,)})
    node.groups_loading.add(1)
    node.end(9_000, 0)
    found = node.transactions.describe("a")
    assert found.state == "PrepareCommit"
    assert found.partitions == {CONSUMER_OFFSETS_TOPIC: (1,)}


def test_an_end_whose_markers_take_too_long_succeeds_after_the_decision() -> None:
    node = begun()
    node.fail_appends(TopicPartition("t", 0), times=1_000)
    end = node.end(9_000, 0)
    node.pass_time(END_TXN_WAIT_MS - 1)
    assert not end.replies
    node.pass_time(1)
    assert end.error is NONE
    assert node.txn().state == State.PREPARE_COMMIT
    assert node.end(9_000, 0).error is CONCURRENT


def test_markers_are_completed_after_the_reply_and_then_a_retry_succeeds() -> None:
    node = begun()
    node.fail_appends(TopicPartition("t", 0), times=60)
    end = node.end(9_000, 0)
    node.pass_time(END_TXN_WAIT_MS)
    assert end.error is NONE
    node.pass_time(2_000)
    assert node.txn().state == State.COMPLETE_COMMIT
    assert node.end(9_000, 0).error is NONE


def test_case_46_kafka_9749_a_partition_with_a_failing_disk_gets_its_marker_later() -> None:
    node = begun(partitions={"t": (0, 1)})
    node.fail_appends(TopicPartition("t", 0), times=3)
    end = node.end(9_000, 0)
    assert node.markers_in("t", 1) == [(True, 0, 0)]
    assert not end.replies
    node.pass_time(300)
    assert end.error is NONE
    assert node.markers_in("t", 0) == [(True, 0, 0)]
    assert node.markers_in("t", 1) == [(True, 0, 0)]


def test_case_46_a_partition_that_another_node_leads_gets_its_marker_later() -> None:
    node = begun()
    elsewhere = node.partitions.pop(TopicPartition("t", 0))
    end = node.end(9_000, 0)
    node.pass_time(500)
    assert not end.replies
    node.partitions[elsewhere.name] = elsewhere
    node.pass_time(100)
    assert end.error is NONE


def test_case_46_a_deleted_topic_needs_no_marker() -> None:
    node = begun(partitions={"gone": (0,), "t": (0,)})
    assert node.end(9_000, 0).error is NONE
    assert node.markers_in() == [(True, 0, 0)]
    assert node.txn().state == State.COMPLETE_COMMIT


@pytest.mark.parametrize(("epoch", "coordinator_epoch"), [(0, 7), (1, 0)])
def test_case_46_a_newer_epoch_on_a_partition_stops_the_markers_of_the_transaction(
    epoch: int, coordinator_epoch: int
) -> None:
    node = begun(partitions={"t": (0, 1, 2)})
    node.partitions[TopicPartition("t", 1)].append_marker(
        9_000,
        epoch,
        commit=False,
        coordinator_epoch=coordinator_epoch,
        transaction_version=0,
        now_ms=1,
    )
    node.fail_appends(TopicPartition("t", 2), times=1)
    end = node.end(9_000, 0)
    assert end.error is NONE, "the decision is final, and there is nothing to wait for"
    node.pass_time(END_TXN_WAIT_MS)
    assert node.txn().state == State.PREPARE_COMMIT
    assert node.end(9_000, 0).error is CONCURRENT
    assert node.markers_in("t", 0) == [(True, 0, 0)]
    assert node.markers_in("t", 1) == [(False, epoch, coordinator_epoch)]
    assert node.markers_in("t", 2) == [], "no marker is retried"
    assert node.transactions.describe("a").partitions == {"t": (1, 2)}


def test_case_32_a_prepare_record_that_cannot_be_written_changes_nothing() -> None:
    node = begun()
    node.fail_appends(COORDINATOR_LOG, times=1)
    assert node.end(9_000, 0).error is ErrorCode.NOT_COORDINATOR
    assert node.txn().state == State.ONGOING
    assert node.markers_in() == []
    assert node.end(9_000, 0).error is NONE


def test_case_32_a_record_that_is_too_large_is_refused() -> None:
    node = begun()
    names = {f"topic-{number}" + "x" * 200: (0,) for number in range(6_000)}
    assert node.add(9_000, 0, names).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert node.txn().partitions == {"t": (0,)}
    assert node.end(9_000, 0).error is NONE


def test_writing_the_complete_record_is_retried() -> None:
    node = begun(fsync=True)
    end = node.end(9_000, 0)
    node.sync()
    node.fail_appends(COORDINATOR_LOG, times=2)
    node.sync()
    assert node.txn().state == State.PREPARE_COMMIT
    assert node.add(9_000, 0).error is CONCURRENT
    node.pass_time(200)
    node.sync_all()
    assert end.error is NONE
    assert node.markers_in() == [(True, 0, 0)]


def test_case_47_a_complete_record_is_written_once() -> None:
    node = begun(partitions={"t": (0, 1, 2, 3)})
    node.end(9_000, 0)
    assert node.states().count(State.COMPLETE_COMMIT) == 1


def test_a_fence_gets_its_reply_after_the_decision_and_the_abort_continues() -> None:
    node = begun()
    node.fail_appends(TopicPartition("t", 0), times=1)
    assert node.init().error is CONCURRENT
    assert node.init().error is CONCURRENT
    node.pass_time(100)
    assert node.markers_in() == [(False, 1, 0)]
    assert node.init().reply == Reply(NONE, 9_000, 2)


def test_case_1_without_a_transactional_id_producer_ids_are_fresh_and_nothing_is_logged() -> None:
    node = ShellNode()
    node.load()
    replies: list[Reply] = []
    node.transactions.fresh_producer_id(replies.append)
    node.transactions.fresh_producer_id(replies.append)
    assert replies == [Reply(NONE, 9_000, 0), Reply(NONE, 9_001, 0)]
    assert node.states() == []


def test_kafka_14417_without_a_free_producer_id_the_client_gets_a_retriable_error() -> None:
    node = ShellNode()
    node.load()
    node.allocation_fails = True
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert node.init().error is loading
    replies: list[Reply] = []
    node.transactions.fresh_producer_id(replies.append)
    assert replies[0].error is loading
    assert node.states() == []


def test_two_producers_that_wait_for_a_producer_id_get_two_epochs_of_one_id() -> None:
    node = ShellNode()
    node.load()
    node.held_allocations = []
    first, second = node.init(), node.init()
    assert not first.replies
    for release in node.held_allocations:
        release()
    assert first.reply == Reply(NONE, 9_000, 0)
    assert second.reply == Reply(NONE, 9_000, 1)


def test_case_31_an_exhausted_epoch_takes_one_new_producer_id() -> None:
    node = begun()
    state = node.transactions.coordinators()[0].state
    state.transactions["a"].producer_epoch = 32_766
    end = node.end(9_000, 32_766, version=2)
    assert end.reply == Reply(NONE, 9_001, 0)
    assert node.end(9_000, 32_766, version=2).reply == Reply(NONE, 9_001, 0)
    assert node.allocations == 2


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("point", range(len(COMMIT_POINTS)))
@pytest.mark.parametrize("fsync", [False, True])
def test_after_a_kill_at_any_point_of_an_end_the_prepare_record_decides_the_outcome(
    commit: bool, point: int, fsync: bool
) -> None:
    names = COMMIT_POINTS if commit else ABORT_POINTS
    node = begun(fsync=fsync, partitions={"t": (0, 1), CONSUMER_OFFSETS_TOPIC: (0,)})
    node.stop_at = names[point]
    with pytest.raises(Broken):
        node.end(9_000, 0, commit=commit)
        node.sync_all()
    again = node.restart()
    again.load()
    again.sync_all()
    if names[point] == names.before_prepare:
        assert again.txn().state == State.ONGOING
        return
    assert again.txn().state == (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    for topic, index in (("t", 0), ("t", 1), (CONSUMER_OFFSETS_TOPIC, 0)):
        found = again.markers_in(topic, index)
        assert found, f"{topic}-{index} has no marker"
        assert {outcome for outcome, _, _ in found} == {commit}
