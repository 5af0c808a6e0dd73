"""The log of a process on standard error: lines for people, or one JSON object per line.

    {"time": "2026-11-17T09:46:51.123Z", "level": "INFO", "logger": "fencepost.broker.event_log",
     "broker": 1, "message": "transactional id refunds-0: ...", "event": "transaction_timed_out",
     "transactional_id": "refunds-0", "producer_id": 1000, "producer_epoch": 4, ...}

The fields after `message` are those that a line has in `extra`; docs/reference/log.md lists them.
A traceback is in `exception`. `broker` is null in the lines of a cluster's parent process.

In lines for people what cannot be printed is escaped: clients choose their ids, and must not write
lines of their own.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

TEXT: Final = "text"
JSON: Final = "json"

_OWN_ATTRIBUTES: Final = frozenset(
    logging.LogRecord("", 0, "", 0, "", (), None).__dict__.keys() | {"message", "asctime"}
)


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.broker_id: int | None = None

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "broker": self.broker_id,
            "message": record.getMessage(),
        }
        for name, value in record.__dict__.items():
            if name not in _OWN_ATTRIBUTES and name not in line:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, separators=(",", ":"))


class TextLines(logging.Formatter):
    """Formats a record as one line of text; a traceback follows it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of logging
        """The line."""
        record.message = escaped(record.message)
        return super().formatMessage(record)


def escaped(text: str) -> str:
    """A text as a part of one line: what cannot be printed is escaped."""
    return text if text.isprintable() else repr(text)[1:-1]


def set_up_log(form: str, *, level: str = "INFO", broker_id: int | None = None) -> None:
    """Writes the log of this process to standard error; text lines name a broker if it is given."""
    named = "" if broker_id is None else f" [broker {broker_id}]"
    formatter: logging.Formatter = (
        JsonLines()
        if form == JSON
        else TextLines(f"%(asctime)s %(levelname)s{named} %(name)s: %(message)s")
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if broker_id is not None:
        name_broker(broker_id)


def name_broker(broker_id: int) -> None:
    """Sets the broker of JSON lines, once the settings have told it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonLines):
            handler.formatter.broker_id = broker_id
