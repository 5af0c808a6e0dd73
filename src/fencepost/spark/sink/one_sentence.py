"""What a user sees first when a call of the sink fails: one sentence.

Spark turns an exception of the user's function into text: py4j's traceback, twice, within two Java
stack traces and a plan, some 250 lines. It arrives that way in the log, and as the
StreamingQueryException of `awaitTermination`. Nothing can be put before it there, so:

- the sink logs the sentence at the moment of the failure, before Spark logs its lines;
- the exception leaves the sink without the sink's own frames and causes, which are for our own
  debugging (they are logged at DEBUG level), so that the sentence is near the top of that text;
- `fencepost.spark.reason_of` finds it in an exception of Spark.

It also warns while a cluster does not answer: until the client gives up, a query that cannot reach
its brokers looks like one that has nothing to do.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fencepost.base.failures import FencepostError
from fencepost.client.failures import RetriesExhausted
from fencepost.spark.failures import NOTHING_WRITTEN, SinkFailed, SinkStopped

if TYPE_CHECKING:
    from fencepost.client.options import ClientOptions

log = logging.getLogger(__name__)

Call = TypeVar("Call", bound=Callable[..., None])

SILENCE_SECONDS: Final = 5.0
"""How long a cluster may not answer before that is worth a line."""


def in_one_sentence(call: Call) -> Call:
    """Logs the sentence of a failing call of the sink, and drops its frames."""

    @functools.wraps(call)
    def run(*args: Any, **changes: Any) -> None:
        try:
            call(*args, **changes)
        except FencepostError as problem:
            if not isinstance(problem, SinkStopped):
                log.error("fencepost: %s", problem)
            log.debug("%s", type(problem).__name__, exc_info=True)
            raise problem.with_traceback(None) from None

    return run  # type: ignore[return-value]


@contextmanager
def while_reaching(options: ClientOptions, outcome: str = NOTHING_WRITTEN) -> Iterator[None]:
    """Warns if the cluster does not answer; SinkFailed says so when the client gives up."""
    servers = ",".join(map(str, options.bootstrap))
    warning = threading.Timer(SILENCE_SECONDS, _warn, (servers, options.default_api_timeout_ms))
    warning.daemon = True
    warning.start()
    try:
        yield
    except RetriesExhausted as problem:
        raise SinkFailed(
            f"the cluster at {servers} does not answer: {problem}. Start its brokers, or "
            f"correct the first argument of the sink. {outcome}"
        ) from problem
    finally:
        warning.cancel()


def _warn(servers: str, timeout_ms: int) -> None:
    log.warning(
        "fencepost: the cluster at %s has not answered for %.0f s; trying for up to %.0f s per "
        "request. Check that its brokers run, and the first argument of the sink",
        servers,
        SILENCE_SECONDS,
        timeout_ms / 1_000,
    )
