"""The progress line of commands that read much."""

from __future__ import annotations

import pytest

from fencepost.cli import progress


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


def test_a_quick_command_says_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    line = progress.ProgressLine()
    clock.now = 0.9
    line("orders-0", 10, 100)
    line.clear()
    assert capsys.readouterr().err == ""


def test_a_slow_command_reports_now_and_then_into_a_file(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    line = progress.ProgressLine()
    for second in range(1, 11):
        clock.now = float(second)
        line("orders-0", 1_000 * second, 1_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "fencepost: reading orders-0, offset 1,000 of 1,000,000",
        "fencepost: reading orders-0, offset 6,000 of 1,000,000",
    ]


def test_on_a_terminal_the_line_is_overwritten_and_removed(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    line = progress.ProgressLine()
    clock.now = 1.5
    line("orders-0", 1, 2)
    line.clear()
    said = capsys.readouterr().err
    assert said.count("\n") == 0
    assert said.endswith("\r")
    assert said.count("\r") == 3
