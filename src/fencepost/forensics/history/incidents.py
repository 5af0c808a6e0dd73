"""What happened to the producers of an id: each record that took the id from one of them.

A producer is a producer id and an epoch. It loses the id in one of these ways, and the records of
each look different (tried on Apache Kafka 4.3 and on fencepost):

    abort    PrepareAbort. TV1: the producer's own abort keeps the epoch, and any other raises it.
             TV2: every end raises it.
    init     Empty at a higher epoch without an open transaction: someone called InitProducerId.
    commit   PrepareCommit. TV2 raises the epoch here too; the producer gets it in the reply.
    expiry   a tombstone: the id was idle for transactional.id.expiration.ms.
    rollover a new producer id that names the old one: the epochs of the old one were used up.

fencepost notes in the record which administrator asked for it with `fencepost txn`; Apache Kafka
does not.

`signs` turns an incident into the few facts that tell the causes apart; `why.py` judges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.forensics.history.state_changes import (
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    StateChange,
    follows,
)
from fencepost.records.transaction_log import TransactionMetadata

ABORT: Final = "abort"
COMMIT: Final = "commit"
INIT: Final = "init"
EXPIRY: Final = "expiry"
ROLLOVER: Final = "rollover"

SOON_MS: Final = 2_000
"""A producer that calls InitProducerId while a transaction is open gets CONCURRENT_TRANSACTIONS.
Clients retry that every 20 to 500 ms, so its Empty record follows the abort within this time."""


_LOOK_AHEAD: Final = 8
"""Enough to see who called InitProducerId next, and whether that epoch was used."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A record that took an id from a producer, or ended its transaction."""

    kind: str
    change: StateChange
    before: StateChange | None
    """The record before it, if it is known and nothing is missing in between."""
    victim: tuple[int, int] | None
    """Producer id and epoch before it."""
    complete: StateChange | None
    """The Complete record of an abort or commit."""
    after: Sequence[StateChange]
    """The next few records after that."""

    @property
    def administrator(self) -> str:
        """Who asked for it with `fencepost txn`; empty if the record does not say."""
        return self.change.metadata.administrator if self.change.metadata is not None else ""


@dataclass(frozen=True, slots=True)
class Signs:
    """The facts that tell causes apart. None: the record that would tell is missing."""

    epoch_raised: bool | None
    protocol: int | None
    """1 or 2, by the record that opened the transaction."""
    duration_ms: int | None
    timeout_ms: int | None
    initialised_after_ms: int | None
    """How long after the end someone called InitProducerId, if that is what follows."""
    is_initialised: bool
    """Whether someone called InitProducerId after the end, also if it is not known when."""
    initialised_timeout_ms: int | None
    """The transaction timeout that it asked for."""
    is_new_used: bool
    """Whether the new identity began a transaction."""
    continued: bool
    """Whether the next transaction has the raised epoch, without InitProducerId: only a producer
    that got the reply to its EndTxn knows that epoch."""
    coordinator_moved: bool
    """Whether another coordinator wrote the end than the record before it."""
    is_by_administrator: bool
    """Whether the record names the administrator who asked for it."""

    @property
    def is_late(self) -> bool | None:
        """Whether the transaction was open for longer than its timeout."""
        if self.duration_ms is None or self.timeout_ms is None:
            return None
        return self.duration_ms >= self.timeout_ms

    @property
    def is_initialised_soon(self) -> bool:
        """Whether InitProducerId follows so soon that its caller probably ended the transaction."""
        return self.initialised_after_ms is not None and self.initialised_after_ms <= SOON_MS


def find_incidents(changes: Sequence[StateChange]) -> list[Incident]:
    """All incidents in order; records that take the id from no one are left out."""
    found = []
    for index, change in enumerate(changes):
        before = changes[index - 1] if index and follows(changes[index - 1], change) else None
        kind = _kind(change, before)
        if kind is None:
            continue
        after = changes[index + 1 : index + 1 + _LOOK_AHEAD]
        complete = None
        if kind in (ABORT, COMMIT) and after and after[0].state.startswith("Complete"):
            complete, *after = after
        victim = before.identity if before is not None else None
        found.append(Incident(kind, change, before, victim, complete, after))
    return found


def _kind(change: StateChange, before: StateChange | None) -> str | None:
    metadata = change.metadata
    if metadata is None:
        return EXPIRY if change.is_tombstone else None
    if metadata.state == PREPARE_ABORT:
        return ABORT
    if metadata.state == PREPARE_COMMIT:
        return COMMIT
    if before is None or before.metadata is None or metadata.state != EMPTY:
        return None
    if before.metadata.producer_id != metadata.producer_id:
        return ROLLOVER if metadata.previous_producer_id == before.metadata.producer_id else INIT
    return INIT if metadata.producer_epoch > before.metadata.producer_epoch else None


def signs(incident: Incident) -> Signs:
    """The facts of an incident."""
    change = incident.change.metadata
    first, initialised_after_ms = _initialised(incident)
    return Signs(
        epoch_raised=_is_raised(incident),
        protocol=_protocol(incident.before),
        duration_ms=_duration_ms(incident),
        timeout_ms=change.timeout_ms if change is not None else None,
        initialised_after_ms=initialised_after_ms,
        is_initialised=first is not None,
        initialised_timeout_ms=first.timeout_ms if first is not None else None,
        is_new_used=first is not None and _is_used(incident.after, first),
        continued=_is_continued(incident),
        coordinator_moved=(
            incident.before is not None
            and incident.before.coordinator_epoch != incident.change.coordinator_epoch
        ),
        is_by_administrator=bool(incident.administrator),
    )


def _initialised(incident: Incident) -> tuple[TransactionMetadata | None, int | None]:
    """Returns the record of InitProducerId: the incident itself, or the one after it.

    For the one after it also how much later it was written.
    """
    if incident.kind in (INIT, ROLLOVER):
        return incident.change.metadata, None
    following = incident.after[0] if incident.after else None
    if following is None or following.metadata is None or following.metadata.state != EMPTY:
        return None, None
    after_ms = max(0, following.at_ms - incident.change.at_ms) if following.at_ms >= 0 else None
    return following.metadata, after_ms


def _duration_ms(incident: Incident) -> int | None:
    change = incident.change.metadata
    if change is None or incident.kind not in (ABORT, COMMIT) or change.start_ms < 0:
        return None
    return incident.change.at_ms - change.start_ms


def _is_continued(incident: Incident) -> bool:
    change = incident.change.metadata
    after = incident.after[0].metadata if incident.after else None
    if change is None or after is None or after.state not in (ONGOING, PREPARE_ABORT):
        return False
    raised = (change.producer_id, change.producer_epoch), (change.next_producer_id, 0)
    return (after.producer_id, after.producer_epoch) in raised


def _protocol(opened: StateChange | None) -> int | None:
    if opened is None or opened.metadata is None or opened.metadata.state != ONGOING:
        return None
    return 2 if opened.metadata.client_transaction_version >= 2 else 1


def _is_raised(incident: Incident) -> bool | None:
    if incident.victim is None or incident.change.metadata is None:
        return None
    metadata = incident.change.metadata
    return incident.victim != (metadata.producer_id, metadata.producer_epoch)


def _is_used(after: Sequence[StateChange], first: TransactionMetadata) -> bool:
    return any(
        each.metadata is not None
        and each.metadata.state == ONGOING
        and each.metadata.producer_id == first.producer_id
        and each.metadata.producer_epoch >= first.producer_epoch
        for each in after
    )
