"""Lines while the demo runs."""

from __future__ import annotations

import time

import pytest

from fencepost_examples.demo.display import Clock, Lines
from fencepost_examples.refunds.spark.settlements import EXACTLY_ONCE


def test_progress_lines_are_rate_limited(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(Clock())
    for count in range(5):
        lines.progress({EXACTLY_ONCE: count}, 10)
    assert capsys.readouterr().out.splitlines() == [" 0:00  decided of 10: exactly once 0"]


def test_a_progress_line_is_not_repeated_soon_unless_something_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    lines = Lines(clock)
    for seconds, decided in ((0, 0), (20, 0), (40, 3), (59, 3), (101, 3)):
        monkeypatch.setattr(clock, "_started", time.monotonic() - seconds)
        lines.progress({EXACTLY_ONCE: decided}, 10)
    said = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["0:00", "0:40", "1:41"]
