"""The exceptions of this room. Every message says what to do, and none has a password."""

# ruff: noqa: N818 - they are named for what is the case.

from __future__ import annotations

from fencepost.base.failures import FencepostError


class OutsideError(FencepostError):
    """The base class of this room's exceptions."""


class ExtraMissing(OutsideError):
    """The packages of the `postgres` extra are not installed."""


class DatabaseUnavailable(OutsideError):
    """The database cannot be reached now, or the connection was lost. A retry may succeed."""


class DatabaseRefused(OutsideError):
    """The database does not do what it was asked to; a retry will not change that."""


class KafkaRefused(OutsideError):
    """Kafka does not give the consumer what it needs; a retry will not change that."""


class PositionRefused(OutsideError):
    """A stored position does not fit its topic; the message has the statement that accepts it."""


class ConsumerFenced(OutsideError):
    """The batch was rolled back, because a partition of it belongs to another consumer by now."""


class BatchMisused(OutsideError):
    """A batch or a consumer was used as it cannot be; nothing was written."""
