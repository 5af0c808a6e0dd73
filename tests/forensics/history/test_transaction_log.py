"""The history of an id, read from logs in every condition."""

from __future__ import annotations

import struct
from typing import Any, cast

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import FencepostError
from fencepost.client.blocking import Cluster
from fencepost.forensics.history.state_changes import History, lost_in_words
from fencepost.forensics.history.transaction_log import (
    NoTransactionLogError,
    TransactionLogTail,
    read_history,
)
from fencepost.forensics.logs.partition_reading import Budget
from tests.forensics.fake_cluster import FakeCluster, log_of, state_batch
from tests.forensics.history.changes import metadata

ID = "refunds"


def life(transactional_id: str = ID, offset: int = 0) -> list[object]:
    """A new id that commits one transaction: four records."""
    start_ms = 1_000 + offset
    states: list[tuple[str, dict[str, Any]]] = [
        ("Empty", {}),
        ("Ongoing", {"start_ms": start_ms + 1}),
        ("PrepareCommit", {"start_ms": start_ms + 1}),
        ("CompleteCommit", {"start_ms": start_ms + 1}),
    ]
    return [
        state_batch(
            offset + number, transactional_id, metadata(state, start_ms + number, 0, **more)
        )
        for number, (state, more) in enumerate(states)
    ]


def history_of(cluster: FakeCluster, transactional_id: str = ID, **more: object) -> History:
    return read_history(cast(Cluster, cluster), transactional_id, **more)  # type: ignore[arg-type]


def cluster_with(batches: list[object], **more: object) -> FakeCluster:
    return FakeCluster({log_of(ID): batches}, **more)  # type: ignore[dict-item, arg-type]


def test_a_whole_history_has_lost_nothing() -> None:
    found = history_of(cluster_with(life()))
    assert [each.state for each in found.changes] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "CompleteCommit",
    ]
    assert found.has_birth
    assert found.is_whole
    assert lost_in_words(found) is None


@pytest.mark.parametrize(
    "name", ["", " ", "refunds/0", "zażółć", "a\x00b", "ids\nwith lines", "x" * 1_000, "refund"]
)
def test_ids_with_odd_characters_are_found_and_not_confused_with_others(name: str) -> None:
    place = log_of(name)
    batches = [
        state_batch(0, name + "0", metadata("Empty", 1)),
        state_batch(1, name, metadata("Empty", 2)),
        state_batch(2, f"0{name}", metadata("Empty", 3)),
    ]
    found = history_of(FakeCluster({place: batches}), name)
    assert [each.offset for each in found.changes] == [1]


def test_what_compaction_took_from_the_middle_is_said() -> None:
    batches = [*life(), *life(offset=4)]
    del batches[2:6]  # From PrepareCommit of the first to Ongoing of the second.
    found = history_of(cluster_with(batches))
    assert len(list(found.gaps())) == 1
    assert found.removed == 4
    said = lost_in_words(found)
    assert said is not None
    assert "1 place" in said
    assert "4 records" in said


def test_a_history_without_its_beginning_says_so() -> None:
    found = history_of(cluster_with(life(offset=900)[3:]))
    assert not found.has_birth
    assert "what came before offset 903" in (lost_in_words(found) or "")


def test_a_tombstone_and_a_second_life_are_one_history() -> None:
    batches = [*life(), state_batch(4, ID, None), *life(offset=5)]
    found = history_of(cluster_with(batches))
    assert [each.state for each in found.changes][4:6] == ["Dead", "Empty"]
    assert found.changes[4].is_tombstone
    assert list(found.gaps()) == []


def test_a_record_of_a_later_schema_is_kept_as_unreadable_and_the_rest_is_read() -> None:
    strange = state_batch(4, ID, struct.pack(">h", 7) + b"who knows")
    broken = state_batch(5, ID, struct.pack(">h", 1) + b"\x00")
    found = history_of(cluster_with([*life(), strange, broken, *life(offset=6)]))
    assert [each.state for each in found.changes][4:7] == ["unreadable", "unreadable", "Empty"]
    assert "version 7" in (found.changes[4].problem or "")
    assert found.changes[5].problem


def test_reading_is_bounded_and_says_how_far_it_came() -> None:
    cluster = cluster_with([batch for n in range(50) for batch in life(offset=4 * n)])
    found = history_of(cluster, budget=Budget(left_bytes=1_000))
    assert not found.is_whole
    assert 0 < found.reached < found.log_end
    assert cluster.fetches < 20


def test_progress_is_reported_after_every_fetch() -> None:
    seen: list[tuple[str, int, int]] = []
    history_of(cluster_with(life()), progress=lambda *where: seen.append(where))
    assert [offset for _, offset, _ in seen] == [1, 2, 3, 4]
    assert {end for *_, end in seen} == {4}


def test_records_that_retention_removes_meanwhile_are_counted_as_removed() -> None:
    batches = life()
    cluster = cluster_with(batches)

    def forget(_what: str, offset: int, _end: int) -> None:
        if offset == 1:
            del cluster.logs[log_of(ID)][:3]

    found = history_of(cluster, progress=forget)
    assert [each.offset for each in found.changes] == [0, 3]
    assert found.removed == 2


def test_a_topic_that_is_deleted_meanwhile_is_reported_in_a_sentence() -> None:
    cluster = cluster_with(life())

    def delete(*_: object) -> None:
        cluster.refused["__transaction_state"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with pytest.raises(FencepostError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        history_of(cluster, progress=delete)


def test_a_user_without_the_right_to_read_is_told_which_one_is_missing() -> None:
    refused = {"__transaction_state": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    with pytest.raises(NoTransactionLogError, match="grant READ"):
        history_of(cluster_with(life(), refused=refused))


def test_a_cluster_without_transactions_has_no_log() -> None:
    with pytest.raises(NoTransactionLogError, match="no transaction was ever begun"):
        history_of(FakeCluster({}))


# -- tailing --------------------------------------------------------------------------------------


def test_a_tail_gives_new_records_once() -> None:
    cluster = cluster_with(life())
    log = cluster.logs[log_of(ID)]
    tail = TransactionLogTail(cast(Cluster, cluster))
    assert tail.poll() == []
    log.append(state_batch(4, ID, metadata("Ongoing", 9)))
    log.append(state_batch(5, "another", metadata("Ongoing", 9)))
    cluster.batches_per_fetch = 9
    found = [(each.transactional_id, each.change.state) for each in tail.poll()]
    assert found == [(ID, "Ongoing"), ("another", "Ongoing")]
    assert tail.poll() == []


def test_a_tail_of_all_ids_reads_every_partition() -> None:
    cluster = FakeCluster({log_of(name): [] for name in ("a", "b", "c", "d")})
    tail = TransactionLogTail(cast(Cluster, cluster))
    for name in ("a", "b", "c"):
        log = cluster.logs[log_of(name)]
        offset = log[-1].next_offset if log else 0
        log.append(state_batch(offset, name, metadata("Empty", 1)))
    cluster.batches_per_fetch = 9
    assert {each.transactional_id for each in tail.poll()} == {"a", "b", "c"}


def test_a_tail_goes_on_after_its_position_was_deleted() -> None:
    cluster = cluster_with(life())
    tail = TransactionLogTail(cast(Cluster, cluster))
    log = cluster.logs[log_of(ID)]
    log[:] = [state_batch(9, ID, metadata("Ongoing", 9))]
    assert tail.poll() == []
    assert [each.change.offset for each in tail.poll()] == [9]
