"""What may happen to a producer, as changes of state."""

from __future__ import annotations

from fencepost.forensics.history.incidents import find_incidents
from fencepost.forensics.history.state_changes import StateChange
from fencepost.forensics.history.why import Verdict, judge
from tests.forensics.history.changes import change, metadata

TIMEOUT = 60_000


def opened(tv: int, epoch: int = 0) -> list[StateChange]:
    """A new id with an open transaction since 1,000."""
    return [
        change(0, metadata("Empty", 900, epoch, tv=0)),
        change(1, metadata("Ongoing", 1_000, epoch, start_ms=1_000, tv=tv)),
    ]


def ended(
    at_ms: int,
    epoch: int,
    *,
    commit: bool = False,
    coordinator_epoch: int = 0,
    tv: int = 2,
    by: str = "",
) -> list[StateChange]:
    outcome = "Commit" if commit else "Abort"
    return [
        change(
            offset,
            metadata(f"{state}{outcome}", ms, epoch, start_ms=1_000, tv=tv, administrator=by),
            coordinator_epoch,
        )
        for offset, state, ms in ((2, "Prepare", at_ms), (3, "Complete", at_ms + 5))
    ]


def initialised(
    at_ms: int, epoch: int, *, timeout_ms: int = TIMEOUT, by: str = ""
) -> list[StateChange]:
    return [change(4, metadata("Empty", at_ms, epoch, timeout_ms=timeout_ms, administrator=by))]


def used(at_ms: int, epoch: int) -> list[StateChange]:
    return [change(5, metadata("Ongoing", at_ms, epoch, start_ms=at_ms))]


IN_TIME = 5_000


LATE = 1_000 + TIMEOUT + 4_000


def verdict(changes: list[StateChange], identity: tuple[int, int] | None = None) -> Verdict:
    return judge(changes, find_incidents(changes), identity)
