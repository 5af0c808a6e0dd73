"""Commits and aborts per second, and how long commits take, from the records of coordinators.

Every end of a transaction is two records of `__transaction_state`: Prepare with the decision, and
Complete when all markers are written. Both have the time of the coordinator. So their number and
the time between them are exact as long as the log may be read. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fencepost.forensics.history.state_changes import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    PREPARE_ABORT,
    PREPARE_COMMIT,
)

if TYPE_CHECKING:
    from fencepost.forensics.history.transaction_log import TailedChange

MAX_PREPARED: Final = 100_000
"""Decided transactions whose Complete record is awaited; more than that are not timed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The transactions that ended within some time."""

    committed: int
    aborted: int
    commit_ms: tuple[int, ...]
    """From Prepare to Complete, in order; only of commits whose both records were seen."""

    def commit_ms_at(self, share: float) -> int | None:
        """The time within which this share of the commits completed; None without any."""
        if not self.commit_ms:
            return None
        return self.commit_ms[min(len(self.commit_ms) - 1, int(len(self.commit_ms) * share))]


class CommitMeter:
    """Follows the records, and counts since the last `take`."""

    def __init__(self) -> None:
        self._prepared_at_ms: dict[str, int] = {}
        self._committed = 0
        self._aborted = 0
        self._commit_ms: list[int] = []

    def add(self, changes: Iterable[TailedChange]) -> None:
        """Takes new records, in the order of each id."""
        for each in changes:
            metadata = each.change.metadata
            if metadata is None:
                self._prepared_at_ms.pop(each.transactional_id, None)
                continue
            at_ms = metadata.last_update_ms
            if metadata.state in (PREPARE_COMMIT, PREPARE_ABORT):
                if len(self._prepared_at_ms) < MAX_PREPARED:
                    self._prepared_at_ms[each.transactional_id] = at_ms
                continue
            decided_ms = self._prepared_at_ms.pop(each.transactional_id, None)
            if metadata.state == COMPLETE_ABORT:
                self._aborted += 1
            elif metadata.state == COMPLETE_COMMIT:
                self._committed += 1
                if decided_ms is not None:
                    self._commit_ms.append(max(0, at_ms - decided_ms))

    def drain(self) -> Ended:
        """Returns what ended since the last call, and starts again at zero."""
        ended = Ended(self._committed, self._aborted, tuple(sorted(self._commit_ms)))
        self._committed = self._aborted = 0
        self._commit_ms = []
        return ended
