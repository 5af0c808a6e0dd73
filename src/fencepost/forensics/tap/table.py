"""The live table: one row per exchange, printed when its reply has come.

Rows have fixed columns, so that they can be read while they scroll. What does not fit is cut; the
JSON lines have all of it.
"""

from __future__ import annotations

from typing import Final

from fencepost.forensics.tap.wording import TopicNames, cut, in_words, moment
from fencepost.records.trace import Body

_RED: Final = "\x1b[31m"
_PLAIN: Final = "\x1b[0m"
MAX_WAITING: Final = 10_000
"""Requests whose reply may still come."""
_WIDTHS: Final = (15, 4, 12, 6, 22, 9)
"""Time, connection, client id, broker, API and version, milliseconds."""
_NARROW_WIDTHS: Final = (12, 4, 0, 0, 20, 8)
"""Below 110 columns: time to the millisecond, and neither client id nor broker."""
_WIDE: Final = 110
_TO_THE_RIGHT: Final = (1, 5)


class Table:
    """Turns lines into rows."""

    def __init__(self, width: int, *, colour: bool) -> None:
        self._width = max(width, 80)
        self._widths = _WIDTHS if width >= _WIDE else _NARROW_WIDTHS
        self._colour = colour
        self._waiting: dict[tuple[int, int], Body] = {}
        self._names = TopicNames()

    def heading(self) -> str:
        """The names of the columns."""
        titles = ("UTC", "conn", "client id", "broker", "API", "ms")
        return self._row(titles, "what") + "\n"

    def row(self, line: Body) -> str | None:
        """The row of a line, if it has one."""
        kind = line.get("kind")
        if kind == "request":
            if len(self._waiting) >= MAX_WAITING:
                del self._waiting[next(iter(self._waiting))]
            self._waiting[line["connection"], line["correlation_id"]] = line
            return None
        self._names.learn(line)
        if kind == "reply":
            return self._reply(line)
        if kind == "connection":
            return self._connection(line)
        return None

    def _reply(self, line: Body) -> str:
        request = self._waiting.pop((line["connection"], line.get("correlation_id", 0)), None)
        what = in_words(request or line, line, self._names)
        errors = " ".join(line.get("errors", ()))
        throttle = (line.get("body") or {}).get("throttle_time_ms")
        if throttle:
            what = f"throttled for {throttle} ms, {what}"
        return self._painted(self._cells(line), f"{errors}  {what}" if errors else what, errors)

    def _connection(self, line: Body) -> str | None:
        event, reason = line["event"], line.get("reason", "")
        lost = []
        if event == "closed":
            lost = [key for key in self._waiting if key[0] == line["connection"]]
        rows = []
        for key in lost:
            request = self._waiting.pop(key)
            what = f"no reply  {in_words(request, None, self._names)}"
            if request["api"] != "Produce" or request.get("body", {}).get("acks") != 0:
                rows.append(self._painted(self._cells(request), what, "x"))
        if event in ("failed", "not_decoded", "refused"):
            cells = (moment(line["time_us"]), str(line.get("connection", "")), "", "", event, "")
            rows.append(self._painted(cells, reason, "x"))
        return "".join(rows) or None

    def _cells(self, line: Body) -> tuple[str, ...]:
        duration = f"{line['duration_us'] / 1000:.3f}" if "duration_us" in line else ""
        return (
            moment(line["time_us"]),
            str(line["connection"]),
            line.get("client_id") or "",
            str(line.get("broker", "")),
            f"{line['api']} {line['api_version']}" if line.get("api") else "?",
            duration,
        )

    def _painted(self, cells: tuple[str, ...], what: str, errors: str) -> str:
        row = self._row(cells, what)
        if errors and self._colour:
            return f"{_RED}{row}{_PLAIN}\n"
        return row + "\n"

    def _row(self, cells: tuple[str, ...], what: str) -> str:
        parts = []
        for number, (cell, width) in enumerate(zip(cells, self._widths, strict=True)):
            if not width:
                continue
            # A time may lose its microseconds, which is no cut that needs a sign.
            shown = cell[:width] if number == 0 else cut(cell, width)
            parts.append(shown.rjust(width) if number in _TO_THE_RIGHT else shown.ljust(width))
        start = " ".join(parts)
        return f"{start} {cut(what, self._width - len(start) - 1)}".rstrip()


def lost_as_row(count: int) -> str:
    """The row that stands for those that the terminal was too slow for."""
    return f"... {count} rows are not shown: the terminal is too slow\n"
