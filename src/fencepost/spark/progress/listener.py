"""Spark's events about queries, passed on to the board.

Spark calls these functions on the thread that serves all listeners, so they do little; and an
exception would end up in the log of the JVM for every event, so none leaves them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from fencepost.spark.engine.versions import progress_of
from fencepost.spark.sentences import reason_in

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from fencepost.spark.progress.board import Board, QueryStatus

log = logging.getLogger(__name__)


class BoardListener(StreamingQueryListener):
    """Changes the board, and tells `changed` which query it was."""

    def __init__(self, board: Board, changed: Callable[[QueryStatus], None]) -> None:
        self._board = board
        self._changed = changed

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self._apply(lambda: self._board.start(str(event.id), str(event.runId), event.name))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._apply(lambda: self._board.progress(progress_of(event.progress)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._apply(lambda: self._board.idle(str(event.id), str(event.runId)))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._apply(lambda: self._end(event))

    def _end(self, event: QueryTerminatedEvent) -> QueryStatus | None:
        error = None if event.exception is None else reason_in(event.exception)
        return self._board.end(str(event.id), str(event.runId), error)

    def _apply(self, change: Callable[[], QueryStatus | None]) -> None:
        try:
            status = change()
            if status is not None:
                self._changed(status)
        except Exception:
            log.debug("an event of Spark could not be shown", exc_info=True)
