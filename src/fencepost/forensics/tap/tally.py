"""Counts what passes through a tap, for the line at its end."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fencepost.records.trace import Body


class Tally:
    """Requests, errors by name, bytes and connections."""

    def __init__(self) -> None:
        self.requests = 0
        self.undecoded = 0
        self.errors: Counter[str] = Counter()
        self.request_bytes = 0
        self.reply_bytes = 0
        self.connections = 0

    def add(self, line: Body) -> None:
        """Counts one line."""
        kind = line["kind"]
        if kind == "request":
            self.requests += 1
            self.undecoded += line.get("decoded") is False
            self.request_bytes += line["size_bytes"]
        elif kind == "reply":
            self.reply_bytes += line["size_bytes"]
            self.errors.update(line.get("errors", ()))
        elif line.get("event") == "opened":
            self.connections += 1

    def as_line(self, now_us: int) -> Body:
        """Returns the last line of a trace."""
        return {"time_us": now_us, "kind": "summary", **self.fields()}

    def fields(self) -> dict[str, Any]:
        """Returns the counts."""
        return {
            "requests": self.requests,
            "undecoded_requests": self.undecoded,
            "errors": dict(self.errors.most_common()),
            "request_bytes": self.request_bytes,
            "reply_bytes": self.reply_bytes,
            "connections": self.connections,
        }
