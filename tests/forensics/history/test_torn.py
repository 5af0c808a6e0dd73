"""Transactions that a marker tore."""

from __future__ import annotations

import pytest

from fencepost.forensics.history.markers import SeenMarker
from fencepost.forensics.history.state_changes import StateChange
from fencepost.forensics.history.torn import find_torn
from fencepost.records.fates import End
from tests.forensics.history.changes import ORDERS, PRODUCER, committed, marker


@pytest.mark.parametrize(
    ("changes", "torn"),
    [
        (committed(1_000), True),
        (committed(1_000)[:1], True),
        ([], False),
        (committed(2_000), False),
    ],
    ids=["committed later", "open still", "nothing", "began later"],
)
def test_an_abort_marker_inside_a_transaction_that_was_not_aborted_tears_it(
    changes: list[StateChange], torn: bool
) -> None:
    assert (find_torn(changes, [marker(1_005, commit=False)]) is not None) == torn


def test_an_empty_marker_tears_nothing() -> None:
    """The partition had no record of the transaction: the marker aborted nothing."""
    empty = SeenMarker(ORDERS, PRODUCER, End(False, 5, 1_005, 0, 0), None)
    assert find_torn(committed(1_000), [empty]) is None
