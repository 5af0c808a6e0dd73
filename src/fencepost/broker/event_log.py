"""Log lines for events that clients cause, at most so many a second.

A timeout, a fence and an abort deserve a line each, because each explains an error that somebody
will see in an application. Two instances of an application with the same transactional id, however,
fence each other thousands of times a second. So each kind of event has `LINES_PER_SECOND`; the rest
of the second is counted and reported with one more line.

Fields go to the log record as attributes, so that `--log-format json` has them by name.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from fencepost.broker.runtime import Timers

log = logging.getLogger(__name__)

LINES_PER_SECOND: Final = 20
"""Per kind of event: enough to read along, and less than 10 KB a second."""


class EventLog:
    """The events of one broker."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._seen: dict[str, int] = {}
        """Events of the running second, by kind."""

    def note(self, kind: str, sentence: str, fields: dict[str, object]) -> None:
        """Logs an event, or counts it if this second has had enough of its kind."""
        seen = self._seen.get(kind, 0)
        if seen == 0:
            self._timers.call_later(1_000, partial(self._end_second, kind))
        self._seen[kind] = seen + 1
        if seen < LINES_PER_SECOND:
            log.info("%s", sentence, extra={"event": kind, **fields})

    def _end_second(self, kind: str) -> None:
        left_out = self._seen.pop(kind, 0) - LINES_PER_SECOND
        if left_out > 0:
            log.info(
                "and %s more of the event `%s` within a second",
                f"{left_out:,}",
                kind,
                extra={"event": kind, "left_out": left_out},
            )
