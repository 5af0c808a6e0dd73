"""`--mode wal`: rows of a table, or messages, from the log of the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fencepost.outside.failures import OutsideError
from fencepost.outside.outbox.lsn import lsn_text
from fencepost.outside.outbox.pgoutput import Begin, Commit, Insert, Message, Relation, decode
from fencepost.outside.outbox.replication import Changes, Keepalive
from fencepost.outside.outbox.rows import ColumnNames, ColumnsMissing, TableMapping, read_message
from fencepost.outside.outbox.rules import (
    ChunkPlan,
    Cursor,
    FoundDatabase,
    HeldWal,
    HeldWalWatch,
    Limits,
    Phase,
    Release,
    StreamBroken,
)
from fencepost.outside.outbox.source import Pace, RelayCounts, Send

if TYPE_CHECKING:
    from fencepost.outside.outbox.database import Facts, OutboxDatabase
    from fencepost.outside.outbox.pgoutput import Decoded
    from fencepost.outside.outbox.replication import ReplicationStream

POLL_SECONDS: Final = 0.2
"""How soon a quiet relay notices that it is to stop."""


class HeldTooMuch(OutsideError):  # noqa: N818 - named for what is the case
    """The slot holds more of the log than allowed, and nothing makes it less."""


def find_log(database: OutboxDatabase, facts: Facts, stream: ReplicationStream) -> FoundDatabase:
    """A database whose log is read, as it is now."""
    # Before the row: what the slot was told is in the row by then.
    slot_lsn = database.confirmed_flush_lsn()
    return FoundDatabase(
        *stream.identify(),
        database.outbox.source,
        database.read_row(),
        publication=facts.publication["identity"],
        confirmed_flush_lsn=slot_lsn,
    )


class LogSource:
    """Streams a replication slot."""

    def __init__(
        self,
        database: OutboxDatabase,
        facts: Facts,
        limits: Limits,
        columns: ColumnNames,
        topic: str,
        max_held_bytes: int | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._outbox = database.outbox
        self._facts = facts
        self._table = facts.table.get("nspname"), facts.table.get("relname")
        self._limits, self._columns, self._topic = limits, columns, topic
        if self._outbox.table is not None:
            # Before anything is done; the log may have older columns.
            mapping = TableMapping(self._outbox.table, facts.columns, columns, topic)
            for name in mapping.columns:
                if name in facts.hidden:
                    raise ColumnsMissing(
                        f"column {name!r} of {self._outbox.table} is not in the log: it is "
                        "generated, or not in the column list of publication "
                        f"{self._outbox.publication!r}. Publish it, or name another one with "
                        "--topic-column, --key-column or --value-column"
                    )
        self._max_held_bytes = max_held_bytes
        self._now = now
        self._watch = HeldWalWatch(max_held_bytes)
        self._release = Release()
        self._plan = ChunkPlan(Cursor(), limits)
        self._relations: dict[int, TableMapping | None] = {}
        self._commit_ms = self._told = self._noted = self._read_lsn = self._target = 0
        self._is_quiet = False
        self._held = HeldWal(0, 0)
        self._stream = database.stream()

    def close(self) -> None:
        """Ends the replication connection; the slot is free soon after."""
        self._stream.close()

    @property
    def cursor(self) -> Cursor:
        """The cursor of a chunk that ends here."""
        return self._plan.cursor

    @property
    def rows(self) -> int:
        """Rows of the chunk so far."""
        return self._plan.rows

    @property
    def sent(self) -> tuple[int, ...]:
        """There are no numbers in the log."""
        return ()

    @property
    def commit_ms(self) -> int:
        """When the transaction at hand was committed."""
        return self._commit_ms

    @property
    def has_caught_up(self) -> bool:
        """Whether everything that was in the log at the start is in Kafka."""
        return self._plan.confirmable >= self._target

    def where(self) -> str:
        """Names the row at hand."""
        cursor = self._plan.cursor
        return f"row {cursor.ordinal} of the transaction at {lsn_text(cursor.commit_lsn)}"

    def find(self) -> FoundDatabase:
        """The database as it is now."""
        found = find_log(self._database, self._facts, self._stream)
        self._target = found.lsn
        return found

    def begin(self, cursor: Cursor) -> None:
        """Starts the stream."""
        self._plan = ChunkPlan(cursor, self._limits)
        self._noted = self._database.read_row().confirmed or 0
        self._stream.start(self._outbox.slot, self._outbox.publication)
        # Nobody else can move it from here on.
        slot_lsn = self._database.confirmed_flush_lsn()
        if slot_lsn > self._may_be_told:
            raise StreamBroken(
                f"slot {self._outbox.slot!r} went on to {lsn_text(slot_lsn)} while the relay "
                "started: something else reads or moves it. Start again"
            )
        # Until the first frame comes, which may take a while.
        self._read_lsn = max(cursor.end_lsn, slot_lsn)

    def advance(self, send: Send) -> Pace:
        """Handles one frame."""
        plan = self._plan
        is_waiting = plan.is_behind and plan.phase is Phase.BETWEEN
        frame = self._stream.receive(0 if is_waiting else POLL_SECONDS)
        self._is_quiet = frame is None
        if isinstance(frame, Changes):
            # Changes of a transaction are older than the commits before it.
            self._read_lsn = max(self._read_lsn, frame.lsn)
            self._handle(decode(frame.data), len(frame.data), send)
            # The next row is often here already.
            return Pace.FILLING if plan.is_filling else Pace.READING
        if isinstance(frame, Keepalive):
            self._read_lsn = max(self._read_lsn, frame.lsn)
            plan.keepalive(frame.lsn)
        return Pace.PAUSING

    def _handle(self, message: Decoded | None, size_bytes: int, send: Send) -> None:
        plan = self._plan
        if isinstance(message, Insert):
            mapping = self._relations.get(message.relation_id)
            if mapping is not None and plan.row(size_bytes):
                send(lambda: mapping.read(message.values))
        elif isinstance(message, Begin):
            plan.begin(message.commit_lsn)
            self._commit_ms = message.commit_ms
        elif isinstance(message, Commit):
            plan.commit(message.end_lsn)
        elif isinstance(message, Relation):
            self._relations[message.relation_id] = self._mapping_of(message)
        elif isinstance(message, Message) and self._is_ours(message) and plan.row(size_bytes):
            send(lambda: read_message(message.content))

    def _mapping_of(self, relation: Relation) -> TableMapping | None:
        # The log has the name of back then, which is another one if the table was renamed.
        is_same = relation.relation_id == int(self._facts.table.get("oid", 0))
        if not is_same and (relation.schema, relation.name) != self._table:
            return None
        assert self._outbox.table is not None
        return TableMapping(self._outbox.table, relation.columns, self._columns, self._topic)

    def _is_ours(self, message: Message) -> bool:
        """Messages outside transactions come even if their transaction is rolled back."""
        is_wanted = self._outbox.table is None and message.prefix == self._outbox.prefix
        return is_wanted and message.is_transactional

    def is_due(self, open_ms: int) -> bool:
        """Whether the chunk ends here."""
        return self._plan.is_due(is_quiet=self._is_quiet, open_ms=open_ms)

    def chunk_committed(self) -> None:
        """The chunk is in Kafka."""
        self._plan.chunk_committed()

    @property
    def _may_be_told(self) -> int:
        """How far the slot may go: both are stored where a start finds them."""
        return max(self._plan.stored_lsn, self._noted)

    def note_confirmed(self) -> bool:
        """Stores how far the slot may go beyond the position, if that releases enough."""
        plan = self._plan
        size_bytes = plan.confirmable - self._may_be_told
        is_over = self._max_held_bytes is not None and self._held.size_bytes > self._max_held_bytes
        if plan.is_behind or not self._release.is_due(
            size_bytes, int(self._now() * 1_000), is_over_limit=is_over
        ):
            return False
        self._database.write_confirmed(plan.confirmable)
        self._noted = plan.confirmable
        return True

    def confirm(self) -> bool:
        """Tells the slot what it need not keep."""
        if self._may_be_told <= self._told:
            return False
        self._told = self._may_be_told
        self._stream.confirm(self._told)
        return True

    def note(self, counts: RelayCounts) -> None:
        """Writes down what the slot holds, and how much of the log is to be read."""
        counts.held_wal_bytes = self._held.size_bytes
        counts.behind_bytes = max(0, self._held.end_lsn - self._read_lsn)

    def look(self, rows: int) -> None:
        """Asks what the slot holds; HeldTooMuch if it is over the limit and nothing moves."""
        keeps_up = self._plan.confirmable >= self._held.end_lsn
        held = self._held = self._database.held_wal()
        now_ms = int(self._now() * 1_000)
        if self._watch.is_stuck(held, rows, now_ms, keeps_up=keeps_up):
            raise HeldTooMuch(
                f"slot {self._outbox.slot!r} holds {held.size_bytes} bytes of the log, more than "
                f"{self._max_held_bytes}, and did not move for a minute: end long "
                "transactions (pg_stat_activity), or drop the slot and lose what was not relayed. "
                "The relay ended; the slot still holds the log"
            )
