"""What happens to transactions, counted for metrics and logged for people.

Every abort that the producer did not ask for, and every fence, is one line with the transactional
id, producer id, epoch, and the clients as far as they are known: the one that lost the id, and the
one that took it. These lines explain the PRODUCER_FENCED and INVALID_PRODUCER_EPOCH that appear in
applications, which do not say why. `event_log.py` limits their number.

A client is known from its InitProducerId at this coordinator. It is not in the log, so after a
restart or a move it is unknown until the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.administrators import administrator_in_words
from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.broker.event_log import EventLog
from fencepost.broker.metrics.counters import Cause, TransactionCounters
from fencepost.broker.network.presence import Presence
from fencepost.broker.runtime import Timers
from fencepost.broker.transactions.markers import EndMarker
from fencepost.records.transaction_log import TransactionMetadata

if TYPE_CHECKING:
    from fencepost.broker.context import Context


ANONYMOUS: Final = "User:ANONYMOUS"


class Client(NamedTuple):
    """A client as the log names it."""

    address: str
    client_id: str | None
    principal: str
    presence: Presence | None

    @property
    def host(self) -> str:
        """The address without the port."""
        host = self.address.rpartition(":")[0] or self.address
        return host.removeprefix("[").removesuffix("]")

    def __str__(self) -> str:
        named = (
            self.address if not self.client_id else f"{self.address}, client id {self.client_id}"
        )
        return named if self.principal == ANONYMOUS else f"{named}, {self.principal}"


def client_of(context: Context) -> Client:
    """The client that sent a request."""
    return Client(context.client_address, context.client_id, context.principal, context.presence)


def administrator_of(context: Context, client_ids: frozenset[str]) -> str:
    """Who sends a request with a tool of ours, in words; empty for any other client."""
    client_id = context.client_id
    if client_id is None or client_id not in client_ids:
        return ""
    return administrator_in_words(context.principal, client_id, context.client_host)


class Origin(NamedTuple):
    """Why a transaction is ended, and by whom if it was a request."""

    cause: Cause
    client: Client | None = None


BY_CLIENT: Final = Origin(Cause.CLIENT)
BY_TIMEOUT: Final = Origin(Cause.TIMEOUT)
BY_RESTART: Final = Origin(Cause.RESTART)
RECOVERED: Final = Origin(Cause.RECOVERED)

_KINDS: Final = {
    Cause.NEWER_INSTANCE: "transaction_taken_over",
    Cause.TIMEOUT: "transaction_timed_out",
    Cause.RESTART: "transaction_aborted_by_restart",
    Cause.ADMINISTRATOR: "transaction_ended_by_administrator",
}


class Journal:
    """The counters and the log lines of one broker's transactions."""

    __slots__ = ("_events", "counters")

    def __init__(self, timers: Timers) -> None:
        self.counters: Final = TransactionCounters()
        self._events: Final = EventLog(timers)

    def ended(self, origin: Origin, *, commit: bool, seconds: float, lifetime_ms: int) -> None:
        """A transaction has its Complete record, `seconds` after its end was decided."""
        counters = self.counters
        if commit:
            counters.committed += 1
            if origin.cause is Cause.ADMINISTRATOR:
                counters.committed_by_administrator += 1
            if origin is not RECOVERED:
                counters.commit_seconds.observe(seconds)
        else:
            counters.aborted[origin.cause] += 1
        counters.lifetime_seconds.observe(max(0, lifetime_ms) / 1000)

    def verified(self, errors: list[ErrorCode], seconds: float) -> None:
        """The coordinator has answered about first writes, one error per partition."""
        counters = self.counters
        counters.verification_seconds.observe(seconds)
        for error in errors:
            if error != 0:
                counters.unverified += 1

    def ending(
        self,
        transactional_id: str,
        txn: TransactionMetadata,
        origin: Origin,
        client: Client | None,
        now_ms: int,
        *,
        commit: bool,
        is_fenced: bool,
    ) -> None:
        """An open transaction is ended by another than its producer, which may be fenced by it."""
        cause = origin.cause
        if cause not in _KINDS:
            return
        if is_fenced:
            self.counters.fenced[cause] += 1
        age_ms = max(0, now_ms - txn.start_ms)
        if cause is Cause.ADMINISTRATOR:
            why = f"by an administrator{_named(origin.client)}"
        elif cause is Cause.TIMEOUT:
            why = f"its timeout of {txn.timeout_ms} ms has passed"
        elif cause is Cause.RESTART:
            why = "its coordinator was restarted or has moved (transaction.recovery.ongoing=abort)"
        else:
            why = f"another producer takes the id over{_named(origin.client)}"
        outcome = "committed" if commit else "aborted"
        fate = "fenced" if is_fenced else "not fenced"
        self._note(
            _KINDS[cause],
            f"the open transaction of producer {txn.producer_id} at epoch {txn.producer_epoch}"
            f"{_named(client)} is {outcome} after {age_ms} ms, and the producer is {fate}: {why}",
            transactional_id,
            txn,
            client,
            {"age_ms": age_ms, "timeout_ms": txn.timeout_ms, **_fields("by_", origin.client)},
        )

    def taken_over(
        self,
        transactional_id: str,
        txn: TransactionMetadata,
        fenced: Client | None,
        by: Origin,
    ) -> None:
        """A producer without an open transaction loses the id to another, or to nobody."""
        self.counters.fenced[by.cause] += 1
        why = (
            "by an administrator"
            if by.cause is Cause.ADMINISTRATOR
            else "another producer takes the id over"
        )
        self._note(
            "producer_fenced",
            f"producer {txn.producer_id} at epoch {txn.producer_epoch}{_named(fenced)} is fenced: "
            f"{why}{_named(by.client)}",
            transactional_id,
            txn,
            fenced,
            _fields("by_", by.client),
        )

    def marked_by_request(self, name: TopicPartition, marker: EndMarker, by: Client) -> None:
        """An administrator has written a marker to one partition (WriteTxnMarkers)."""
        self.counters.markers_by_request += 1
        outcome = "commit" if marker.commit else "abort"
        self._events.note(
            "marker_by_request",
            f"{name}: a request ({by}) wrote the {outcome} marker of producer "
            f"{marker.producer_id} at epoch {marker.producer_epoch}; the coordinator of the "
            "transaction does not know of it",
            {
                "partition": str(name),
                "producer_id": marker.producer_id,
                "producer_epoch": marker.producer_epoch,
                **_fields("by_", by),
            },
        )

    def _note(
        self,
        kind: str,
        sentence: str,
        transactional_id: str,
        txn: TransactionMetadata,
        fenced: Client | None,
        more: dict[str, object],
    ) -> None:
        fields = {
            "transactional_id": transactional_id,
            "producer_id": txn.producer_id,
            "producer_epoch": txn.producer_epoch,
            **_fields("", fenced),
            **more,
        }
        self._events.note(kind, f"transactional id {transactional_id}: {sentence}", fields)


def _named(client: Client | None) -> str:
    return "" if client is None else f" ({client})"


def _fields(prefix: str, client: Client | None) -> dict[str, object]:
    if client is None:
        return {}
    return {
        f"{prefix}client": client.address,
        f"{prefix}client_id": client.client_id,
        f"{prefix}principal": client.principal,
    }
