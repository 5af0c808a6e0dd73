"""What went wrong, in one sentence: for every door of the room.

Spark wraps an error in its own words. What a job raises has two tracebacks and a plan around the
error of a task; what leaves the function of foreachBatch comes back as 250 lines of py4j and Java;
what a data source raises has its traceback before its message. Everywhere the log has all of it,
and the user gets the sentence:

- `failure_of_job` reads what a job of the sink raised, and makes it one of `failures.py`;
  `is_final` says whether another attempt can help. Spark itself repeats a failed task before that,
  four times by default, but never one of a barrier stage;
- `told` logs the sentence of a failing call, and drops the sink's own frames and causes, so that
  the sentence is near the top of what Spark prints;
- `while_reaching` warns while brokers are silent;
- `plain_errors` makes Spark show an error of a source or a format without its traceback;
- `reason_of` finds the sentence in any exception of Spark, for the user's own program.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.client.failures import RetriesExhausted
from fencepost.spark.engine.private_names import PROCESSES
from fencepost.spark.engine.versions import words_of_a_stop
from fencepost.spark.engine.workers_python import is_started_by_spark
from fencepost.spark.failures import (
    EXECUTOR_PACKAGES,
    NOTHING_WRITTEN,
    BatchTooLarge,
    BrokersUnreachable,
    DataLost,
    ModuleMissing,
    QueryFailed,
    RowRefused,
    SinkFailed,
    SinkRefused,
    SinkStopped,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fencepost.client.options import ClientOptions
    from fencepost.spark.engine.micro_batch import MicroBatch

log = logging.getLogger(__name__)

SILENCE_SECONDS: Final = 5.0
"""How long a cluster may not answer before that is worth a line."""

_EXCERPT_CHARACTERS: Final = 2_000
_TRACEBACK: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'\s+File "([^"]+)", line (\d+), in (\S+)')
_LIBRARY: Final = re.compile(
    r"[/\\](?:site-packages|pyspark|py4j|lib[/\\]python3[.\d]*)[/\\]|<frozen"
)
_OUR_CODE: Final = re.compile(r"[/\\]fencepost[/\\]")
_REFUSED_VALUE: Final = re.compile(r"\[[A-Z][\w.]*\] .*SQLSTATE: 22\w{3}")
"""A value that SQL refuses, such as a division by zero: SQLSTATE class 22, data exception."""
_OURS: Final = re.compile(r"\bfencepost(?:\.\w+)*\.[A-Z]\w*: (.+)")
"""One of our classes and its message: on a separate line of a traceback, or behind the words that
Spark puts before an error of a data source."""
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_TOO_LARGE: Final = re.compile(
    r"BatchTooLarge: topic '([a-zA-Z0-9._-]+)' does not take a batch of (\d+) records and (\d+) "
    r"bytes"
)
_REAL_TIME: Final = re.compile(
    r"\[STREAMING_REAL_TIME_MODE\.\w+\].*(?:ForeachBatchSink|\.python\.Python)"
)
"""How Spark refuses foreachBatch, and data sources in Python. It does so before it calls them."""
REAL_TIME: Final = (
    "Spark's Real-Time Mode runs neither foreachBatch nor a source or sink in Python: leave "
    "trigger(realTime=...) out and use TransactionalSink, which commits every batch as soon as its "
    "rows are written; or stay there with Spark's own kafka source and sink, which are "
    "at-least-once"
)

Failure = TypeVar("Failure", bound=FencepostError)


# Sentences in the text of an exception.


def sentence_in(text: str) -> str:
    """Our own message in this text, or else that of a user's function, or else its start.

    Only the start: Spark parses messages with a regular expression that overflows its stack on long
    ones.
    """
    found = _ours_in(text)
    if found is not None:
        return found
    if (raised := find_raised(text)) is not None:
        return str(raised)
    if (refused := _REFUSED_VALUE.search(text)) is not None:
        return refused[0][:_EXCERPT_CHARACTERS]
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("at ")]
    return "\n".join(lines)[:_EXCERPT_CHARACTERS]


class Raised(NamedTuple):
    """What the last Python traceback of a text says."""

    error: str
    """The class and the first line of its message."""
    file: str
    line: str
    function: str
    is_ours: bool
    """Whether code of this package was at work."""

    def __str__(self) -> str:
        return f"{self.error} (line {self.line} of {self.file}, in {self.function})"


def find_raised(text: str) -> Raised | None:
    """Where a user's function failed: the innermost frame outside of libraries, if there is one."""
    _, found, traceback = text.rpartition(_TRACEBACK)
    frames = []
    for line in traceback.splitlines()[1:] if found else ():
        if frame := _FRAME.match(line):
            frames.append(frame)
        elif frames and line[:1].strip():
            own = [each for each in frames if not _LIBRARY.search(each[1])] or frames
            is_ours = any(_OUR_CODE.search(each[1]) for each in frames)
            file, number, function = own[-1].groups()
            error = line.strip()[:_EXCERPT_CHARACTERS]
            return Raised(error, file, number, function, is_ours)
    return None


def reason_of(problem: BaseException) -> str:
    """The sentence that matters in an exception of Spark, such as StreamingQueryException."""
    return reason_in(str(problem))


def reason_in(text: str) -> str:
    """The same for the text of an exception: ours if there is one, else the innermost error."""
    found = _ours_in(text)
    if found is not None:
        return found
    if _REAL_TIME.search(text):
        return REAL_TIME
    if (raised := find_raised(text)) is not None:
        return str(raised)
    lines = (line for line in text.splitlines() if line.strip())
    return next(lines, "no reason given").strip()[:_EXCERPT_CHARACTERS]


def _ours_in(text: str) -> str | None:
    for line in reversed(text.splitlines()):
        if (found := _OURS.search(line)) is not None:
            return found[1].strip()
    return None


def find_failure(kind: type[Failure], text: str) -> Failure | None:
    """The failure of this class that a task raised, from the text of Spark's exception."""
    if f"{kind.__module__}.{kind.__qualname__}: " not in text:
        return None
    return kind(sentence_in(text))


def find_too_large(text: str) -> BatchTooLarge | None:
    """The batch that a topic refused for its size."""
    found = _TOO_LARGE.search(text)
    return None if found is None else BatchTooLarge(found[1], int(found[2]), int(found[3]))


def find_missing_module(text: str) -> ModuleMissing | None:
    """The module that the executors lack; None if it is not one that fencepost needs."""
    for name in _MISSING.findall(text):
        if name in ("fencepost", *EXECUTOR_PACKAGES):
            return ModuleMissing(
                f"the Python of the executors has no module {name!r}: install fencepost[spark] "
                "there, or ship an environment with --archives (spark.pyspark.python names its "
                "Python). --py-files carries fencepost alone, as a .zip, and not the packages "
                f"with native code that it needs: {', '.join(EXECUTOR_PACKAGES)}. "
                f"{NOTHING_WRITTEN}"
            )
    return None


# The job of a batch.


def failure_of_job(problem: Exception, df: DataFrame, micro_batch: MicroBatch) -> FencepostError:
    """The error to raise for whatever Spark, py4j or the user's functions raised in a job."""
    log.info("the job of batch %d failed", micro_batch.batch_id, exc_info=problem)
    text = str(problem)
    if micro_batch.is_stopping():
        return SinkStopped(
            f"the query was stopped in batch {micro_batch.batch_id}, and the batch was aborted. "
            f"Nothing of it is visible ({words_of_a_stop(micro_batch.run_id)})"
        )
    if df.isStreaming:
        return SinkRefused(
            f"the sink received a streaming DataFrame for batch {micro_batch.batch_id}: pass "
            "the DataFrame that Spark passes to your function, or one derived from it. "
            "Nothing was written"
        )
    lost = find_failure(DataLost, text)
    if lost is not None:
        lost = DataLost(f"batch {micro_batch.batch_id}: {lost}")
    return (
        find_missing_module(text)
        or find_too_large(text)
        or find_failure(RowRefused, text)
        or lost
        or _kind_of(text)(f"batch {micro_batch.batch_id}: {sentence_in(text)}")
    )


def _kind_of(text: str) -> type[SinkFailed]:
    """What failed may be lost and come back (an executor, a broker), or is the query's own."""
    if _ours_in(text) is not None:
        return SinkFailed
    raised = find_raised(text)
    if raised is None:
        return QueryFailed if _REFUSED_VALUE.search(text) else SinkFailed
    return SinkFailed if raised.is_ours or _LIBRARY.search(raised.file) else QueryFailed


def is_final(problem: Exception) -> bool:
    """Whether another attempt cannot help."""
    final = (SinkRefused, SinkStopped, RowRefused, DataLost, ConfigError, QueryFailed)
    return isinstance(problem, final)


# A call of the sink.


def told(problem: FencepostError) -> FencepostError:
    """Logs the sentence of a failing call, before Spark logs its lines; without our frames."""
    if not isinstance(problem, SinkStopped):
        log.error("fencepost: %s", problem)
    log.debug("%s", type(problem).__name__, exc_info=problem)
    return problem.with_traceback(None)


@contextmanager
def while_reaching(options: ClientOptions) -> Iterator[None]:
    """Warns if the cluster does not answer; SinkFailed says so when the client gives up.

    Until then a query that cannot reach its brokers looks like one that has nothing to do.
    """
    servers = ",".join(map(str, options.bootstrap))
    warning = threading.Timer(SILENCE_SECONDS, _warn, (servers, options.default_api_timeout_ms))
    warning.daemon = True
    warning.start()
    try:
        yield
    except RetriesExhausted as problem:
        raise SinkFailed(
            f"the cluster at {servers} does not answer: {problem}. Start its brokers, or "
            f"correct the first argument of the sink. {NOTHING_WRITTEN}"
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


# A source or a format, in the processes that Spark starts for it.


@contextmanager
def plain_errors(client: ClientOptions | None = None) -> Iterator[None]:
    """Makes Spark show the sentence of an error of ours, without a traceback.

    Spark leaves tracebacks out if SPARK_HIDE_TRACEBACK is set, which it looks up in that process
    when it formats the exception; afterwards the process ends. So it is set when an error of ours
    leaves our code, and every other error keeps its traceback.
    """
    try:
        yield
    except RetriesExhausted as problem:
        if client is None:
            raise
        servers = ",".join(map(str, client.bootstrap))
        _hide_traceback()
        raise BrokersUnreachable(
            f"the cluster at {servers} does not answer: start its brokers, or correct "
            f"kafka.bootstrap.servers ({problem})"
        ) from None
    except FencepostError:
        _hide_traceback()
        raise


def _hide_traceback() -> None:
    if is_started_by_spark():
        os.environ[PROCESSES.hide] = "1"
