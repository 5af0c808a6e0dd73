"""Logs at the start of a query why its next batch will be refused.

If the user's function catches a failure of the sink, Spark considers the batch written. The next
call of the sink is refused, in this run or, by the ledger, in a later one. But a query that is
restarted while there is nothing to read makes no call, and looks healthy.

So a sink listens for the start of queries, until its own query starts or until its first call. Its
own query is the one whose id is in its ledger: the checkpoint knows which batch comes next, and the
ledger decides about it now as it will then. A refusal is logged. It cannot be raised, because no
code of the sink runs within `start`; the batch itself is refused when it comes.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from fencepost.spark.engine.micro_batch import find_run
from fencepost.spark.engine.session import is_connect

if TYPE_CHECKING:
    from fencepost.spark.doors.foreach_batch import TransactionalSink

log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 5.0
"""How long the start of a query waits for the brokers to answer."""


def watch_start(sink: TransactionalSink) -> Callable[[], None] | None:
    """Listens for the start of the sink's query; the result ends that."""
    try:
        session = SparkSession.active()  # That of this thread, else the application's.
    except Exception:
        log.debug("there is no session yet", exc_info=True)
        return None
    if is_connect(session):
        return None
    listener = StartListener(session, sink)
    try:
        session.streams.addListener(listener)
    except Exception:
        log.debug("the start of the query cannot be watched", exc_info=True)
        return None
    return listener.end


class StartListener(StreamingQueryListener):
    """Asks the ledger of one sink when a query starts."""

    def __init__(self, session: SparkSession, sink: TransactionalSink) -> None:
        self._session = session
        self._sink = weakref.ref(sink)
        self._is_known = False
        self._owner: str | None = None
        """The query of the ledger, once that is known."""

    def end(self) -> None:
        """Stops listening."""
        try:
            self._session.streams.removeListener(self)
        except Exception:
            log.debug("the listener could not be removed", exc_info=True)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        sink, query_id = self._sink(), str(event.id)
        if sink is None:
            self.end()
            return
        next_id = find_run(self._session, query_id).next_batch_id()
        # Other queries of the application start here, too. The brokers are asked once.
        if next_id is None or (self._is_known and self._owner != query_id):
            return
        check = threading.Thread(target=self._check, args=(sink, query_id, next_id), daemon=True)
        check.start()
        # Spark waits for this call, and the brokers may not answer.
        check.join(WAIT_SECONDS)
        if check.is_alive():
            self.end()

    def _check(self, sink: TransactionalSink, query_id: str, next_id: int) -> None:
        try:
            self._owner, refusal = sink.find_refusal(query_id, next_id)
            self._is_known = True
        except Exception:
            log.debug("the next batch cannot be checked", exc_info=True)
            self.end()
            return
        if self._owner == query_id:
            self.end()
        if refusal:
            log.error("fencepost: the next batch of this query will be refused: %s", refusal)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass
