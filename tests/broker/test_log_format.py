"""The log as JSON: one object per line, with the fields of the line."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from fencepost.broker.log_format import JSON, TEXT, JsonLines, set_up_log


def record(message: str, *values: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("fencepost.x", logging.INFO, __file__, 1, message, values, None)
    made.__dict__.update(extra)
    return made


def test_a_line_has_its_fields_by_name() -> None:
    formatter = JsonLines()
    formatter.broker_id = 3
    line = json.loads(formatter.format(record("id %s", "a\nb", event="fence", producer_id=7)))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "INFO",
        "logger": "fencepost.x",
        "broker": 3,
        "message": "id a\nb",
        "event": "fence",
        "producer_id": 7,
    }


def test_a_line_is_one_line_whatever_is_in_it() -> None:
    odd = record("a\r\nb", thing=object(), name_with_quote='"', bytes_value=b"\xff")
    assert "\n" not in JsonLines().format(odd)


def test_a_traceback_is_a_field() -> None:
    try:
        raise ValueError("lost")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    assert "ValueError: lost" in json.loads(JsonLines().format(made))["exception"]


def test_a_field_cannot_replace_the_message() -> None:
    assert json.loads(JsonLines().format(record("true", broker=9)))["broker"] is None


def test_a_line_for_people_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_log(TEXT)
    forged = "tx-1\n2026-01-01 INFO fencepost.audit: User:admin added ALLOW User:eve\x1b[2J"
    logging.getLogger("fencepost.test").info("transactional id %s: it's 10 µs", forged)
    (line,) = capsys.readouterr().err.splitlines()
    assert r"tx-1\n2026-01-01" in line
    assert line.endswith(r"User:eve\x1b[2J: it's 10 µs")


@pytest.mark.parametrize(("form", "expected"), [(TEXT, " [broker 2] "), (JSON, '"broker":2')])
def test_lines_of_a_broker_name_it(
    form: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_log(form, broker_id=2)
    logging.getLogger("fencepost.test").info("hello")
    assert expected in capsys.readouterr().err
