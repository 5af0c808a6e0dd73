"""What the broker does after thousands of records, it does after a few in a random history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fencepost.broker import turns
from fencepost.broker.controller import checkpoint as metadata_checkpoint
from fencepost.broker.coordinators import checkpoint_keeper
from fencepost.broker.groups import slices

_SMALL: Final[tuple[tuple[Any, str, float], ...]] = (
    (metadata_checkpoint, "LEAST_RECORDS", 20),
    (metadata_checkpoint, "HISTORY_PER_RECORD", 1),
    (checkpoint_keeper, "LEAST_RECORDS", 20),
    (slices, "COMMITTED_PER_TURN", 2),
    # How long something takes on this machine decides nothing.
    (turns, "TURN_SECONDS", 0.0),
    (turns, "SHORT_TURN_SECONDS", 1_000.0),
)


def make_small(assign: Callable[[Any, str, Any], None]) -> None:
    """Changes the limits with `setattr`, or with that of a test that undoes it."""
    for module, name, value in _SMALL:
        assign(module, name, value)
