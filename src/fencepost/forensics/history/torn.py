"""Finds transactions that an administrator's marker tore.

WriteTxnMarkers puts a marker into one partition behind the coordinator's back. The coordinator goes
on: its transaction stays Ongoing, or is committed later, and what the partition had before the
marker stays aborted. So an ABORT marker inside a transaction that the coordinator has not aborted
has no other explanation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fencepost.forensics.history.markers import SeenMarker
from fencepost.forensics.history.state_changes import ONGOING, PREPARE_COMMIT, StateChange
from fencepost.forensics.history.timeline import names_of


def find_torn(
    changes: Sequence[StateChange], strays: Sequence[SeenMarker]
) -> tuple[StateChange, SeenMarker] | None:
    """Returns the last record of a torn transaction, and the marker that tore it.

    `strays` are the markers that belong to no Prepare record.
    """
    ends = [*pairwise(changes), (changes[-1], None)] if changes else []
    for opened, after in reversed(ends):
        if opened.metadata is None or opened.metadata.state != ONGOING:
            continue
        is_open = after is None
        is_committed = (
            after is not None
            and after.metadata is not None
            and (after.metadata.state == PREPARE_COMMIT)
        )
        if not (is_open or is_committed):
            continue
        last_ms = after.at_ms if after is not None else None
        for marker in strays:
            if _tears(opened, marker, last_ms):
                return opened, marker
    return None


def _tears(opened: StateChange, marker: SeenMarker, ended_ms: int | None) -> bool:
    metadata = opened.metadata
    assert metadata is not None
    return (
        not marker.end.commit
        and marker.producer_id == metadata.producer_id
        and marker.end.producer_epoch == metadata.producer_epoch
        and str(marker.partition) in names_of(opened)
        and marker.end.at_ms >= metadata.start_ms
        and (ended_ms is None or marker.end.at_ms <= ended_ms)
        and marker.first_offset is not None
    )
