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

    def __init__(self, timers: Timers, logger: logging.Logger = log) -> None:
        self._timers = timers
        self._log = logger
        self._seen: dict[tuple[str, str | None], int] = {}
        """Events of the running second, by kind and by who causes them."""

    def note(
        self, kind: str, sentence: str, fields: dict[str, object], *, of: str | None = None
    ) -> None:
        """Logs an event, or counts it if this second has had enough of its kind.

        With `of`, the name of whoever causes it, each of them is counted alone: one that is noisy
        hides no line of another.
        """
        counted = (kind, of)
        seen = self._seen.get(counted, 0)
        if seen == 0:
            self._timers.call_later(1_000, partial(self._end_second, counted))
        self._seen[counted] = seen + 1
        if seen < LINES_PER_SECOND:
            self._log.info("%s", sentence, extra={"event": kind, **fields})

    def _end_second(self, counted: tuple[str, str | None]) -> None:
        left_out = self._seen.pop(counted, 0) - LINES_PER_SECOND
        if left_out > 0:
            kind, of = counted
            self._log.info(
                "and %s more of the event `%s`%s within a second",
                f"{left_out:,}",
                kind,
                "" if of is None else f" by {of}",
                extra={"event": kind, "left_out": left_out} | ({} if of is None else {"by": of}),
            )
