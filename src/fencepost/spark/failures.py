"""The exceptions of the Spark room; each message says what was not done and what to change."""

# Named for what happened, as in the client room.
# ruff: noqa: N818

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from fencepost.base.failures import FencepostError

NOTHING_WRITTEN: Final = "Nothing of the batch was written"
"""The outcome that a transaction guarantees."""


class SinkRefused(FencepostError):
    """The sink refuses to write this batch, because it could not guarantee exactly-once."""


class SinkFenced(SinkRefused):
    """Another producer has taken over the transactional id: this sink must not use it again."""


class RowRefused(FencepostError):
    """A row cannot become a record. Nothing of its batch was written."""

    @classmethod
    def found_in(cls, text: str) -> RowRefused | None:
        """The refusal that a task raised, from the text of Spark's exception."""
        if f"{cls.__module__}.{cls.__qualname__}: " not in text:
            return None
        return cls(sentence_in(text))


class BatchTooLarge(FencepostError):
    """A topic refused a batch for its size: it is retried with smaller ones."""

    def __init__(self, topic: str, records: int, size_bytes: int) -> None:
        super().__init__(
            f"topic {topic!r} does not take a batch of {records} records and {size_bytes} bytes"
        )
        self.topic = topic
        self.records = records
        self.size_bytes = size_bytes

    def __reduce__(self) -> tuple[type, tuple[str, int, int]]:
        return type(self), (self.topic, self.records, self.size_bytes)

    @classmethod
    def found_in(cls, text: str) -> BatchTooLarge | None:
        """The refusal that a task raised, from the text of Spark's exception."""
        found = _TOO_LARGE.search(text)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]))


class ModuleMissing(SinkRefused):
    """The Python of the executors lacks fencepost or one of its dependencies."""

    @classmethod
    def found_in(cls, text: str) -> ModuleMissing | None:
        """The missing module, from the text of Spark's exception; None if it is not one of ours."""
        for name in _MISSING.findall(text):
            if name in ("fencepost", *EXECUTOR_PACKAGES):
                return cls(
                    f"the Python of the executors has no module {name!r}: install fencepost[spark] "
                    "there, or ship an environment with --archives (spark.pyspark.python names its "
                    "Python). --py-files carries fencepost alone, as a .zip, and not the packages "
                    f"with native code that it needs: {', '.join(EXECUTOR_PACKAGES)}. Nothing of "
                    "the batch was written"
                )
        return None


class SinkStopped(FencepostError):
    """The query was stopped in the middle of a batch. The transaction was aborted."""


class CountsDisagree(FencepostError):
    """The reports of the tasks do not add up: the transaction is aborted."""


class PermitRefused(FencepostError):
    """Spark ran a task of the write stage again: the attempt of the job is given up."""


class AttemptFailed(Exception):
    """The driver has cancelled the job of an attempt; with the text of the task's error.

    It is read like Spark's own exception about a failed job (`found_in`, `sentence_of`).
    """


class SourceReplaced(FencepostError):
    """A source topic was deleted and created again: the attempt is aborted and repeated."""

    def __init__(self, topics: Collection[str]) -> None:
        super().__init__(
            f"{', '.join(sorted(topics))}: deleted and created again since the batch was "
            "planned, so its offsets there "
            "mean nothing any more. The attempt is repeated without them"
        )


class SinkFailed(FencepostError):
    """The job of a batch failed, retries included. The transaction was aborted."""


class PeerLost(FencepostError):
    """Another task of the write stage, or the driver, cannot be reached: the job fails."""


class EntryUnreadable(FencepostError):
    """This version cannot read a record of the ledger."""


class AuditFailed(FencepostError):
    """The job of an audit failed. It changed nothing."""


class BrokersUnreachable(FencepostError):
    """No broker of the source's cluster answers at the given addresses."""


class DataLost(FencepostError):
    """Records were deleted before the query read them (failOnDataLoss)."""

    @classmethod
    def found_in(cls, text: str) -> DataLost | None:
        """What the source reported, from the text of Spark's exception."""
        if f"{cls.__module__}.{cls.__qualname__}: " not in text:
            return None
        return cls(sentence_in(text))


EXECUTOR_PACKAGES: Final = ("cramjam", "crc32c", "numpy", "pandas", "pyarrow")
"""What the Python of executors must have besides fencepost; docs/deploy.md lists them."""

_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_TOO_LARGE: Final = re.compile(
    r"BatchTooLarge: topic '([a-zA-Z0-9._-]+)' does not take a batch of (\d+) records and (\d+) "
    r"bytes"
)
_EXCERPT_CHARACTERS: Final = 2_000


def sentence_of(problem: BaseException) -> str:
    """The message of a task's error, from the text of Spark's exception.

    Spark wraps the error of a task in two tracebacks and a plan, which the driver's log has in
    full. This returns fencepost's message if there is one, and otherwise the start of the text:
    Spark parses messages with a regular expression that overflows its stack on long ones.
    """
    return sentence_in(str(problem))


def reason_of(problem: BaseException) -> str:
    """The sentence that matters in an exception of Spark, such as StreamingQueryException."""
    return reason_in(str(problem))


def reason_in(text: str) -> str:
    """The same for the text of an exception: ours if there is one, else the innermost error."""
    found = _ours_in(text)
    if found is not None:
        return found
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    first = errors[-1] if _TRACEBACK in text and errors else next(iter(lines), "no reason given")
    return first.strip()[:_EXCERPT_CHARACTERS]


_TRACEBACK: Final = "Traceback (most recent call last):"
_ERROR_LINE: Final = re.compile(r"(?!org\.|java\.|scala\.|py4j\.|Caused by)[A-Za-z_][\w.]*: \S")
"""The last line of a Python traceback: a class and its message."""


def sentence_in(text: str) -> str:
    """The same as `sentence_of`, from the text itself."""
    found = _ours_in(text)
    if found is not None:
        return found
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("at ")]
    return "\n".join(lines)[:_EXCERPT_CHARACTERS]


_OURS: Final = re.compile(r"\bfencepost(?:\.\w+)*\.[A-Z]\w*: (.+)")
"""One of our classes and its message: on a line of its own in a traceback, or behind the words that
Spark puts before an error of a data source."""


def _ours_in(text: str) -> str | None:
    for line in reversed(text.splitlines()):
        if (found := _OURS.search(line)) is not None:
            return found[1].strip()
    return None
