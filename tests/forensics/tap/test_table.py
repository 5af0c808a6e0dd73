"""The live table of the tap."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.forensics.tap.table import Table
from fencepost.records.trace import Body
from tests.forensics.tap.traces import Script, a_timeout, written

SCREENS = Path(__file__).parents[2] / "cli" / "screens"


def rows(table: Table, lines: list[Body]) -> str:
    return table.heading() + "".join(table.row(line) or "" for line in lines)


def closed(connection: int, **more: object) -> Body:
    return {
        "kind": "connection",
        "event": "closed",
        "connection": connection,
        "time_us": 1_800_000_060_000_000,
        "reason": "the client has closed it",
        **more,
    }


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen(width: int) -> None:
    shown = rows(Table(width, colour=False), [*a_timeout().lines, closed(2)])
    assert max(map(len, shown.splitlines())) <= width
    screen = SCREENS / f"tap-{width}.txt"
    assert shown == screen.read_text(), "write the new screen if it is right"


def test_only_errors_have_a_colour() -> None:
    lines = rows(Table(120, colour=True), a_timeout().lines).splitlines()
    assert [line for line in lines if "\x1b" in line] == [
        line for line in lines if "PRODUCER_FENCED" in line
    ]


def test_control_characters_of_strangers_do_not_reach_the_terminal() -> None:
    script = Script()
    script.call("EndTxn", {"transactional_id": "\x1b]0;evil\x07"}, {})
    script.lines[1]["client_id"] = script.lines[2]["client_id"] = "a\nb"
    shown = rows(Table(120, colour=True), script.lines)
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 2


def test_a_request_with_acks_0_is_not_called_lost() -> None:
    script = Script()
    script.ask("Produce", {**written(0, 0), "acks": 0})
    assert "no reply" not in rows(Table(120, colour=False), [*script.lines, closed(1)])


def test_a_connection_that_failed_has_a_row() -> None:
    line = closed(4, event="failed", reason="no broker can be reached")
    assert "no broker can be reached" in rows(Table(120, colour=False), [line])
