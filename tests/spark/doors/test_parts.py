"""The argument of `sink.write`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.writer import Written
from fencepost.spark.doors.parts import read_parts
from fencepost.spark.failures import CountsDisagree, SinkRefused
from fencepost.spark.ways.accounts import Account, sum_accounts
from fencepost.spark.ways.row_writer import BY_COLUMN

A: Any = SimpleNamespace(sparkSession="a")
B: Any = SimpleNamespace(sparkSession="b")


def test_every_part_has_its_topic_which_rows_of_other_parts_cannot_name() -> None:
    parts = read_parts({"one": A, None: B}, None, "ledger")
    assert [(part.topic, part.df, part.name) for part in parts] == [
        ("one", A, "one"),
        (None, B, BY_COLUMN),
    ]
    assert [sorted(part.reserved) for part in parts] == [[], ["ledger", "one"]]
    assert [part.topic for part in read_parts({"one": A, None: B}, "of-the-sink", "ledger")] == [
        "one",
        "of-the-sink",
    ]
    assert read_parts({}, None, "ledger") == ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (A, r"sink\(df, batch_id\)"),
        ([A, B], "it got list"),
        ({"": A}, "is not a topic name"),
        ({7: A}, "the key 7"),
        ({"one": None}, "got NoneType for topic 'one'"),
        ({"one": A, None: B}, "union the two"),
        ({"ledger": A}, "which holds the ledger"),
    ],
)
def test_invalid_arguments_are_refused(given: Any, words: str) -> None:
    with pytest.raises(SinkRefused, match=words):
        read_parts(given, "one", "ledger")


def account(*places: tuple[str, int], opened_ms: int = 0) -> Account:
    reports = {TopicPartition(*place): Written(2, 1, 100, 0, 1) for place in places}
    return Account(2 * len(places), reports, opened_ms)


def test_accounts_of_parts_are_summed_and_may_not_share_a_partition() -> None:
    whole = sum_accounts(
        [account(("a", 0), opened_ms=7), account(), account(("b", 0), ("b", 1), opened_ms=9)]
    )
    assert (whole.rows, whole.records, whole.opened_ms) == (6, 6, 7)
    assert sum_accounts([]) == Account(0, {})
    with pytest.raises(CountsDisagree, match="two parts of the batch wrote to a-0"):
        sum_accounts([account(("a", 0)), account(("a", 0))])
