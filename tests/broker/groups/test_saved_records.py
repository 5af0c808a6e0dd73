"""Checkpoints of group partitions: a load with one ends in the state of the whole log."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC
from fencepost.broker.coordinators import checkpoint_keeper
from fencepost.broker.coordinators.checkpoint_keeper import checkpoint_path, read_checkpoint
from fencepost.broker.groups.saved_records import count_records, saved_records
from fencepost.coordinator.group.apply import apply_entry
from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
from fencepost.records.entry import Entry
from fencepost.records.group_log import GroupKey, GroupRecord, encode_record
from tests.broker.groups.group_requests import commit as commit_offsets
from tests.broker.groups.group_requests import commit_in_transaction, delete, fetch, offsets
from tests.broker.groups.groups_stage import GroupNode
from tests.coordinator.group.stage import GROUP, GroupStage
from tests.coordinator.test_group_histories import (
    MEMBERSHIP,
    OFFSETS,
    TROUBLE,
    GroupHistory,
    Step,
    histories,
    summary,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fencepost.broker.groups.partition import GroupPartition
    from fencepost.records.coordinator_checkpoint import SavedRecord

pytestmark = pytest.mark.interpreted


def fold(
    saved: Iterable[SavedRecord], tail: Iterable[Entry], *, loading: bool = True
) -> GroupCoordinatorState:
    """The state of a load: the records of a checkpoint, then the log after it."""
    state = GroupCoordinatorState()
    state.is_loading = loading
    for key, value, offset, producer_id in saved:
        apply_entry(state, Entry(offset, producer_id, -1, producer_id >= 0, key, value))
    for entry in tail:
        apply_entry(state, entry)
    return state


@settings(max_examples=60, deadline=None)
@given(histories(*OFFSETS, *OFFSETS, *MEMBERSHIP, *TROUBLE))
def test_every_checkpoint_with_the_log_after_it_gives_the_state(history: list[Step]) -> None:
    player = GroupHistory()
    stage = player.stage
    checkpoints: list[tuple[int, list[SavedRecord]]] = []
    for step in history:
        # Taken before the step, and encoded after it: what happens in between must not show.
        offset, view = len(stage.log), saved_records(stage.state)
        player.take(step)
        checkpoints.append((offset, list(view)))
        wanted = summary(stage.fold())
        for saved_at, records in checkpoints:
            assert summary(fold(records, stage.log[saved_at:])) == wanted


def test_the_number_of_records_is_about_that_of_a_checkpoint() -> None:
    stage = GroupStage()
    for number in range(10):
        stage.commit({f"orders-{number}": 1}, group_id=GROUP)
    assert count_records(stage.state) == 11
    assert len(list(saved_records(stage.state))) == 10


def test_offsets_whose_group_was_removed_stay_without_a_group() -> None:
    stage = GroupStage()
    stage.commit({"orders-0": 1}, group_id=GROUP)
    key, value = encode_record(GroupRecord(GroupKey(GROUP), None))
    tombstone = Entry(len(stage.log), -1, -1, False, key, value)
    stage.log.append(tombstone)
    apply_entry(stage.state, tombstone)
    assert not stage.state.groups
    loaded = fold(saved_records(stage.state), [])
    assert not loaded.groups
    assert loaded.offsets == stage.state.offsets


# -- on a node ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_keeper, "LEAST_RECORDS", 10)
    monkeypatch.setattr(checkpoint_keeper, "MOST_RECORDS", 20)
    monkeypatch.setattr(checkpoint_keeper, "WORTH_SAVING_AT_CLOSE", 5)


def served(node: GroupNode, group_id: str = "g") -> GroupPartition:
    found = node.groups.find(group_id)
    assert not isinstance(found, int), found
    return found


def commit(node: GroupNode, group_id: str, partition: int, offset: int) -> None:
    commit_offsets(node, {partition: offset}, group_id=group_id)


def start_again(node: GroupNode) -> GroupNode:
    """Kills the node, and starts the next one."""
    node.stop(clean=False)
    return node.again()


def busy(commits: int) -> GroupNode:
    node = GroupNode().begin()
    for number in range(commits):
        commit(node, "g", number % 3, number)
    node.advance(0)
    return node


def test_a_load_reads_only_the_log_after_the_checkpoint() -> None:
    node = busy(10)
    for offset in (100, 200):
        commit(node, "g", 0, offset)
    partition = served(node).partition
    saved = read_checkpoint(node.disk, partition)
    assert (saved.offset, saved.record_count) == (10, 3)
    before = summary(served(node).state)
    again = start_again(node)
    assert summary(served(again).state) == before
    assert served(again).checkpoint.unsaved == 2


def test_a_checkpoint_that_takes_several_turns_shows_one_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_keeper, "_RECORDS_PER_LOOK", 1)
    monkeypatch.setattr("fencepost.broker.turns.TURN_SECONDS", 0.0)
    node = busy(9)
    turns = []
    node.runtime.call_later = lambda delay_ms, work: turns.append(work)  # type: ignore[assignment, return-value]
    commit(node, "g", 0, 100)
    number = 100
    while turns:
        turns.pop(0)()
        number += 1
        commit(node, "g", 2, number)
    saved = read_checkpoint(node.disk, served(node).partition)
    assert saved.offset == 10
    offsets = fold(saved.records, []).offsets.of_group("g")
    assert sorted(stored.value.offset for stored in offsets.values()) == [7, 8, 100]


def test_a_group_that_was_deleted_after_the_checkpoint_stays_deleted() -> None:
    node = busy(10)
    delete(node, "g")
    again = start_again(node)
    assert not served(again).state.groups
    assert not served(again).state.offsets.committed


@pytest.mark.parametrize(("is_commit", "wanted"), [(True, [2, 77]), (False, [2, 7])])
def test_pending_offsets_in_a_checkpoint_are_settled_by_a_later_marker(
    is_commit: bool, wanted: list[int]
) -> None:
    node = busy(8)
    commit_in_transaction(node, {0: 66, 1: 77}, group_id="g")
    commit(node, "g", 0, 2)
    node.advance(0)
    found = served(node)
    assert read_checkpoint(node.disk, found.partition).offset == found.partition.log_end_offset
    again = start_again(node)
    assert served(again).checkpoint.unsaved == 0
    again.end_transaction("g", 4_000, 1, commit=is_commit)
    assert offsets(fetch(again, [0, 1], group_ids=("g",))) == wanted, "the plain commit came later"


@pytest.mark.parametrize("seed", range(30))
def test_random_commits_deletions_and_starts_keep_the_state(seed: int) -> None:
    rng = random.Random(seed)
    node = GroupNode().begin()
    for number in range(120):
        group = rng.choice(("g", "h", "i"))
        match rng.randrange(12):
            case 0:
                delete(node, group)
            case 1:
                node.groups.close()
                node = start_again(node)
            case 2:
                node = start_again(node)
            case 3:
                node.advance(rng.choice((0, 1_000)))
            case 4 | 5:
                producer = 4_000 + rng.randrange(2)
                commit_in_transaction(
                    node, {rng.randrange(3): number}, group_id=group, producer_id=producer
                )
            case 6:
                producer = 4_000 + rng.randrange(2)
                node.end_transaction(group, producer, 1, commit=rng.random() < 0.5)
            case _:
                commit(node, group, rng.randrange(3), number)
        for index in range(3):
            partition = node.partitions.get(CONSUMER_OFFSETS_TOPIC, index)
            assert partition is not None
            live = served_at(node, index)
            saved = read_checkpoint(node.disk, partition)
            loaded = fold(saved.records, partition.entries(saved.offset))
            whole = fold([], partition.entries())
            assert summary(live) == summary(loaded) == summary(whole)


def served_at(node: GroupNode, index: int) -> GroupCoordinatorState:
    return node.groups._partitions[index].state


def test_compaction_removes_the_checkpoint_first_and_a_new_one_is_saved() -> None:
    node = busy(10)
    found = served(node)
    path = checkpoint_path(found.partition)
    assert node.disk.exists(path)
    node.groups.before_compaction(found.partition)
    assert not node.disk.exists(path)
    node.advance(0)
    assert read_checkpoint(node.disk, found.partition).offset == 10


def test_a_save_that_was_begun_before_a_compaction_is_not_written_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_keeper, "_RECORDS_PER_LOOK", 1)
    monkeypatch.setattr("fencepost.broker.turns.TURN_SECONDS", 0.0)
    node = busy(9)
    found = served(node)
    turns = []
    node.runtime.call_later = lambda delay_ms, work: turns.append(work)  # type: ignore[assignment, return-value]
    commit(node, "g", 0, 100)
    turns.pop(0)()
    assert turns, "the save has not ended"
    commit(node, "g", 0, 101)
    node.groups.before_compaction(found.partition)
    while turns:
        turns.pop(0)()
    assert read_checkpoint(node.disk, found.partition).offset == 11


def test_damage_before_the_checkpoint_does_not_matter() -> None:
    node = busy(12)
    partition = served(node).partition
    before = summary(served(node).state)
    path = partition.log.active.path(".log")
    data = bytearray(node.disk.read_file(path))
    data[70] ^= 1
    node.disk.write_file(path, bytes(data), sync=False)
    again = start_again(node)
    assert summary(served(again).state) == before
