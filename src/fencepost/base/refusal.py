"""A refusal: the result of a check that fails, from a batch or a setting to the reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fencepost.base.errors import ErrorCode


class Refusal(NamedTuple):
    """Why a request, or a part of it, has no effect: the code for the client and a message."""

    error: ErrorCode
    message: str
    record_errors: Sequence[tuple[int, str]] = ()
    """The records at fault, by their index in the batch, each with a message."""
