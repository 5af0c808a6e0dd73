"""The collected route: failures of the rows and of the ledger requests in flight beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.client.failures import UnknownTopicOrPartition
from fencepost.spark.sink.ledger.entry_writer import EntryWriter
from fencepost.spark.transport.collected import _in_flight


class Attached:
    """Fails where it is asked to, and notes its calls."""

    place: Any = None

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.calls: list[str] = []

    def begin(self) -> None:
        self._call("begin")

    def settle(self) -> None:
        self._call("settle")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise ConnectionError(name)

    def seal(self, opened_ms: int) -> bytearray:
        raise NotImplementedError

    def sent(self) -> None:
        raise NotImplementedError


def test_a_failure_of_the_rows_is_not_hidden_by_one_of_the_ledger() -> None:
    attached = Attached("settle")
    with pytest.raises(ValueError, match="a row"), _in_flight(attached):
        raise ValueError("a row is too large")
    assert attached.calls == ["begin", "settle"]


def test_requests_are_settled_where_only_some_of_them_could_be_sent() -> None:
    attached = Attached("begin")
    with pytest.raises(ConnectionError, match="begin"), _in_flight(attached):
        pytest.fail("nothing is written")
    assert attached.calls == ["begin", "settle"]


def test_a_failure_of_the_ledger_alone_is_reported() -> None:
    with pytest.raises(ConnectionError, match="settle"), _in_flight(Attached("settle")):
        pass


class Pending:
    """A request in flight."""

    def __init__(self, problem: Exception | None) -> None:
        self.problem = problem
        self.is_finished = False

    def finish(self) -> Any:
        self.is_finished = True
        if self.problem is not None:
            raise self.problem
        return {}


@pytest.mark.parametrize("ids", [None, ConnectionError("no ids")])
def test_both_requests_are_finished_and_the_failed_commit_is_reported(
    ids: Exception | None,
) -> None:
    commit, asked = Pending(UnknownTopicOrPartition("gone", 3)), Pending(ids)
    writer = EntryWriter.__new__(EntryWriter)
    store = SimpleNamespace(checks_ids_first=False, finish_ids=lambda pending: pending.finish())
    writer._store = store  # type: ignore[assignment]
    writer._asked, writer._commit = asked, commit  # type: ignore[assignment]
    with pytest.raises(UnknownTopicOrPartition):
        writer.settle()
    assert (commit.is_finished, asked.is_finished) == (True, True)
    assert store.checks_ids_first, "the next attempt asks for the ids first"
