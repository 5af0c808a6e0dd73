"""DescribeTransactions and ListTransactions (case 90, the coordinator's side)."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.patterns import compile_pattern
from fencepost.coordinator.txn.states import State
from fencepost.coordinator.txn.views import (
    Description,
    Filters,
    describe_transaction,
    list_transactions,
    parse_state_filters,
)
from tests.coordinator.txn.ledger import Ledger, transaction


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.put("empty", transaction(State.EMPTY, 1))
    ledger.put("open", transaction(State.ONGOING, 2, 7, start_ms=500, partitions={"t": (0, 3)}))
    ledger.put("done", transaction(State.COMPLETE_COMMIT, 3, start_ms=900))
    return ledger


def ids(ledger: Ledger, filters: Filters, now_ms: int = 1_000) -> list[str]:
    return [name for name, _ in list_transactions(ledger.state, filters, now_ms)]


def test_a_description_has_everything_known_about_an_id(ledger: Ledger) -> None:
    found = describe_transaction(ledger.state, "open")
    partitions = {"t": (0, 3)}
    assert found == Description(ErrorCode.NONE, "open", "Ongoing", 60_000, 500, 2, 7, partitions)


def test_an_unknown_id_is_not_found(ledger: Ledger) -> None:
    found = describe_transaction(ledger.state, "nobody")
    assert found.error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_while_markers_are_being_written_only_partitions_without_one_are_listed(
    ledger: Ledger,
) -> None:
    found = describe_transaction(ledger.state, "open", {"t": (3,)})
    assert found.partitions == {"t": (3,)}


def test_without_filters_every_id_is_listed(ledger: Ledger) -> None:
    assert ids(ledger, Filters()) == ["empty", "open", "done"]


def test_ids_are_listed_by_state(ledger: Ledger) -> None:
    states, unknown = parse_state_filters(["Ongoing", "CompleteCommit"])
    assert unknown == []
    assert ids(ledger, Filters(states)) == ["open", "done"]


def test_unknown_state_names_are_returned_and_match_nothing(ledger: Ledger) -> None:
    states, unknown = parse_state_filters(["Sleeping"])
    assert unknown == ["Sleeping"]
    assert ids(ledger, Filters(states)) == []


def test_no_state_names_mean_every_state() -> None:
    assert parse_state_filters([]) == (None, [])


def test_ids_are_listed_by_producer(ledger: Ledger) -> None:
    assert ids(ledger, Filters(producer_ids={2, 3})) == ["open", "done"]


def test_only_transactions_that_exceed_the_duration_are_listed(ledger: Ledger) -> None:
    assert ids(ledger, Filters(duration_ms=499)) == ["empty", "open"]
    assert ids(ledger, Filters(duration_ms=500)) == ["empty"]


def test_a_pattern_must_match_the_whole_id(ledger: Ledger) -> None:
    assert ids(ledger, Filters(pattern=compile_pattern("o.*"))) == ["open"]
    assert ids(ledger, Filters(pattern=compile_pattern("one"))) == []
