"""The causes of fences and aborts: a table over the signs of an incident.

Theory of operation. Clients name one cause for many: librdkafka says "fenced by a newer instance"
after a timeout, too. The coordinator's records tell more, though not everything. Each `Rule` names
the signs that it needs, the cause, and how sure that is:

    proven      no other sequence of requests leaves these records
    likely      another one could, and the sentence names it
    cannot tell the records that would decide are missing

The first rule that fits decides, so the order is part of the table. Two facts do most of the work.
With TV1 a producer's own abort keeps its epoch, so only someone else raises it. And an instance
that takes over by InitProducerId leaves an Empty record right after the abort, while the timeout
leaves nothing. Times are the coordinator's; if it moved in between they are of two machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fencepost.base.administrators import TXN_ABORT, TXN_COMMIT, TXN_FENCE
from fencepost.forensics.history.incidents import ABORT, COMMIT, EXPIRY, INIT, ROLLOVER, Signs

ADMIN_TIMEOUT_MS: Final = 30_000
"""The timeout in the InitProducerId of Java's Admin.fenceProducers: the default of its request."""


class Cause(Enum):
    """What took the id or ended the transaction."""

    TIMEOUT = "timeout"
    NEWER_INSTANCE = "newer instance"
    ADMINISTRATOR = "administrator"
    ADMINISTRATOR_MARKERS = "administrator's markers"
    EXPIRED = "expired id"
    CLIENT_ABORT = "the producer's own abort"
    COMMITTED = "committed"
    NEW_PRODUCER_ID = "new producer id"
    COORDINATOR_MOVED = "coordinator that moved"
    NOT_FENCED = "not fenced"
    UNKNOWN = "unknown"


class Certainty(Enum):
    """How sure a verdict is."""

    PROVEN = "proven"
    LIKELY = "likely"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    kind: str
    fits: Callable[[Signs], bool]
    cause: Cause
    certainty: Certainty
    because: str
    prove: str | None = None


_BROKER_LOG: Final = (
    "The coordinator's log has a line for each transaction that it aborts after its timeout."
)
_CLIENT_LOG: Final = "The log of the producer says whether it called abortTransaction."
_WHO_INITIALISED: Final = (
    "Kafka's request log, or the log of the new instance, says who called InitProducerId: "
    f"`fencepost txn fence` has the client id {TXN_FENCE}, Java's Admin by default adminclient-N."
)

P, L, C = Certainty.PROVEN, Certainty.LIKELY, Certainty.CANNOT_TELL

_BY_ADMINISTRATOR: Final = "as the coordinator's record says: {administrator}."

RULES: Final[Sequence[Rule]] = (
    # Only fencepost's records name administrators.
    Rule(
        COMMIT,
        lambda s: s.is_by_administrator,
        Cause.ADMINISTRATOR,
        P,
        f"An administrator committed the transaction, {_BY_ADMINISTRATOR}",
    ),
    Rule(
        ABORT,
        lambda s: s.is_by_administrator,
        Cause.ADMINISTRATOR,
        P,
        f"An administrator aborted the transaction, {_BY_ADMINISTRATOR}",
    ),
    Rule(
        INIT,
        lambda s: s.is_by_administrator,
        Cause.ADMINISTRATOR,
        P,
        f"An administrator fenced the producer, {_BY_ADMINISTRATOR}",
    ),
    Rule(
        EXPIRY,
        lambda s: True,
        Cause.EXPIRED,
        P,
        "The coordinator removed the id: it was idle for transactional.id.expiration.ms.",
    ),
    Rule(
        ROLLOVER,
        lambda s: True,
        Cause.NEW_PRODUCER_ID,
        P,
        "The epochs of the producer id were used up, so InitProducerId gave the id a new one.",
    ),
    Rule(
        COMMIT,
        lambda s: True,
        Cause.COMMITTED,
        P,
        "The transaction was committed by EndTxn. If its producer saw an error, the reply was "
        "lost and the commit took effect nevertheless.",
    ),
    # An epoch that was not raised: TV1 only, because TV2 raises it at every end.
    Rule(
        ABORT,
        lambda s: s.epoch_raised is False,
        Cause.CLIENT_ABORT,
        P,
        "EndTxn (abort) came with the producer's own id and epoch: the epoch did not change, and "
        "every other abort raises it.",
    ),
    Rule(
        ABORT,
        lambda s: s.epoch_raised is None and s.is_late is True and not s.is_initialised_soon,
        Cause.TIMEOUT,
        L,
        "The transaction was open for longer than its timeout, and no one called InitProducerId "
        "right after it. The records before it are gone, so the producer's own late abort is "
        "possible.",
        _BROKER_LOG,
    ),
    Rule(
        ABORT,
        lambda s: s.epoch_raised is None and not s.is_initialised_soon,
        Cause.UNKNOWN,
        C,
        "The record before the abort is gone, so it is not known whether the epoch was raised.",
        _CLIENT_LOG,
    ),
    # Somebody called InitProducerId right after the abort.
    Rule(
        ABORT,
        lambda s: (
            s.is_initialised_soon
            and not s.is_new_used
            and s.initialised_timeout_ms == ADMIN_TIMEOUT_MS != s.timeout_ms
        ),
        Cause.ADMINISTRATOR,
        L,
        "InitProducerId followed the abort at once, asked for another timeout than the producer "
        "(30 s, as Java's Admin.fenceProducers does), and its epoch was never used. A newer "
        "instance with that timeout that never began a transaction looks the same.",
        _WHO_INITIALISED,
    ),
    Rule(
        ABORT,
        lambda s: (
            s.is_initialised_soon and s.protocol == 1 and s.is_late is False and s.is_new_used
        ),
        Cause.NEWER_INSTANCE,
        P,
        "InitProducerId raised the epoch before the timeout had passed, and its caller went on to "
        "begin a transaction.",
    ),
    Rule(
        ABORT,
        lambda s: s.is_initialised_soon and s.is_late is True,
        Cause.NEWER_INSTANCE,
        L,
        "InitProducerId followed the abort at once. The timeout had passed as well, so the "
        "coordinator may have aborted it just before.",
        _BROKER_LOG,
    ),
    Rule(
        ABORT,
        lambda s: s.is_initialised_soon and s.protocol == 1,
        Cause.NEWER_INSTANCE,
        L,
        "InitProducerId raised the epoch before the timeout had passed. Its caller has not begun "
        "a transaction, so an administrator who fenced the producer is possible.",
        _WHO_INITIALISED,
    ),
    Rule(
        ABORT,
        lambda s: s.is_initialised_soon and s.is_new_used,
        Cause.NEWER_INSTANCE,
        L,
        "InitProducerId followed the abort at once, and its caller went on to begin a "
        "transaction. A producer that aborts by itself and restarts within that time looks the "
        "same.",
        _CLIENT_LOG,
    ),
    Rule(
        ABORT,
        lambda s: s.is_initialised_soon,
        Cause.NEWER_INSTANCE,
        L,
        "InitProducerId followed the abort at once. Its caller has not begun a transaction, so an "
        "administrator who fenced the producer is possible, and so is the producer itself, if it "
        "aborted and restarted within that time.",
        _WHO_INITIALISED,
    ),
    # Someone called it, later or at an unknown time.
    Rule(
        ABORT,
        lambda s: s.is_initialised and s.initialised_after_ms is None and s.is_late is False,
        Cause.NEWER_INSTANCE,
        L,
        "The timeout had not passed, and someone has called InitProducerId since. If that was "
        "much later, the producer aborted by itself.",
        "READ on __transaction_state shows when InitProducerId was called.",
    ),
    # No client did, or only much later.
    Rule(
        ABORT,
        lambda s: s.is_late is True and s.protocol == 1,
        Cause.TIMEOUT,
        P,
        "The transaction was open for longer than its timeout, the epoch was raised, and no one "
        "called InitProducerId then: only the coordinator's timeout leaves that.",
    ),
    Rule(
        ABORT,
        lambda s: s.is_late is True and s.continued,
        Cause.UNKNOWN,
        C,
        "The transaction was open for longer than its timeout, and its producer went on with the "
        "raised epoch: it aborted by itself, before or after the coordinator did.",
        _BROKER_LOG,
    ),
    Rule(
        ABORT,
        lambda s: s.is_late is True,
        Cause.TIMEOUT,
        L,
        "The transaction was open for longer than its timeout, and no one called InitProducerId "
        "right after it. An abort by the producer itself, after its timeout, looks the same.",
        _BROKER_LOG,
    ),
    Rule(
        ABORT,
        lambda s: s.continued,
        Cause.CLIENT_ABORT,
        P,
        "The producer went on with the raised epoch, which only the reply to its EndTxn (abort) "
        "told it, and the timeout had not passed.",
    ),
    Rule(
        ABORT,
        lambda s: s.coordinator_moved and s.protocol == 1,
        Cause.COORDINATOR_MOVED,
        L,
        "A new coordinator raised the epoch before the timeout had passed: it aborted what it "
        "found open (fencepost with transaction.recovery.ongoing=abort). A newer instance that "
        "did not come back for the answer to its InitProducerId looks the same.",
        "The coordinator's log names the transactions that it aborts when it takes over.",
    ),
    Rule(
        ABORT,
        lambda s: s.coordinator_moved,
        Cause.CLIENT_ABORT,
        L,
        "The coordinator moved, the timeout had not passed, and no one called "
        "InitProducerId after it. A new coordinator that aborts what it finds open (fencepost "
        "with transaction.recovery.ongoing=abort) looks the same.",
        _CLIENT_LOG,
    ),
    Rule(
        ABORT,
        lambda s: s.protocol == 1,
        Cause.NEWER_INSTANCE,
        L,
        "The epoch was raised before the timeout had passed, so someone called InitProducerId, "
        "and did not come back for the answer.",
        _WHO_INITIALISED,
    ),
    Rule(
        ABORT,
        lambda s: True,
        Cause.CLIENT_ABORT,
        L,
        "The timeout had not passed and no one called InitProducerId after it. A newer instance "
        "that called it once and did not come back for the answer looks the same.",
        _CLIENT_LOG,
    ),
    Rule(
        INIT,
        lambda s: s.is_new_used,
        Cause.NEWER_INSTANCE,
        L,
        "InitProducerId raised the epoch while no transaction was open, and its caller went on to "
        "begin one. A TV1 producer that raises its own epoch after an error looks the same.",
        _WHO_INITIALISED,
    ),
    Rule(
        INIT,
        lambda s: s.initialised_timeout_ms == ADMIN_TIMEOUT_MS,
        Cause.ADMINISTRATOR,
        L,
        "InitProducerId asked for a timeout of 30 s, as Java's Admin.fenceProducers does, and its "
        "epoch was never used. A newer instance with that timeout looks the same.",
        _WHO_INITIALISED,
    ),
    Rule(
        INIT,
        lambda s: True,
        Cause.NEWER_INSTANCE,
        L,
        "InitProducerId raised the epoch. Its caller has not begun a transaction, so an "
        "administrator is possible, and so is the same producer after an error.",
        _WHO_INITIALISED,
    ),
)

IN_ITS_NAME: Final = (
    "This broker does not record who sent it, and an administrator who ends a transaction in its "
    f"producer's name looks the same: in Kafka's request log, `fencepost txn abort` and `commit` "
    f"have the client ids {TXN_ABORT} and {TXN_COMMIT}."
)
"""Apache Kafka's records have neither client id nor principal."""

_FENCED: Final = '_FENCED, "This instance has been fenced by a newer instance"'

CLIENTS_SAY: Final = {
    Cause.TIMEOUT: f"librdkafka: {_FENCED} (there was none); "
    "Java with TV1: ProducerFencedException or InvalidProducerEpochException; "
    "Java with TV2: InvalidTxnStateException",
    Cause.NEWER_INSTANCE: f"librdkafka: {_FENCED}; Java: ProducerFencedException",
    Cause.ADMINISTRATOR: f"librdkafka: {_FENCED}; Java: ProducerFencedException; if it kept its "
    "epoch, INVALID_TXN_STATE for its own EndTxn",
    Cause.ADMINISTRATOR_MARKERS: "nothing: the producer can go on, and even commit",
    Cause.EXPIRED: "librdkafka: INVALID_PRODUCER_ID_MAPPING; Java: InvalidPidMappingException",
    Cause.CLIENT_ABORT: "nothing: it asked for the abort itself",
    Cause.COMMITTED: "nothing, or, if the reply was lost: a timeout from commitTransaction, which "
    "may be retried",
    Cause.COORDINATOR_MOVED: f"librdkafka: {_FENCED}; Java: ProducerFencedException",
    Cause.NEW_PRODUCER_ID: "nothing: it got the new producer id in a reply",
}
"""What the client of the producer probably said. Clients do not know the cause."""
