"""What a terminal, a file and a notebook show."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fencepost.spark.progress.board import QueryState, QueryStatus
from fencepost.spark.progress.lag import SourceStatus
from fencepost.spark.progress.screens import (
    LineScreen,
    NotebookScreen,
    TerminalScreen,
    choose_screen,
)
from fencepost.spark.progress.words import HEADINGS, cells_of, choose, html_of, line_of, table_of

REFUNDS = QueryStatus(
    "11111111-aaaa",
    "run",
    "refunds",
    batch_id=41,
    rows_per_second=12_431.4,
    batch_ms=820,
    sources=(SourceStatus("one", 10, {"t-0": 3_000, "t-1": 10}, 1_505), SourceStatus("two", 0)),
    commit_ms=14,
    retries=2,
)
BROKEN = QueryStatus("22222222", "run", "b", QueryState.FAILED, error="no topic\n'x'")


def drawn(queries: list[QueryStatus], width: int = 130, most: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table_of(queries, most))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_query_is_one_line_with_everything_that_is_known() -> None:
    assert line_of(REFUNDS) == (
        "refunds: running, batch 41, 12,431 rows/s, 3,010 offsets behind (~1,505 records), "
        "batch 820 ms, commit 14 ms, retries 2"
    )
    assert line_of(replace(REFUNDS, runs=3)).startswith("refunds (run 3): ")
    assert line_of(BROKEN) == "b: failed: no topic 'x'"
    assert len(cells_of(BROKEN)) == len(HEADINGS)


def test_a_terminal_has_one_line_per_query_however_narrow_it_is() -> None:
    for width in (130, 80, 40):
        assert len(drawn([REFUNDS, replace(REFUNDS, name="n" * 300)], width)) == 3
    assert drawn([REFUNDS], 80)[1].split() == (
        ["refunds", "running", "41", "12,431", "3,010", "~1,505", "820", "14", "2", "0"]
    )
    heading, line, error = drawn([BROKEN])
    assert heading.split() == " ".join(HEADINGS).split()
    assert line.split() == ["b", "failed", *"-" * 6, "0", "0"]
    assert error == "b: no topic 'x'"


def test_a_name_is_shown_as_it_is() -> None:
    named = replace(REFUNDS, name="[bold]<script>&")
    assert "[bold]<script>&" in drawn([named])[1]
    assert "[bold]&lt;script&gt;&amp;" in html_of([named])
    assert "<td>3,010</td><td>~1,505</td>" in html_of([named])
    assert "no topic &#x27;x&#x27;" in html_of([BROKEN])


def test_of_a_hundred_queries_a_terminal_shows_those_that_fit_and_failures_first() -> None:
    queries = [replace(REFUNDS, query_id=f"q{n}", name=f"q{n}") for n in range(100)]
    queries[90] = replace(BROKEN, query_id="q90", name="q90")
    lines = drawn(queries, most=10)
    assert len(lines) == 10
    assert any(line.startswith("q90") for line in lines)
    assert lines[-1] == "and 93 more"
    shown, left_out = choose(queries, 10)
    assert len(shown) + left_out == 100
    assert choose(queries, None) == (queries, 0)


def test_a_file_gets_a_line_at_the_start_at_the_end_and_once_per_interval() -> None:
    now, output, queries = [100.0], io.StringIO(), [REFUNDS]
    screen = LineScreen(lambda: queries, output, 10.0, lambda: now[0])
    screen.open()
    for second in range(25):
        now[0] = 101.0 + second
        screen.update(replace(REFUNDS, batch_id=second))
    assert _batches(output) == ["41", "9", "19"]
    screen.update(replace(REFUNDS, run_id="another", batch_id=77))
    queries[:] = [replace(REFUNDS, run_id="another", state=QueryState.STOPPED, batch_id=78)]
    screen.update(queries[0])
    screen.update(queries[0])
    screen.close()
    assert _batches(output)[3:] == ["77", "78"]
    assert "stopped" in output.getvalue().splitlines()[-1]


def _batches(output: io.StringIO) -> list[str]:
    lines = output.getvalue().splitlines()
    return [line.partition("batch ")[2].partition(",")[0] for line in lines]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_output_decides_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert isinstance(choose_screen(list, io.StringIO(), 1.0), LineScreen)
    terminal = choose_screen(lambda: [REFUNDS], Terminal(), 1.0)
    assert isinstance(terminal, TerminalScreen)


def test_a_terminal_shows_the_last_state_when_it_is_closed() -> None:
    output, queries = Terminal(), [REFUNDS]
    screen = TerminalScreen(lambda: queries, output)
    screen.open()
    queries[:] = [replace(REFUNDS, name="renamed")]
    screen.update(queries[0])
    screen.close()
    assert "renamed" in output.getvalue()


def test_a_notebook_has_one_cell_output_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda screen: shown.append(screen._repr_html_()))

    def display(screen: Any, *, display_id: bool) -> Any:
        assert display_id
        shown.append(screen._repr_html_())
        return handle

    module, package = ModuleType("IPython.display"), ModuleType("IPython")
    module.__dict__["display"] = display
    package.__dict__["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    screen = choose_screen(lambda: [REFUNDS], Terminal(), 1.0)
    assert isinstance(screen, NotebookScreen)
    screen.open()
    for _ in range(100):
        screen.update(REFUNDS)
    screen.update(BROKEN)
    screen.close()
    assert len(shown) == 4
    assert all("<table>" in text for text in shown)
    # IPython in a terminal has no cells.
    package.__dict__["get_ipython"] = SimpleNamespace
    assert isinstance(choose_screen(list, Terminal(), 1.0), TerminalScreen)
