"""`--mode table`: rows of a table that numbers them when their transaction commits.

`numbering.py` has the triggers. The relay asks for the rows of each shard above its last number,
and streams them, so neither a large backlog nor large rows take memory. A query sees the database
at one moment; `rules.py` says why no lower number can appear in a shard afterwards.

What is flushed. A transaction with `synchronous_commit=off` is visible before it is on the disk,
and a crash takes it back. Its rows may be read, and sent in an open transaction of Kafka; but
before that commits, the database commits the row of the chunk, with `synchronous_commit=on`. The
log is flushed in order: so by then everything that was read is on the disk too.

The query has a connection of its own, because the row of the chunk is written while rows are left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fencepost.outside.outbox.numbering import sequence_of
from fencepost.outside.outbox.rows import BYTEA, ColumnNames, ColumnsMissing, TableMapping
from fencepost.outside.outbox.rules import SEQUENCE, Cursor, FoundDatabase, Limits, TablePlan
from fencepost.outside.outbox.source import Pace, RelayCounts, Send

if TYPE_CHECKING:
    from fencepost.outside.connection import Connection
    from fencepost.outside.outbox.database import Facts, OutboxDatabase

POLL_SECONDS: Final = 0.005
"""The pause after a query without rows; it doubles up to MAX_POLL_SECONDS."""
MAX_POLL_SECONDS: Final = 0.1

_TEXT: Final = 25
_FIXED_COLUMNS: Final = 3


def find_numbered(database: OutboxDatabase, facts: Facts) -> FoundDatabase:
    """A database with a numbered table as it is now."""
    system_id, timeline, lsn = database.identify()
    numbering = facts.numbering
    assert numbering is not None
    return FoundDatabase(
        system_id,
        timeline,
        lsn,
        f"numbered {database.outbox.source}{SEQUENCE}{numbering.sequence_oid})",
        database.read_row(),
        numbering.shards,
        database.last_number(numbering.sequence_oid),
        sequence_of(database.outbox.table or ""),
    )


class TableSource:
    """Queries a numbered table."""

    def __init__(
        self,
        database: OutboxDatabase,
        facts: Facts,
        limits: Limits,
        columns: ColumnNames,
        topic: str,
    ) -> None:
        assert database.outbox.table is not None
        self._database = database
        self._facts = facts
        self._limits = limits
        self._table = database.outbox.table
        # The query returns all values as bytes.
        values = [(name, _TEXT) for name, _ in facts.columns]
        self._mapping = TableMapping(self._table, values, columns, topic)
        assert facts.numbering is not None
        if (key := self._mapping.key_column) != (facts.numbering.key_column or None):
            raise ColumnsMissing(
                f"the shards of {self._table} go by column {facts.numbering.key_column!r}, and the "
                f"key of the records is {key!r}, so the order of keys would not be kept: name the "
                "same one with --key-column here and at init"
            )
        self._select = "".join(
            f", r.{quoted}" if oid == BYTEA else f", convert_to(r.{quoted}::text, 'UTF8')"
            for name, oid in facts.columns
            for quoted in ['"' + name.replace('"', '""').replace("%", "%%") + '"']
        )
        self._plan = TablePlan(Cursor(), limits)
        self._found: Iterator[tuple[Any, ...]] | None = None
        self._returned: dict[int, int] = {}
        self._is_quiet = self._has_caught_up = False
        self._pause = POLL_SECONDS
        self._at = (0, 0)
        self._commit_ms = 0
        self._counted = self._counted_at = 0
        self._connection: Connection = database.connect_reader()

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

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
        """The numbers up to which rows are in Kafka for certain."""
        return self._plan.sent

    @property
    def commit_ms(self) -> int:
        """When the row at hand was numbered, which is just before its commit."""
        return self._commit_ms

    @property
    def has_caught_up(self) -> bool:
        """Whether everything that was in the table at the start is in Kafka."""
        return self._has_caught_up

    def where(self) -> str:
        """Names the row at hand."""
        return "row {1} of shard {0}".format(*self._at)

    def find(self) -> FoundDatabase:
        """The database as it is now."""
        return find_numbered(self._database, self._facts)

    def begin(self, cursor: Cursor) -> None:
        """Reads on after the cursor. It may be of another number of shards: all are read."""
        assert self._facts.numbering is not None
        more = max(0, self._facts.numbering.shards - len(cursor.numbers))
        padded = cursor._replace(numbers=cursor.numbers + (0,) * more)
        self._plan = TablePlan(padded, self._limits)

    def advance(self, send: Send) -> Pace:
        """Handles one row, or the end of a query."""
        if self._found is None:
            self._found = self._query()
            self._returned.clear()
        row = next(self._found, None)
        if row is None:
            return self._end_query()
        (shard, number, self._commit_ms), values = row[:_FIXED_COLUMNS], row[_FIXED_COLUMNS:]
        self._at = shard, number
        self._returned[shard] = self._returned.get(shard, 0) + 1
        self._plan.row(shard, number, sum(len(value) for value in values if value))
        send(lambda: self._mapping.read(values))
        return Pace.READING if self._plan.is_full else Pace.FILLING

    def _end_query(self) -> Pace:
        self._found = None
        limit = self._plan.rows_per_shard
        self._is_quiet = limit is None or all(n < limit for n in self._returned.values())
        if self._returned:
            self._pause = POLL_SECONDS
        elif not self._plan.rows:
            self._has_caught_up = True
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, MAX_POLL_SECONDS)
        return Pace.PAUSING

    def _query(self) -> Iterator[tuple[Any, ...]]:
        """The next rows of each shard, in order."""
        limit = self._plan.rows_per_shard
        table = self._table.replace("%", "%%")
        query = (
            "SELECT r.fencepost_shard, r.fencepost_number, "  # noqa: S608
            f"(extract(epoch FROM r.fencepost_at) * 1000)::bigint{self._select} "
            "FROM unnest(%s::int[], %s::bigint[]) AS c (shard, number), "
            f"LATERAL (SELECT * FROM {table} t WHERE t.fencepost_shard = c.shard "
            "AND t.fencepost_number > c.number ORDER BY t.fencepost_number"
            f"{'' if limit is None else f' LIMIT {limit}'}) r"
        )
        numbers = list(self._plan.cursor.numbers)
        arguments = [list(range(len(numbers))), numbers]
        with self._database.explaining(f"reading {self._table}"):
            yield from self._connection.cursor(binary=True).stream(query.encode(), arguments)

    def is_due(self, open_ms: int) -> bool:
        """Whether the chunk ends here."""
        is_between = self._found is None
        return self._plan.is_due(
            is_between=is_between, is_quiet=is_between and self._is_quiet, open_ms=open_ms
        )

    def chunk_committed(self) -> None:
        """The chunk is in Kafka."""
        self._plan.chunk_committed()
        if self._found is None and self._is_quiet:
            self._has_caught_up = True

    def note_confirmed(self) -> bool:
        """The database keeps nothing for the relay."""
        return False

    def confirm(self) -> bool:
        """The database keeps nothing for the relay."""
        return False

    def note(self, counts: RelayCounts) -> None:
        """Writes down how many rows are left."""
        counts.behind_rows = max(0, self._counted - (counts.done - self._counted_at))

    def look(self, rows: int) -> None:
        """Counts the rows that are not in Kafka, when those of the last count are."""
        if rows - self._counted_at >= self._counted:
            self._counted_at = rows
            self._counted = self._database.count_above(self._plan.sent)
