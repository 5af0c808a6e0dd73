"""Which topics a query reads, from the options of its sources and from its offsets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from fencepost.base.ids import topic_id_text
from fencepost.spark.doors.parts import without_loops
from fencepost.spark.engine.read_topics import (
    NO_TOPICS,
    ReadTopics,
    read_in_batch,
    read_topics,
    topics_by_id,
)
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger.topic import LEDGER_TOPIC
from fencepost.spark.ways.row_writer import Part

ID, OTHER_ID = (topic_id_text(bytes([n]) * 16) for n in (1, 2))


@pytest.mark.parametrize(
    ("options", "is_read"),
    [
        ({"subscribe": "a, orders ,b"}, True),
        ({"Subscribe": "orders"}, True),
        ({"subscribe": "orders-2"}, False),
        ({"assign": '{"orders": [1]}'}, True),
        ({"assign": "not JSON"}, False),
        # As in the source, a part of the name is enough.
        ({"subscribepattern": "ord"}, True),
        ({"subscribePattern": "^orders-.*"}, False),
        # Valid in Java alone.
        ({"subscribePattern": "\\p{Lower}+"}, False),
        ({}, False),
    ],
)
def test_a_topic_is_read_if_the_subscription_covers_it(
    options: dict[str, str], is_read: bool
) -> None:
    assert ("orders" in read_topics([{"other": "x"}, options])) is is_read


def test_a_pattern_covers_topics_that_do_not_exist_yet_but_not_the_ledger() -> None:
    read = read_topics([{"subscribePattern": ".*"}])
    assert "new" in read
    assert LEDGER_TOPIC not in read
    assert LEDGER_TOPIC in read_topics([{"subscribe": LEDGER_TOPIC}])


def test_what_a_pattern_has_matched_is_known_by_name_in_each_batch() -> None:
    read = ReadTopics(frozenset({"a"}), ("^b",))
    batch = cast("Any", SimpleNamespace(end_offsets=('{"b1": {"0": 1}, "c": {"0": 1}}', '{"no"}')))
    assert read_in_batch(read, batch).names == {"a", "b1"}
    assert read_in_batch(NO_TOPICS, batch) is NO_TOPICS


def test_offsets_with_the_id_of_a_topic_of_this_cluster_show_that_it_is_read() -> None:
    offsets = (f'{{"@id:ours:{ID}": {{}}, "@id:theirs:{OTHER_ID}": {{}}, "ours": {{"0": 1}}}}',)
    ledger = cast("Any", SimpleNamespace(current_ids=lambda _: {"ours": ID, "theirs": ID}))
    assert topics_by_id(offsets, ledger).names == {"ours"}
    # Another source has no ids, or no offsets of topics.
    assert topics_by_id(('{"ours": {"0": 1}}', '{"logOffset": 3}', "7"), ledger).names == set()


def test_rows_may_name_any_topic_but_those_that_are_read() -> None:
    read = ReadTopics(frozenset({"in"}), ("^raw-",))
    by_column = Part(None, cast("Any", None), {"ledger": "which holds the ledger"})
    (guarded,) = without_loops((by_column,), read, "ledger")
    assert guarded.reserved.keys() == {"in", "ledger"}
    fixed = Part("out", cast("Any", None))
    assert without_loops((fixed,), read, "ledger") == (fixed,)
    for topic in ("in", "raw-7"):
        with pytest.raises(SinkRefused, match=f"'{topic}', which this query reads"):
            without_loops((fixed, Part(topic, cast("Any", None))), read, "ledger")
    with pytest.raises(SinkRefused, match="which holds its ledger"):
        without_loops((fixed,), read, "in")
