"""The exceptions of the Spark room; each message says what was not done and what to change."""

# Named for what happened, as in the client room.
# ruff: noqa: N818

from __future__ import annotations

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


class ModuleMissing(SinkRefused):
    """The Python of the executors lacks fencepost or one of its dependencies."""


class SinkStopped(FencepostError):
    """The query was stopped in the middle of a batch. The transaction was aborted."""


class CountsDisagree(FencepostError):
    """The reports of the tasks do not add up: the transaction is aborted."""


class PermitRefused(FencepostError):
    """Spark ran a task of the write stage again: the attempt of the job is given up."""


class AttemptFailed(Exception):
    """The driver has cancelled the job of an attempt; with the text of the task's error.

    It is read like Spark's own exception about a failed job (`sentences.py`).
    """


class SinkFailed(FencepostError):
    """The job of a batch failed, retries included. The transaction was aborted."""


class QueryFailed(SinkFailed):
    """The query's own code or values failed: another attempt would fail again.

    The transaction was aborted.
    """


class PeerLost(FencepostError):
    """Another task of the write stage, or the driver, cannot be reached: the job fails."""


class EntryUnreadable(FencepostError):
    """This version cannot read a record of the ledger."""


class AuditFailed(FencepostError):
    """The job of an audit failed. It changed nothing."""


class SourceRefused(FencepostError):
    """The source refuses to read: a password of the brokers travelled in the clear."""


class BrokersUnreachable(FencepostError):
    """No broker of the source's cluster answers at the given addresses."""


class DataLost(FencepostError):
    """Records were deleted before the query read them (failOnDataLoss)."""


EXECUTOR_PACKAGES: Final = ("cramjam", "crc32c", "numpy", "pandas", "pyarrow")
"""What the Python of executors must have besides fencepost; docs/deploy.md lists them."""
