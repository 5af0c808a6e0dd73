"""Says at the start of a query what its next batch will be refused for.

If the user's function catches a failure of the sink, Spark takes the batch for written. The next
call of the sink is refused, in this run or, by the ledger, in a later one. But a query that is
started again while there is nothing to read makes no call, and looks as if all were well.

So a sink listens for the start of queries, until that of its own or until its first call. A query
whose id the ledger of the sink has is its own: the checkpoint knows which batch comes next, and the
ledger decides about it as it will when it comes. A refusal is logged. It cannot be raised, because
no code of the sink runs within `start`; the batch itself is refused when it comes.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fencepost.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.spark.sink.sink import TransactionalSink

log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 5.0
"""How long the start of a query waits for the brokers to answer."""

Stop = Callable[[], None]


def watch_start(sink: TransactionalSink) -> Stop:
    """Listens for the start of the sink's query; the result ends that."""
    if "pyspark" not in sys.modules:
        return _nothing
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or is_connect(session):
        return _nothing
    listener = _make_listener(session, weakref.ref(sink))
    try:
        session.streams.addListener(listener)
    except Exception:
        log.debug("the start of the query cannot be watched", exc_info=True)
        return _nothing
    return lambda: _remove(session, listener)


def _nothing() -> None:
    pass


def _remove(session: SparkSession, listener: Any) -> None:
    try:
        session.streams.removeListener(listener)
    except Exception:
        log.debug("the listener could not be removed", exc_info=True)


def _make_listener(session: SparkSession, sink: weakref.ReferenceType[TransactionalSink]) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class StartListener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            found = sink()
            if found is None:
                _remove(session, self)
                return
            # Spark waits for this call. The brokers may not answer.
            check = threading.Thread(target=self._check, args=(found, str(event.id)), daemon=True)
            check.start()
            check.join(WAIT_SECONDS)

        def _check(self, found: TransactionalSink, query_id: str) -> None:
            if _is_query_of(found, session, query_id):
                _remove(session, self)

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

    return StartListener()


def _is_query_of(sink: TransactionalSink, session: SparkSession, query_id: str) -> bool:
    """Whether the sink knows this query; logs what its next batch will be refused for."""
    try:
        refusal = sink.find_refusal(session, query_id)
    except Exception:
        log.debug("what comes next is not known", exc_info=True)
        return False
    if refusal:
        log.error("fencepost: the next batch of this query will be refused: %s", refusal)
    return refusal is not None
