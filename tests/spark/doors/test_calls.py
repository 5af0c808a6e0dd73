"""The calls within one run of a query: which are accepted, and which are refused."""

from __future__ import annotations

import pytest

from fencepost.spark.doors.calls import RUNS_KEPT, Call, Damage, RunCalls, calls_of
from fencepost.spark.failures import SinkFenced, SinkRefused


class Frame:
    """A fake DataFrame, compared by its meaning."""

    def __init__(self, meaning: str) -> None:
        self.meaning = meaning

    def sameSemantics(self, other: Frame) -> bool:  # noqa: N802
        return self.meaning == other.meaning


ROWS = (Frame("rows"),)
OTHERS = (Frame("others"),)


def finished(*batches: int) -> RunCalls:
    calls = RunCalls()
    for batch_id in batches:
        call = Call(batch_id, ROWS)
        calls.begin(call)
        calls.finish(call)
    return calls


def failed(batch_id: int, *before: int) -> RunCalls:
    calls = finished(*before)
    call = Call(batch_id, ROWS)
    calls.begin(call)
    calls.fail(call, RuntimeError("no broker\nand a traceback"))
    return calls


@pytest.mark.parametrize(
    ("calls", "call", "is_begun"),
    [
        (finished(), Call(0, ROWS), True),
        (finished(), Call(7), True),
        (finished(3), Call(4, ROWS), True),
        (finished(3), Call(9, ROWS), True),
        (finished(3), Call(9), True),
        (finished(3), Call(3), False),
        (failed(4), Call(4, ROWS), True),
        (failed(4, 3), Call(4, ROWS), True),
        (failed(4), Call(4, (Frame("rows"),)), True),
        (failed(4), Call(4), True),
    ],
)
def test_every_batch_is_begun_but_one_that_is_finished_and_skipped(
    calls: RunCalls, call: Call, is_begun: bool
) -> None:
    assert calls.begin(call) is is_begun


@pytest.mark.parametrize(
    ("calls", "call", "words"),
    [
        (finished(3), Call(3, ROWS), r"second time for batch 3.*sink\.write"),
        (finished(3), Call(3, OTHERS), "holds only the first call's rows"),
        (finished(3), Call(2, ROWS), "has already finished batch 3"),
        (finished(3), Call(2), "has already finished batch 3"),
        (failed(4), Call(4, OTHERS), r"\(no broker\), and this call has other rows"),
        (failed(4), Call(4, ROWS + OTHERS), "has other rows"),
        (failed(4), Call(4, ("no DataFrame",)), "has other rows"),
        (failed(4), Call(5, ROWS), "the rows of batch 4 are missing"),
        (failed(4), Call(5), "the rows of batch 4 are missing"),
        (failed(4, 2, 3), Call(3, ROWS), "failed in batch 4"),
    ],
)
def test_a_call_that_would_lose_rows_is_refused_and_so_are_all_later_calls(
    calls: RunCalls, call: Call, words: str
) -> None:
    with pytest.raises(SinkRefused, match=words):
        calls.begin(call)
    for later in (call, Call(call.batch_id + 1, ROWS), Call(call.batch_id + 1)):
        with pytest.raises(SinkRefused, match="Do not catch the sink's exceptions"):
            calls.begin(later)


def test_a_retried_call_may_fail_again_and_then_succeed() -> None:
    calls = failed(4, 3)
    calls.begin(Call(4, ROWS))
    calls.fail(Call(4, ROWS), ValueError())
    calls.begin(Call(4, ROWS))
    calls.finish(Call(4, ROWS))
    assert calls.begin(Call(5, ROWS)) is True


@pytest.mark.parametrize("later", [Call(4, ROWS), Call(4), Call(5, ROWS), Call(9)])
def test_a_failed_skip_loses_nothing(later: Call) -> None:
    calls = finished(3)
    calls.begin(Call(4))
    calls.fail(Call(4), RuntimeError("no broker"))
    assert calls.begin(later) is True
    assert calls.is_again


def test_of_two_concurrent_calls_neither_commits() -> None:
    calls = finished(3)
    first = Call(4, ROWS)
    calls.begin(first)
    calls.check()
    with pytest.raises(SinkRefused, match="while another thread was writing batch"):
        calls.begin(Call(4, OTHERS))
    with pytest.raises(SinkRefused, match="batch 4 was given up"):
        calls.check()
    calls.fail(first, SinkRefused("given up"))
    with pytest.raises(SinkRefused, match="Do not catch"):
        calls.begin(Call(5, ROWS))
    assert calls.last == 3


def test_calls_are_tracked_per_process_and_run() -> None:
    one = calls_of("id", iter(["b:2", "a:1"]), ("q", "r"))
    assert calls_of("id", iter(["a:1", "b:2"]), ("q", "r")) is one
    assert calls_of("id", iter(["a:1", "b:2"]), ("q", "s")) is not one
    assert calls_of("other", iter(["a:1", "b:2"]), ("q", "r")) is not one
    for number in range(RUNS_KEPT):
        calls_of("id", iter(["a:1"]), ("q", str(number)))
    assert calls_of("id", iter(["a:1", "b:2"]), ("q", "r")) is not one


def test_a_call_refused_while_another_commits_leaves_the_batch_incomplete() -> None:
    calls = RunCalls()
    first = Call(4, ROWS)
    calls.begin(first)
    calls.check()
    with pytest.raises(SinkRefused):
        calls.begin(Call(4, OTHERS))
    calls.finish(first)
    assert calls.pop_damage() == Damage(short=4)
    assert calls.pop_damage() is None


def test_damage_that_a_restart_must_know_about_is_kept_for_the_ledger() -> None:
    calls = finished(3)
    with pytest.raises(SinkRefused):
        calls.begin(Call(3, ROWS))
    assert calls.pop_damage() == Damage(short=3)
    calls = failed(4, 3)
    with pytest.raises(SinkRefused):
        calls.begin(Call(5, ROWS))
    assert calls.pop_damage() == Damage(lost=4)
    calls = RunCalls()
    calls.begin(Call(4, ROWS))
    calls.fail(Call(4, ROWS), SinkFenced("another query has it"))
    with pytest.raises(SinkRefused):
        calls.begin(Call(5, ROWS))
    assert calls.pop_damage() is None


def test_a_second_sink_in_one_query_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    calls_of("first-id", iter(["a:1"]), ("two-sinks", "r"))
    assert not caplog.records
    calls_of("second-id", iter(["a:1"]), ("two-sinks", "r"))
    assert "uses two sinks (second-id, first-id)" in caplog.text
