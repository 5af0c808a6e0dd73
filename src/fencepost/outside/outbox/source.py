"""What the relay needs of a source of rows: the log of the database, or a numbered table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from fencepost.outside.outbox.rows import Outgoing
from fencepost.outside.outbox.rules import Cursor, FoundDatabase

Send = Callable[[Callable[[], Outgoing]], None]
"""Sends a row to Kafka, once it has been made a record."""


class Pace(Enum):
    """What comes after a piece of a source."""

    FILLING = "filling"
    """More of the same chunk, whatever the clock says."""
    READING = "reading"
    """More is probably there."""
    PAUSING = "pausing"
    """Nothing more is there, or it is a good moment to look around."""


@dataclass
class RelayCounts:
    """What a relay has done, and how far it is behind. Another thread may read it."""

    rows: int = 0
    chunks: int = 0
    dead_letters: int = 0
    """Rows that no topic accepts, and which are dead letters now."""
    behind_bytes: int | None = None
    """How much of the log is still to be read; None: a table is read."""
    behind_rows: int | None = None
    """How many rows of the table are still to be read; None: the log is read."""
    oldest_unsent_at_ms: int | None = None
    """When the oldest row that is not committed to Kafka was committed to the database."""
    held_wal_bytes: int | None = None
    """How much of the log the slot holds; None: there is no slot."""
    has_caught_up: bool = False
    """Whether everything that was there at the start is in Kafka."""

    @property
    def done(self) -> int:
        """Rows that need not be read again."""
        return self.rows + self.dead_letters


class Source(Protocol):
    """Rows in an order that holds for each key, from a cursor on."""

    @property
    def cursor(self) -> Cursor:
        """The cursor of a chunk that ends here."""

    @property
    def rows(self) -> int:
        """Rows of the chunk so far."""

    @property
    def sent(self) -> tuple[int, ...]:
        """Numbers of a table, up to which rows are in Kafka for certain."""

    @property
    def commit_ms(self) -> int:
        """When the row at hand was committed."""

    @property
    def has_caught_up(self) -> bool:
        """Whether everything that was there at the start is in Kafka."""

    def where(self) -> str:
        """Names the row at hand, for people."""

    def find(self) -> FoundDatabase:
        """The database as it is now."""

    def begin(self, cursor: Cursor) -> None:
        """Starts to read after the cursor; SlotInUse if a predecessor still does."""

    def advance(self, send: Send) -> Pace:
        """Reads on, sends what comes, and waits a moment if nothing does."""

    def is_due(self, open_ms: int) -> bool:
        """Whether the chunk ends here."""

    def chunk_committed(self) -> None:
        """The chunk is in Kafka."""

    def note_confirmed(self) -> bool:
        """Stores in the database what it need not keep, if that is much; returns whether it did."""

    def confirm(self) -> bool:
        """Tells the database what it need not keep; returns whether it did."""

    def look(self, rows: int) -> None:
        """Asks the database how far the relay is behind; raises if that is too much.

        `rows` are in Kafka so far, or were left out.
        """

    def note(self, counts: RelayCounts) -> None:
        """Writes down how far that is, without asking."""

    def close(self) -> None:
        """Ends its connection."""
