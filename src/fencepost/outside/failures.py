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
