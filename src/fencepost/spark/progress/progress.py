"""`Progress`: shows what the queries of a session do, and has it as values.

    with Progress(spark):
        query.awaitTermination()

It may be started before or after the queries, and more than once. Spark delivers its last events
after a query has ended, so `stop` waits a moment for them.

Spark calls its listeners on one thread, so ours do little; and an exception would end up in the log
of the JVM for every event, so none leaves them.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self, TextIO

from pyspark.sql.streaming.listener import StreamingQueryListener

from fencepost.base.arguments import checked
from fencepost.spark.engine.session import await_events
from fencepost.spark.engine.versions import progress_of
from fencepost.spark.installation import require_spark
from fencepost.spark.progress.board import Board, QueryStatus
from fencepost.spark.progress.screens import LINE_SECONDS, Screen, choose_screen
from fencepost.spark.progress.words import html_of, line_of
from fencepost.spark.sentences import reason_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger(__name__)

LAST_EVENTS_SECONDS: Final = 2.0
"""How long `stop` waits for the last events."""


@checked
class Progress:
    """The queries of a session: rate, lag, commits, retries.

    `show=False` shows nothing: `queries` has the values. `output` is a file, by default the
    standard error. `interval_seconds` is the time between two lines of a query where the output is
    not a terminal.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        show: bool = True,
        output: TextIO | None = None,
        interval_seconds: float = LINE_SECONDS,
    ) -> None:
        require_spark()
        self._spark = spark
        self._show = show
        self._output = output
        self._interval = interval_seconds
        self._board = Board()
        self._screen: Screen | None = None
        self._listener: BoardListener | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return "\n".join(map(line_of, self.queries)) or "<Progress: no queries yet>"

    def _repr_html_(self) -> str:
        return html_of(self.queries)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def queries(self) -> tuple[QueryStatus, ...]:
        """The queries that were seen, oldest first, as they are now."""
        return self._board.snapshot()

    def start(self) -> Self:
        """Begins to listen and to show; does nothing if it has begun already."""
        with self._lock:
            if self._listener is not None:
                return self
            listener = BoardListener(self._board, self._update)
            self._spark.streams.addListener(listener)
            self._listener = listener
            self._find_running()
            if self._show:
                output = sys.stderr if self._output is None else self._output
                self._screen = choose_screen(lambda: self.queries, output, self._interval)
                self._screen.open()
        return self

    def stop(self) -> None:
        """Waits for the last events, and stops listening. The values stay."""
        with self._lock:
            listener, self._listener = self._listener, None
            if listener is None:
                return
            for step in (self._await_events, lambda: self._spark.streams.removeListener(listener)):
                try:
                    step()
                except Exception:
                    log.debug("the listener could not be removed", exc_info=True)
            screen, self._screen = self._screen, None
            if screen is not None:
                screen.close()

    def _update(self, status: QueryStatus) -> None:
        screen = self._screen
        if screen is not None:
            screen.update(status)

    def _find_running(self) -> None:
        """The queries that have started already: Spark has told about them before."""
        for query in self._spark.streams.active:
            self._board.start(str(query.id), str(query.runId), query.name)
            if query.lastProgress is not None:
                self._board.progress(progress_of(query.lastProgress))

    def _await_events(self) -> None:
        await_events(self._spark, LAST_EVENTS_SECONDS)


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
