"""What Spark's events and the sinks' receipts make of a query."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.spark.ledger.rule import Verdict
from fencepost.spark.progress import board as board_module
from fencepost.spark.progress.board import QUERIES_KEPT, Board, QueryState
from fencepost.spark.transaction.receipts import RECEIPTS_KEPT, Receipt, ReceiptHistory, receipts_of


def progress(query: str, run: str, batch: int, rows: int = 10, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": query,
        "runId": run,
        "name": None,
        "batchId": batch,
        "timestamp": f"2026-11-17T12:00:{2 * batch:02}.000Z",
        "batchDuration": 1_000,
        "numInputRows": rows,
        "sources": [],
    }
    return fields | changes


def receipt(query: str, run: str, batch: int, **changes: Any) -> Receipt:
    return Receipt(batch, Verdict.WRITE, query_id=query, run_id=run, **changes)


def test_the_rate_is_over_the_last_batches_and_the_time_between_them() -> None:
    board = Board()
    for batch in range(3):
        status = board.progress(progress("q", "r", batch, rows=100))
    assert status is not None
    # Three batches of a second each, and a second of waiting between them.
    assert status.rows_per_second == pytest.approx(300 / 5)
    assert (status.rows, status.batch_id, status.batch_ms) == (300, 2, 1_000)
    assert status.name == "q"


def test_receipts_of_all_sinks_of_the_run_are_counted_once() -> None:
    board, one, other = Board(), ReceiptHistory(), ReceiptHistory()
    board.start("query-1", "run-1", "refunds")
    one.add(receipt("query-1", "run-0", 6, attempts=9, commit_ms=99))
    one.add(receipt("query-1", "run-1", 7, attempts=3, commit_ms=12))
    other.add(Receipt(7, Verdict.DRAIN, attempts=0, query_id="query-1", run_id="run-1"))
    one.add(receipt("another", "run-1", 7, attempts=9))
    for batch in (7, 8):
        status = board.progress(progress("query-1", "run-1", batch))
    assert status is not None
    assert (status.retries, status.drained, status.commit_ms) == (2, 1, 12)
    assert status.committed_batch_id == 7
    one.add(receipt("query-1", "run-1", 9, attempts=2))
    ended = board.end("query-1", "run-1", "it broke")
    assert ended is not None
    assert (ended.retries, ended.state, ended.error) == (3, QueryState.FAILED, "it broke")
    assert ended.committed_batch_id == 9


def test_a_restart_keeps_the_query_and_begins_its_counts_again() -> None:
    board = Board()
    board.start("q", "first", "refunds")
    board.progress(progress("q", "first", 0))
    board.end("q", "first", None)
    board.start("q", "second", "refunds")
    assert board.progress(progress("q", "first", 1)) is None
    assert board.end("q", "first", "too late") is None
    (status,) = board.snapshot()
    assert (status.run_id, status.runs, status.state) == ("second", 2, QueryState.RUNNING)
    assert (status.rows, status.error) == (0, None)


def test_a_query_that_was_idle_runs_again_and_stays_over_once_it_has_ended() -> None:
    board = Board()
    board.start("q", "r", None)
    idle = board.idle("q", "r")
    assert idle is not None
    assert idle.state is QueryState.IDLE
    running = board.progress(progress("q", "r", 0))
    assert running is not None
    assert running.state is QueryState.RUNNING
    board.end("q", "r", "it broke")
    # The progress of the last batch may come late.
    late = board.progress(progress("q", "r", 1))
    assert late is not None
    assert (late.state, late.error) == (QueryState.FAILED, "it broke")
    assert board.idle("q", "r") is None
    assert board.end("q", "r", None) is None


def test_a_batch_that_is_reported_twice_counts_once() -> None:
    board = Board()
    board.progress(progress("q", "r", 4, rows=10))
    status = board.progress(progress("q", "r", 4, rows=10))
    assert status is not None
    assert status.rows == 10


def test_events_of_queries_that_nobody_knows_change_nothing() -> None:
    board = Board()
    assert board.idle("q", "r") is None
    assert board.end("q", "r", None) is None
    assert board.snapshot() == ()


def test_of_very_many_queries_those_that_ended_first_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board_module, "QUERIES_KEPT", 3)
    board = Board()
    for number in range(5):
        board.start(f"q{number}", "r", None)
        if number != 1:
            board.end(f"q{number}", "r", None)
    assert [status.query_id for status in board.snapshot()] == ["q1", "q3", "q4"]
    assert QUERIES_KEPT > 100


def test_a_sink_remembers_its_last_batches_and_the_register_keeps_no_sink_alive() -> None:
    history = ReceiptHistory()
    for batch in range(RECEIPTS_KEPT + 5):
        history.add(receipt("forgotten", "r", batch))
    kept = [one.batch_id for one in history.snapshot()]
    assert kept == list(range(5, RECEIPTS_KEPT + 5))
    numbers = [number for number, _ in receipts_of("forgotten")]
    assert receipts_of("forgotten", numbers[-3]) == receipts_of("forgotten")[-2:]
    del history
    assert receipts_of("forgotten") == []
