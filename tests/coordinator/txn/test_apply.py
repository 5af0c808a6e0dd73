"""Reading the log back. Numbers are those of docs/cases.md."""

from __future__ import annotations

import pytest

from fencepost.coordinator.txn.apply import CoordinatorState, fold, read_entry
from fencepost.coordinator.txn.states import State
from fencepost.records.control import Marker
from fencepost.records.entry import Entry
from fencepost.records.transaction_log import encode_key, encode_value
from tests.coordinator.txn.ledger import entry, transaction

KEY = encode_key("a")
ONGOING = encode_value(transaction(State.ONGOING))
EMPTY = encode_value(transaction(State.EMPTY))


def test_case_41_the_last_record_wins() -> None:
    state = fold([entry(0, KEY, EMPTY), entry(1, KEY, ONGOING)])
    assert state.transactions["a"] == transaction(State.ONGOING)
    assert list(state.open) == ["a"]


def test_case_41_a_tombstone_removes_its_id() -> None:
    state = fold([entry(0, KEY, ONGOING), entry(1, KEY, None)])
    assert state.transactions == {}
    assert not state.open


def test_case_41_a_tombstone_of_a_missing_id_is_ignored() -> None:
    assert fold([entry(0, KEY, None)]) == CoordinatorState()


def test_case_41_records_of_a_later_kafka_are_skipped() -> None:
    later_key = entry(0, b"\0\1" + KEY[2:], EMPTY)
    later_value = entry(1, encode_key("b"), b"\0\2" + EMPTY[2:])
    assert read_entry(later_key) is None
    assert read_entry(later_value) is None
    assert fold([later_key, later_value, entry(2, KEY, EMPTY)]).transactions.keys() == {"a"}


def test_case_41_a_record_that_cannot_be_read_does_not_hide_the_others() -> None:
    corrupt = [
        entry(0, b"", EMPTY),
        entry(1, b"\0", EMPTY),
        entry(2, b"\0\0\0\x7fa", EMPTY),
        entry(3, None, EMPTY),
        entry(4, encode_key("b"), b"\0\1\0\0"),
        entry(5, encode_key("b"), b""),
    ]
    assert all(read_entry(found) is None for found in corrupt)
    assert fold([*corrupt, entry(6, KEY, EMPTY)]).transactions.keys() == {"a"}


def test_a_marker_in_the_log_is_not_a_transaction() -> None:
    assert read_entry(Entry(0, 1, 0, True, None, None, Marker(True, 0))) is None


@pytest.mark.interpreted
def test_states_are_read_back_as_enum_members() -> None:
    record = read_entry(entry(0, KEY, ONGOING))
    assert record is not None
    assert record.metadata is not None
    assert record.metadata.state is State.ONGOING


def test_states_of_equivalent_logs_are_equal() -> None:
    state = fold([entry(0, KEY, EMPTY)])
    assert state == fold([entry(0, KEY, ONGOING), entry(1, KEY, EMPTY)])
    assert state != fold([entry(0, KEY, ONGOING)])
