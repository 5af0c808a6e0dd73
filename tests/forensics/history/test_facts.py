"""Where the facts about an id are looked for."""

from __future__ import annotations

from fencepost.forensics.history.facts import MOST_CHANGES, changes_around
from tests.forensics.history.changes import PRODUCER, lives


def test_the_partitions_are_searched_around_the_producer_that_is_asked_for() -> None:
    changes = lives(40)
    old = changes_around(changes, (PRODUCER, 10))
    assert {each.metadata.producer_epoch for each in old if each.metadata} >= {10, 11}
    assert max(each.offset for each in old) < 40
    assert changes_around(changes, None) == changes[-MOST_CHANGES:]
    assert changes_around(changes, (99, 99)) == changes[-MOST_CHANGES:]
    assert changes_around([], None) == []
