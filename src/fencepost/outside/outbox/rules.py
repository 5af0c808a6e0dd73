"""What the relay decides: what it skips, when it ends a chunk, what it accepts at a start. Pure.

The cursor in the log. Transactions come in the order of their commit records. `end_lsn` says that
all transactions whose commit record begins before it are in Kafka. A transaction that is split over
chunks is named by the LSN of its commit record (`commit_lsn`; its end is not known before all of it
came), and `ordinal` is how many of its rows are in Kafka. So after the end of a transaction the
cursor is (its end LSN, 0, 0); with the LSN of its commit record instead, it would come again.

The cursor in a numbered table. Each shard has the number of its last row that is in Kafka. A row is
numbered under the lock of its shard, which is held until its transaction is visible: so whoever
sees a number has seen all lower ones of the shard. The other fields are 0.

Who decides. The position in Kafka was committed with the rows, so it says what must be skipped,
whatever the slot sends: a slot falls back when the server is killed. The slot is told an LSN only
so that it releases WAL.

What the slot is told. A slot that is ahead of what was sent lost rows: it was created again,
advanced, or read by something else. A start can only notice that if it knows how far the relay
moved it, so the slot is told nothing but what is stored: the end of the position, or `confirmed` of
the row in the database, which is committed first. An idle outbox in a busy database has no
positions, so `confirmed` is what releases the log there; `Release` says when it is worth a commit.

The row in the database. Before Kafka is asked to commit chunk k, the database commits the number k
and the chunk's cursor to one row. So at a start the row is

    equal to the position         the last chunk committed, and nothing was begun after it
    one ahead of the position     the relay died between the two commits, or the second failed

and in both cases the database contains every row that Kafka has. The first start writes a position
with the number 0 before anything else, so a row with a number and no position at all means that the
position was lost. A backup or snapshot of the
database that is restored has an older row; or one with the same number and another cursor, from a
chunk that was begun again with more rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Final, NamedTuple

from fencepost.base.arguments import checked
from fencepost.outside.failures import OutsideError
from fencepost.outside.outbox.lsn import lsn_text

# The stream.


class Cursor(NamedTuple):
    """How much of the database's log is in Kafka. The module docstring says how to read it."""

    end_lsn: int = 0
    commit_lsn: int = 0
    """Of the transaction of which `ordinal` rows are in Kafka; 0 if there is none."""
    ordinal: int = 0
    numbers: tuple[int, ...] = ()
    """Of a numbered table: the last one of each shard."""

    def __str__(self) -> str:
        if self.numbers:
            return f"numbers {', '.join(map(str, self.numbers))}"
        if not self.commit_lsn:
            return lsn_text(self.end_lsn)
        return f"{lsn_text(self.end_lsn)} + {self.ordinal} rows of {lsn_text(self.commit_lsn)}"


@checked
class Limits(NamedTuple):
    """When a chunk, which is one Kafka transaction, ends."""

    rows: int = 10_000
    size_bytes: int = 16 * 1024 * 1024
    open_ms: int = 20_000
    """At most a third of the transaction timeout."""
    may_split: bool = True
    """Whether a transaction of the database may be split over chunks."""

    def is_full(self, rows: int, size_bytes: int) -> bool:
        """Whether a chunk of this size ends."""
        return rows >= self.rows or size_bytes >= self.size_bytes


class Phase(Enum):
    """Where the stream is."""

    BETWEEN = "between"
    """Between two transactions."""
    SKIPPING = "skipping"
    """In a transaction that is in Kafka."""
    SENDING = "sending"
    """In a transaction of which rows are still to be sent."""


class Event(Enum):
    """What the stream brings."""

    BEGIN = "begin"
    ROW = "row"
    COMMIT = "commit"
    KEEPALIVE = "keepalive"


class StreamBroken(OutsideError):  # noqa: N818 - named for what is the case
    """The stream contradicts the position."""


PHASES: Final[Mapping[tuple[Phase, Event], frozenset[Phase]]] = {
    (Phase.BETWEEN, Event.BEGIN): frozenset({Phase.SKIPPING, Phase.SENDING}),
    (Phase.BETWEEN, Event.KEEPALIVE): frozenset({Phase.BETWEEN}),
    (Phase.SKIPPING, Event.ROW): frozenset({Phase.SKIPPING}),
    (Phase.SKIPPING, Event.KEEPALIVE): frozenset({Phase.SKIPPING}),
    (Phase.SKIPPING, Event.COMMIT): frozenset({Phase.BETWEEN}),
    (Phase.SENDING, Event.ROW): frozenset({Phase.SENDING}),
    (Phase.SENDING, Event.KEEPALIVE): frozenset({Phase.SENDING}),
    (Phase.SENDING, Event.COMMIT): frozenset({Phase.BETWEEN}),
}
"""Which phases may follow. A pair that is absent breaks the protocol."""


_WITHOUT_THE_REST: Final = (
    "Find them in the database; then drop the slot, run `fencepost outbox init`, and start once "
    "with --accept new-slot"
)


class ChunkPlan:
    """Follows the stream, and says which rows to send, when to end a chunk, and what to confirm."""

    def __init__(self, cursor: Cursor, limits: Limits) -> None:
        self.phase = Phase.BETWEEN
        self.rows = 0
        """Rows of the chunk so far."""
        self.confirmable = 0
        """All before this LSN is in Kafka, or is no row of ours. The slot is told less."""
        self._limits = limits
        self._cursor = self._stored = cursor
        self._size_bytes = 0
        self._seen = 0
        self._to_skip = 0
        self._ordinal = cursor.ordinal

    @property
    def cursor(self) -> Cursor:
        """The cursor of a chunk that ends here."""
        if not self._ordinal:
            return Cursor(self._cursor.end_lsn)
        return self._cursor._replace(ordinal=self._ordinal)

    @property
    def stored_lsn(self) -> int:
        """The end of the position in Kafka."""
        return self._stored.end_lsn

    @property
    def is_behind(self) -> bool:
        """Whether a chunk has to be written before the slot may be told an LSN.

        Without rows, it is because the last chunk ended with the last row of a transaction, and its
        cursor still names that transaction, which the slot would no longer have.
        """
        return bool(self.rows or (self._stored.commit_lsn and not self._cursor.commit_lsn))

    @property
    def is_filling(self) -> bool:
        """Whether the chunk does not end here, whatever the clock says: see `is_due`."""
        is_full = self._limits.is_full(self.rows, self._size_bytes)
        return self.phase is Phase.SENDING and not is_full

    def begin(self, commit_lsn: int) -> None:
        """A transaction begins."""
        cursor = self._cursor
        if commit_lsn < max(cursor.end_lsn, cursor.commit_lsn):
            self._go(Event.BEGIN, Phase.SKIPPING)
            return
        if cursor.commit_lsn and commit_lsn != cursor.commit_lsn:
            raise StreamBroken(
                f"{self._ordinal} rows of the transaction at {lsn_text(cursor.commit_lsn)} are in "
                f"Kafka, and the slot no longer has the others. {_WITHOUT_THE_REST}"
            )
        self._go(Event.BEGIN, Phase.SENDING)
        self._to_skip = self._ordinal
        self._cursor = cursor._replace(commit_lsn=commit_lsn)

    def row(self, size_bytes: int) -> bool:
        """A row came; returns whether to send it."""
        if self.phase is not Phase.SENDING:
            self._go(Event.ROW, self.phase)
            return False
        if self._to_skip:
            self._to_skip -= 1
            return False
        self._ordinal += 1
        self.rows += 1
        self._size_bytes += size_bytes
        return True

    def commit(self, end_lsn: int) -> None:
        """The transaction is complete."""
        was_sending = self.phase is Phase.SENDING
        self._go(Event.COMMIT, Phase.BETWEEN)
        if was_sending:
            if self._to_skip:
                raise StreamBroken(
                    f"the transaction at {lsn_text(self._cursor.commit_lsn)} has fewer rows than "
                    f"{self._ordinal}, which are in Kafka: was the publication changed? "
                    f"{_WITHOUT_THE_REST}"
                )
            self._cursor, self._ordinal = Cursor(end_lsn), 0
        self._note(end_lsn)

    def keepalive(self, lsn: int) -> None:
        """The server has sent everything up to this LSN."""
        self._go(Event.KEEPALIVE, self.phase)
        if self.phase is Phase.BETWEEN:
            self._note(lsn)

    def is_due(self, *, is_quiet: bool, open_ms: int) -> bool:
        """Whether the chunk ends here. `is_quiet`: nothing more has arrived."""
        if not self.is_behind:
            return False
        limits = self._limits
        is_full = limits.is_full(self.rows, self._size_bytes) or open_ms >= limits.open_ms
        if self.phase is Phase.BETWEEN:
            return is_full or is_quiet
        return is_full and limits.may_split

    def chunk_committed(self) -> None:
        """The chunk is in Kafka."""
        self._stored = self.cursor
        self.rows = self._size_bytes = 0
        if self.phase is Phase.BETWEEN:
            self._note(self._seen)

    def _note(self, lsn: int) -> None:
        self._seen = max(self._seen, lsn)
        if not self.is_behind:
            self.confirmable = self._seen

    def _go(self, event: Event, phase: Phase) -> None:
        if phase not in PHASES.get((self.phase, event), ()):
            raise StreamBroken(
                f"PostgreSQL sent {event.value!r} in phase {self.phase.value!r}: this is not "
                "pgoutput's protocol"
            )
        self.phase = phase


# A numbered table.


class TablePlan:
    """Follows the rows of a numbered table, and says when to end a chunk.

    The rows come from queries. Each sees the database at one moment, so a chunk that ends where an
    unlimited query ends has no part of a transaction.
    """

    def __init__(self, cursor: Cursor, limits: Limits) -> None:
        self.rows = 0
        """Rows of the chunk so far."""
        self._limits = limits
        self._numbers = list(cursor.numbers)
        self._stored = cursor.numbers
        self._size_bytes = 0

    @property
    def cursor(self) -> Cursor:
        """The cursor of a chunk that ends here."""
        return Cursor(numbers=tuple(self._numbers))

    @property
    def sent(self) -> tuple[int, ...]:
        """The numbers up to which rows are in Kafka for certain."""
        return self._stored

    @property
    def rows_per_shard(self) -> int | None:
        """How many rows a query may return of each shard; None: all."""
        return -(-self._limits.rows // len(self._numbers)) if self._limits.may_split else None

    @property
    def is_full(self) -> bool:
        """Whether the chunk is as large as it may be."""
        return self._limits.is_full(self.rows, self._size_bytes)

    def row(self, shard: int, number: int, size_bytes: int) -> None:
        """A row came."""
        if number <= self._numbers[shard]:
            raise StreamBroken(
                f"the database returned row {number} of shard {shard} after row "
                f"{self._numbers[shard]}: its numbers were changed"
            )
        self._numbers[shard] = number
        self.rows += 1
        self._size_bytes += size_bytes

    def is_due(self, *, is_between: bool, is_quiet: bool, open_ms: int) -> bool:
        """Whether the chunk ends here. `is_between`: all rows of the last query have come."""
        is_ripe = self.is_full or is_quiet or open_ms >= self._limits.open_ms
        return bool(self.rows) and is_ripe and (is_between or self._limits.may_split)

    def chunk_committed(self) -> None:
        """The chunk is in Kafka."""
        self._stored = tuple(self._numbers)
        self.rows = self._size_bytes = 0


# The start.


SEQUENCE: Final = " (sequence "
"""Before the oid of the sequence, in the words for a numbered table."""


class Position(NamedTuple):
    """The position of a relay: a record of each of its Kafka transactions."""

    relay: str
    cursor: Cursor
    chunk: int
    """The number of the transaction."""
    system_id: str
    timeline: int
    source: str
    """What is read: rows of a table or messages in the log, or a numbered table."""
    publication: str = ""
    """Another one may have left rows out of the log. Empty: not known, or there is none."""


class ChunkRow(NamedTuple):
    """The row in the database."""

    chunk: int
    cursor: Cursor
    slot_lsn: int
    """Where `init` first created a slot: earlier transactions are not in it. 0 without a slot."""
    sent: tuple[int, ...] = ()
    """The numbers of the chunk before: these rows are in Kafka for certain, and may be deleted."""
    confirmed: int | None = 0
    """What the slot may be told beyond the position. None: an earlier version did not write it."""
    publication: str = ""
    """As `init` found it, for the first start; later ones know it from the position."""


class FoundDatabase(NamedTuple):
    """The database as it is at a start."""

    system_id: str
    timeline: int
    lsn: int
    source: str
    row: ChunkRow
    shards: int = 0
    """Of a numbered table; 0: the log is read."""
    last_number: int = 0
    sequence: str = ""
    """Gives the numbers; its name as in SQL."""
    publication: str = ""
    """Changes whenever the publication does, as far as the table is concerned."""
    confirmed_flush_lsn: int = 0
    """Where the slot is: it does not have transactions that committed earlier. 0 without a slot."""


class Reason(Enum):
    """Why a relay does not start by itself."""

    FOREIGN = "foreign"
    RESTORED = "restored"
    LOST_POSITION = "lost-position"
    NEW_SLOT = "new-slot"
    NEW_PUBLICATION = "new-publication"
    OTHER_SOURCE = "other-source"
    FAILED_OVER = "failed-over"


class StartRule(NamedTuple):
    """One reason, when it holds, and what accepting it means."""

    reason: Reason
    holds: Callable[[Position, FoundDatabase], bool]
    sentence: str
    """What is the case, and what to do before it is accepted."""
    go_on: Callable[[Position, FoundDatabase], Cursor]
    """Where a start goes on that accepts it."""


def _identity(source: str) -> str:
    """One table has several names (`outbox`, `public.outbox`), and one sequence."""
    return source.rpartition(SEQUENCE)[2]


def _at_the_position(position: Position, _: FoundDatabase) -> Cursor:
    return position.cursor


def _with_what_is_left(_: Position, found: FoundDatabase) -> Cursor:
    """With all that the slot has, or all that the database does not know to be in Kafka."""
    sent = found.row.sent
    numbers = sent + (0,) * (found.shards - len(sent)) if found.shards else ()
    return Cursor(found.confirmed_flush_lsn, numbers=numbers)


def _from_the_slot(position: Position, found: FoundDatabase) -> Cursor:
    """With what the slot has after the position; a transaction that is split may still be there."""
    cursor = position.cursor
    if cursor.commit_lsn >= found.confirmed_flush_lsn:
        return cursor._replace(end_lsn=max(cursor.end_lsn, found.confirmed_flush_lsn))
    return Cursor(found.confirmed_flush_lsn)


def _from_the_beginning(_: Position, found: FoundDatabase) -> Cursor:
    return Cursor(found.confirmed_flush_lsn, numbers=(0,) * found.shards)


def _is_foreign(position: Position, found: FoundDatabase) -> bool:
    return position.system_id != found.system_id


def _is_other_source(position: Position, found: FoundDatabase) -> bool:
    return bool(position.cursor.numbers or found.shards) and (
        _identity(position.source) != _identity(found.source)
    )


def _is_same(position: Position, found: FoundDatabase) -> bool:
    """Whether LSNs, numbers and oids of the two mean the same."""
    return not _is_foreign(position, found) and not _is_other_source(position, found)


def _is_copy(position: Position, found: FoundDatabase) -> bool:
    """Whether chunks can be compared: not with a new database, from which nothing was sent."""
    return _is_foreign(position, found) and not found.shards and found.row.chunk > 0


def _is_restored(position: Position, found: FoundDatabase) -> bool:
    row, cursor = found.row, position.cursor
    is_older = row.chunk < position.chunk or (
        row.chunk == position.chunk > 0 and row.cursor != cursor
    )
    if not _is_same(position, found):
        return _is_copy(position, found) and is_older
    return (
        is_older
        or found.lsn < max(cursor.end_lsn, row.confirmed or 0)
        or (found.shards > 0 and found.last_number < max(cursor.numbers, default=0))
    )


def _is_position_lost(position: Position, found: FoundDatabase) -> bool:
    can_compare = _is_same(position, found) or _is_copy(position, found)
    return can_compare and found.row.chunk > position.chunk + 1


def _known_end(position: Position, found: FoundDatabase) -> int:
    """The furthest that the slot was told."""
    row, end_lsn = found.row, position.cursor.end_lsn
    if _is_restored(position, found) or _is_position_lost(position, found):
        # The position is not of this state of the database. Its row is.
        end_lsn = max(row.cursor.end_lsn, row.slot_lsn)
    return max(end_lsn, row.confirmed or 0)


START_RULES: Final = (
    StartRule(
        Reason.FOREIGN,
        _is_foreign,
        "the position in Kafka is of another database system ({position.system_id}, this is "
        "{found.system_id}): correct the connection string or the transactional id. {copy} If this "
        "database replaces that one",
        go_on=_with_what_is_left,
    ),
    StartRule(
        Reason.OTHER_SOURCE,
        lambda position, found: (
            not _is_foreign(position, found) and _is_other_source(position, found)
        ),
        "the position in Kafka is of {position.source}, and this relay reads {found.source}: start "
        "it with the options of before, or give it a transactional id of its own. If it replaces "
        "that one, whose rows are all in Kafka",
        go_on=_from_the_beginning,
    ),
    StartRule(
        Reason.RESTORED,
        _is_restored,
        "the database is older than what was sent from it: Kafka has chunk {position.chunk} "
        "({position.cursor}), the database has {found.row.chunk} ({found.row.cursor}) and its log "
        "ends at {lsn}. It was restored, and Kafka may have rows that it does not have. When that "
        "is resolved",
        go_on=_with_what_is_left,
    ),
    StartRule(
        Reason.LOST_POSITION,
        _is_position_lost,
        "the database has relayed {found.row.chunk} chunks, and the position in Kafka says "
        "{known}: this is another cluster or transactional id, or the topic of positions "
        "was deleted or lost records. Rows that the slot still has may be in Kafka already. When "
        "that is resolved",
        go_on=_with_what_is_left,
    ),
    StartRule(
        Reason.NEW_SLOT,
        lambda position, found: (
            _is_same(position, found) and found.confirmed_flush_lsn > _known_end(position, found)
        ),
        "the slot is at {slot}, ahead of what was sent ({sent}): {moved}. Compare the outbox with "
        "Kafka. When that is done",
        go_on=_from_the_slot,
    ),
    StartRule(
        Reason.NEW_PUBLICATION,
        lambda position, found: (
            _is_same(position, found) and position.publication not in ("", found.publication)
        ),
        "the publication was changed or created again since the last start, or since `init`: rows "
        "that were committed before that may not be in the log, and are not sent then. Compare the "
        "outbox with Kafka. When that is done",
        go_on=_at_the_position,
    ),
    StartRule(
        Reason.FAILED_OVER,
        lambda position, found: (
            not _is_foreign(position, found) and position.timeline != found.timeline
        ),
        "the database is on timeline {found.timeline}, and the position on {position.timeline}: a "
        "standby was promoted, or a backup was restored. If no committed transaction was lost in "
        "that",
        go_on=_at_the_position,
    ),
)
"""In the order in which they are asked. All that hold must be accepted; the first says where to go
on."""

_MOVED: Final = (
    "it was created again, advanced, or read by something else, and what was committed in between "
    "is not in it"
)
_NOT_NOTED: Final = (
    "the relay ran in an earlier version last, which did not note what it told the slot. If nobody "
    "has moved the slot or created it again since, nothing is missing. Otherwise "
    "what was committed in between is not in it"
)
_IS_COPY: Final = (
    "The chunk of this database is that of the position: if it is a copy of that one, and the slot "
    "was created after the copy and before new rows, nothing is lost and nothing is sent again."
)
_IS_NO_COPY: Final = (
    "The chunk of this database ({row.chunk}) is not that of the position ({position.chunk}), so "
    "it is no full copy: Kafka may have rows that the slot has too, and lack others."
)


class StartRefused(OutsideError):  # noqa: N818 - named for what is the case
    """The relay does not start with this database; `reasons` accept it explicitly."""

    def __init__(self, sentences: Mapping[Reason, str]) -> None:
        """What is the case, by the reasons that were not accepted."""
        options = " ".join(f"--accept {reason.value}" for reason in sentences)
        found = list(sentences.values())
        each = [f"({number}) {words}, go on. " for number, words in enumerate(found[:-1], 1)]
        number = f"({len(found)}) " if each else ""
        super().__init__(
            f"{''.join(each)}{number}{found[-1]}, start once with {options}. Nothing was written"
        )
        self.reasons = frozenset(sentences)


class Start(NamedTuple):
    """Where to go on."""

    cursor: Cursor
    next_chunk: int
    needs_position: bool = False
    """Whether a position has to be written first: it is the first start, or one that accepts."""
    is_row_last: bool = False
    """Whether the row is written after this position. If the relay dies between the two, the next
    start must refuse for the same reason: a restored database is known by its row, and every other
    reason by the position."""
    resets_confirmed: bool = False
    """Whether what the slot was told before says nothing any more; the position is at the slot."""


def refuse_foreign(
    position: Position | None, found: FoundDatabase, accept: Collection[Reason]
) -> None:
    """Refuses another database before its relay is fenced, which may be running."""
    rule = START_RULES[0]
    if position is not None and rule.holds(position, found) and rule.reason not in accept:
        raise StartRefused({rule.reason: _sentence(rule, position, found)})


def judge_start(
    position: Position | None, found: FoundDatabase, accept: Collection[Reason]
) -> Start:
    """Where to go on; StartRefused if a person has to decide first."""
    if position is None:
        # A slot that is before its LSN is another one, in a system to which the row was copied.
        end_lsn = min(found.row.slot_lsn, found.confirmed_flush_lsn)
        cursor = Cursor(end_lsn, numbers=(0,) * found.shards)
        publication = found.row.publication if found.row.chunk == 0 else ""
        position = Position("", cursor, -1, *found[:2], found.source, publication)
    is_numbered = bool(found.shards or position.cursor.numbers)
    if position.cursor.ordinal and position.source != found.source and not is_numbered:
        raise StreamBroken(
            f"Kafka has a part of a transaction of {position.source}, and this relay reads "
            f"{found.source}: start it with the options of before until that is complete"
        )
    rules = [rule for rule in START_RULES if rule.holds(position, found)]
    refused = [rule for rule in rules if rule.reason not in accept]
    if refused:
        raise StartRefused({rule.reason: _sentence(rule, position, found) for rule in refused})
    if not rules:
        return Start(position.cursor, position.chunk + 1, needs_position=position.chunk < 0)
    if rules[0].reason is not Reason.OTHER_SOURCE:  # Then they are of another table.
        _require_new_numbers(found)
    # A row that is one ahead has a number that Kafka never saw, as at any start.
    is_near = found.row.chunk <= position.chunk + 1
    return Start(
        rules[0].go_on(position, found),
        1 + (position.chunk if is_near else found.row.chunk),
        needs_position=True,
        is_row_last=rules[0].reason is Reason.RESTORED,
        resets_confirmed=rules[0].go_on is not _at_the_position,
    )


def _require_new_numbers(found: FoundDatabase) -> None:
    """A sequence is behind its table if it was set back, or only the table was copied."""
    highest = max((*found.row.cursor.numbers, *found.row.sent), default=0)
    if found.shards and highest > found.last_number:
        literal = "'" + found.sequence.replace("'", "''") + "'"
        raise StreamBroken(
            f"sequence {found.sequence} is at {found.last_number}, but row {highest} was sent: it "
            "was set back, or not copied with the table. Rows with numbers that were given twice "
            "are not sent: find them in Kafka or insert them again. Run SELECT "
            f"setval({literal}, {highest}), then start again. Nothing was written"
        )


def _sentence(rule: StartRule, position: Position, found: FoundDatabase) -> str:
    row = found.row
    is_whole = row[:2] == (position.chunk, position.cursor) and not row.cursor.ordinal
    return rule.sentence.format(
        position=position,
        found=found,
        known=position.chunk if position.chunk >= 0 else "nothing",
        lsn=lsn_text(found.lsn),
        slot=lsn_text(found.confirmed_flush_lsn),
        sent=lsn_text(_known_end(position, found)),
        moved=_NOT_NOTED if row.confirmed is None else _MOVED,
        copy=(_IS_COPY if is_whole else _IS_NO_COPY).format(position=position, row=row),
    )


# The log that the slot holds.


class HeldWal(NamedTuple):
    """How much of the log the slot keeps on the server's disk."""

    size_bytes: int
    restart_lsn: int
    """The slot needs the log from here on."""
    end_lsn: int = 0
    """Where the log ends."""


class HeldWalWatch:
    """Says when the slot holds more than a limit, and nothing makes it less."""

    PATIENCE_MS: Final = 60_000
    """The server moves the start of what it keeps only every 15 seconds or so."""

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._restart_lsn = self._rows = -1
        self._moved_ms = 0

    def is_stuck(self, held: HeldWal, rows: int, now_ms: int, *, keeps_up: bool) -> bool:
        """Whether to end: the slot does not move, and no backlog is getting smaller.

        Rows of a relay that keeps up are no sign that it will: then the slot holds the log for
        something else, such as a transaction that stays open, and new rows pass it by.
        """
        is_less = rows != self._rows and not keeps_up
        if held.restart_lsn != self._restart_lsn or is_less:
            self._moved_ms = now_ms
        self._restart_lsn, self._rows = held.restart_lsn, rows
        is_over = self._limit_bytes is not None and held.size_bytes > self._limit_bytes
        return is_over and now_ms - self._moved_ms >= self.PATIENCE_MS


class Release:
    """Says when it is worth a commit of the database to let the slot go beyond the position."""

    BYTES: Final = 16 * 1024 * 1024
    """The size of a file of the log: nothing smaller is released."""
    INTERVAL_MS: Final = 10_000

    def __init__(self) -> None:
        self._due_ms: int | None = None

    def is_due(self, size_bytes: int, now_ms: int, *, is_over_limit: bool) -> bool:
        """Whether to write `confirmed`, which lets the slot go on by so many bytes.

        What a limit is asked of is released whatever its size, before anybody is alarmed.
        """
        if self._due_ms is not None and now_ms < self._due_ms:
            return False
        if size_bytes < (1 if is_over_limit else self.BYTES):
            return False
        self._due_ms = now_ms + self.INTERVAL_MS
        return True
