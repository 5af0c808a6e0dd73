"""The auditors of a run: each reports the error that is planted for it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.chaos.audit import (
    SHOWN,
    OpenTransaction,
    Seen,
    audit_copies,
    audit_epochs,
    audit_log,
    audit_offsets,
    audit_order,
    audit_producer_ids,
    audit_reader,
    audit_source,
    audit_transactions,
    audit_views,
)
from tests.cluster.chaos.copier import Copy, decode_copy
from tests.cluster.chaos.schedule import OVERLAPPING, ROLES, Kind, make_schedule

SOURCE = {0: list(range(10)), 1: list(range(10))}


def good_run() -> list[Seen]:
    """Ten records of two source partitions in three partitions of `copies`, with gaps."""
    return [
        Seen(offset % 3, 4 * offset + partition, Copy(partition, offset, "a", False, "v"))
        for partition, offsets in SOURCE.items()
        for offset in offsets
    ]


def without(seen: list[Seen]) -> None:
    del seen[7]


def twice(seen: list[Seen]) -> None:
    seen.append(seen[7]._replace(offset=100))


def aborted(seen: list[Seen]) -> None:
    seen[7] = seen[7]._replace(copy=seen[7].copy._replace(is_doomed=True))


def half_of_the_next_transaction(seen: list[Seen]) -> None:
    """A late second copy of a marker commits what was written so far of an aborted transaction."""
    seen.append(Seen(0, 100, Copy(0, 9, "a", True, "v")))


def invented(seen: list[Seen]) -> None:
    seen.append(Seen(0, 100, Copy(0, 77, "a", False, "v")))


@pytest.mark.parametrize(
    ("plant", "report"),
    [
        (without, "lost write: ('source-0', 7) was committed and never read"),
        (twice, "duplicate: ('source-0', 7) was read 2 times"),
        (aborted, "aborted read: Copy("),
        (half_of_the_next_transaction, "aborted read: Copy("),
        (invented, "a copy of ('source-0', 77), which does not exist"),
    ],
)
def test_a_record_that_is_lost_doubled_aborted_or_invented_is_reported(
    plant: Callable[[list[Seen]], None], report: str
) -> None:
    seen = good_run()
    assert audit_copies(SOURCE, seen) == []
    plant(seen)
    assert report in "\n".join(audit_copies(SOURCE, seen))


def test_copies_in_another_order_are_reported() -> None:
    seen = good_run()
    assert audit_order(seen) == []
    first, second = seen[0], seen[3]
    assert first.partition == second.partition
    seen[0], seen[3] = first._replace(copy=second.copy), second._replace(copy=first.copy)
    (problem, *_) = audit_order(seen)
    assert problem.startswith("non-monotonic send: 'copies-0 from source-0' has at 0 what was")


def test_a_source_record_that_was_lost_doubled_or_swapped_is_reported() -> None:
    fed = {0: ["a", "b", "c"], 1: ["x"]}
    assert audit_source(fed, {0: ["a", "b", "c"], 1: ["x"]}) == []
    for found in (["a", "c"], ["a", "b", "b", "c"], ["a", "c", "b"], ["a", "b"], []):
        (problem,) = audit_source(fed, {0: found, 1: ["x"]})
        assert problem.startswith("source-0 has")


def test_a_record_that_vanishes_changes_or_appears_behind_a_reader_is_reported() -> None:
    seen = good_run()
    assert audit_views(seen, reversed(seen)) == []
    assert len(audit_views(seen, seen[1:])) == 1
    assert len(audit_views(seen[1:], seen)) == 1
    other = seen[3]._replace(copy=seen[3].copy._replace(value="w"))
    assert len(audit_views(seen, [*seen[:3], other, *seen[4:]])) == 1


def test_what_is_still_open_is_reported() -> None:
    ended = {"a": "CompleteCommit", "b": "Empty", "c": "CompleteAbort"}
    assert audit_transactions(ended, [], {"copies-0": (5, 5)}) == []
    for state in ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"):
        assert audit_transactions({**ended, "d": state}, [], {}) == [f"d is still {state}"]
    opened = OpenTransaction("copies-0", "1000 at epoch 3")
    assert len(audit_transactions(ended, [opened], {})) == 1
    (stuck,) = audit_transactions(ended, [], {"copies-0": (4, 5)})
    assert "last stable offset 4 is behind the high watermark 5" in stuck


def test_a_producer_id_that_was_handed_out_twice_is_reported() -> None:
    owners = [(1, "a"), (1, "a"), (2, "b"), (3, "feeder")]
    assert audit_producer_ids(owners) == []
    assert audit_producer_ids([*owners, (3, "a")]) == ["producer id 3 belongs to a, feeder"]


def test_an_epoch_that_falls_is_reported() -> None:
    history = [("a", 1, 0), ("a", 1, 1), ("b", 2, 0), ("a", 7, 0)]
    assert audit_epochs(history) == []
    assert audit_epochs([*history, ("a", 1, 0)]) == ["a: producer 1 fell from epoch 1 to 0"]


def test_a_group_that_does_not_stand_at_the_end_of_the_source_is_reported() -> None:
    assert audit_offsets({0: 10, 1: 10}, SOURCE, good_run()) == []
    for committed in ({0: 9, 1: 10}, {0: 11, 1: 10}, {1: 10}):
        assert len(audit_offsets(committed, SOURCE, good_run())) == 1


def test_a_group_that_has_passed_what_was_not_copied_is_reported() -> None:
    seen = good_run()
    del seen[7]
    (problem,) = audit_offsets({0: 10, 1: 10}, SOURCE, seen)
    assert problem.startswith("offsets without output: the group stands at 10 of 'source-0', and 7")


def test_a_reader_that_goes_back_is_reported() -> None:
    seen = sorted(good_run(), key=lambda each: each.offset)
    assert audit_reader(seen) == []
    (problem,) = audit_reader([*seen, seen[-1]])
    assert problem.startswith(f"non-monotonic poll: 'copies-{seen[-1].partition}' gave")


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        "AssertionError: batches come in their order",
        "CRITICAL [broker 2] fencepost.cluster: an internal assertion failed",
        "WARNING fencepost.cluster.parent.parent: broker 2 (process 7) ended: exit code 70",
        "ERROR asyncio: Task exception was never retrieved",
    ],
)
def test_a_broker_that_failed_is_reported(line: str) -> None:
    usual = ["broker 2 (process 7) ended: killed by SIGKILL", "fencepost is ready at x:1"]
    assert audit_log(usual) == []
    assert audit_log([*usual, line]) == [line]


def test_of_many_similar_problems_a_few_are_shown() -> None:
    problems = audit_copies(SOURCE, [])
    assert len(problems) == SHOWN + 1
    assert problems[-1] == f"... and {20 - SHOWN} more like this"


def test_a_copy_is_read_as_it_was_written() -> None:
    for is_doomed in (True, False):
        copy = Copy(3, 17, "kafka-python", is_doomed, "3.4/16 and more")
        assert decode_copy(copy.encode()) == copy


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert make_schedule(7, 50) == make_schedule(7, 50)
    assert make_schedule(7, 50) != make_schedule(8, 50)
    assert make_schedule(7, 80)[:20] == make_schedule(7, 200)[:20]


def test_a_schedule_has_every_kind_of_fault_on_every_role_and_some_overlap() -> None:
    rounds = make_schedule(1, 400)
    faults = [fault for round_ in rounds for fault in round_]
    assert len(faults) == 400
    assert {fault.kind for fault in faults} == set(Kind)
    assert {fault.role for fault in faults} == set(ROLES)
    overlaps = [round_ for round_ in rounds if len(round_) > 1]
    assert len(overlaps) > 20
    assert {round_[0].kind for round_ in overlaps} == set(OVERLAPPING)
