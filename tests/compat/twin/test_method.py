"""Goal: a twin run finds differences.

Method: transcripts in which one was planted, without any broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencepost.wire.forms.end_txn import EndTxnResponse
from fencepost.wire.forms.fetch import AbortedTransaction, PartitionData
from fencepost.wire.forms.list_offsets import ListOffsetsPartitionResponse
from tests.compat.twin.likeness import EPOCH_MS, Likeness
from tests.compat.twin.talk import Step, compare_transcripts, listed_differences
from tests.compat.twin.transactional import batch

if TYPE_CHECKING:
    from collections.abc import Sequence

ROW = "Metadata with auto-creation"


def compare(theirs: Any, ours: Any, differs: str | None = None) -> Sequence[str]:
    return compare_transcripts([Step("a step", theirs, differs)], [Step("a step", ours, differs)])


def test_equal_transcripts_have_no_difference() -> None:
    reply = {"error_code": 3, "topics": [{"name": "t"}]}
    assert compare(reply, dict(reply)) == []


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"error_code": 90}, {"error_code": 47}),
        ({"topics": [{"name": "t"}]}, {"topics": []}),
        ({"records": [{"offsets": (0, 1)}]}, {"records": [{"offsets": (0, 2)}]}),
        ({"aborted_transactions": []}, {"aborted_transactions": None}),
        ("the connection is closed", {"error_code": 0}),
    ],
)
def test_a_difference_is_found_at_any_depth(theirs: Any, ours: Any) -> None:
    (found,) = compare(theirs, ours)
    assert "a step" in found


def test_a_step_taken_by_only_one_side_is_found() -> None:
    assert compare_transcripts([Step("one", 1), Step("two", 2)], [Step("one", 1)])


def test_a_declared_difference_must_exist() -> None:
    assert compare({"error_code": 3}, {"error_code": 0}, ROW) == []
    (found,) = compare({"error_code": 3}, {"error_code": 3}, ROW)
    assert "no difference" in found


def test_a_declared_difference_must_be_in_the_table() -> None:
    (found,) = compare(1, 2, "a difference that is not in the table")
    assert "not in" in found
    assert ROW in listed_differences()


def test_producer_ids_are_counted_from_the_first_one() -> None:
    replies = [
        [EndTxnResponse(producer_id=first + step, producer_epoch=1) for step in (0, 3)]
        for first in (1000, 7)
    ]
    theirs, ours = ([Likeness(1).of(reply) for reply in side] for side in replies)
    assert theirs[0] == ours[0]
    eyes = Likeness(1)
    assert [eyes.of(reply)["producer_id"] for reply in replies[0]] == ["p+0", "p+3"]
    assert eyes.of(EndTxnResponse())["producer_id"] == -1


def test_batches_are_compared_by_their_contents() -> None:
    def seen(records: bytes | bytearray) -> Any:
        return Likeness(1).of(PartitionData(records=records, aborted_transactions=None))

    sent = batch(b"a", b"b")
    assert seen(sent) == seen(bytearray(sent))
    assert seen(sent) != seen(batch(b"a", b"c"))
    assert seen(sent) != seen(batch(b"a", b"b", transactional=True))
    assert seen(sent + sent[:20]) == seen(sent), "an incomplete batch at the end is skipped"


def test_the_order_of_a_list_is_ignored() -> None:
    one, other = (AbortedTransaction(producer_id=5, first_offset=offset) for offset in (1, 2))
    eyes = Likeness(1)
    assert eyes.of([one, other]) == eyes.of([other, one])


def test_times_are_relative_to_the_script_or_replaced_by_now() -> None:
    def seen(time_ms: int) -> Any:
        return Likeness(1).of(ListOffsetsPartitionResponse(timestamp=time_ms))["timestamp"]

    assert seen(EPOCH_MS + 5) == "T+5"
    assert seen(-1) == -1
    assert seen(1_600_000_000_000) == 1_600_000_000_000
