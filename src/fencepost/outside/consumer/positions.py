"""The table of positions: one row per group, topic and partition.

    group_name, topic, partition   the key
    topic_id                       of the topic that the offset belongs to, as Kafka's tools show it
    next_offset                    of the record to read next; NULL: begin as a new partition does
    epoch, owner                   of the last claim; an update by any other changes nothing
    claimed_at, committed_at       for people

The epoch alone would fence, unless the database was restored to an older state: then its numbers
come again. Owners never do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.outside.consumer.rule import Found, Partition, Refusal, Stored
from fencepost.outside.failures import PositionRefused

if TYPE_CHECKING:
    from psycopg.sql import Composed

    from fencepost.outside.connection import Connection

DEFAULT_TABLE: Final = "fencepost_offsets"
ZOMBIE_MILLISECONDS: Final = 10_000
"""A process that freezes between its update and its commit holds the lock on its rows. The server
ends such a session after this time, so that others can claim the partitions."""

# With half a page free, updates stay in their page, and need no new entry in the index.
_CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS {table} (group_name text, topic text, partition integer, "
    "topic_id text, next_offset bigint, epoch bigint NOT NULL, owner text NOT NULL, "
    "claimed_at timestamptz NOT NULL DEFAULT now(), committed_at timestamptz, "
    "PRIMARY KEY (group_name, topic, partition)) WITH (fillfactor = 50)"
)
_READ: Final = (
    "SELECT topic_id, next_offset, epoch, owner FROM {table}"
    " WHERE group_name = %s AND topic = %s AND partition = %s"
)
_CLAIM: Final = (
    "INSERT INTO {table} AS old (group_name, topic, partition, topic_id, next_offset, epoch, owner)"
    " VALUES (%s, %s, %s, %s, %s, 1, %s)"
    " ON CONFLICT (group_name, topic, partition) DO UPDATE"
    " SET epoch = old.epoch + 1, owner = EXCLUDED.owner, claimed_at = now(),"
    " topic_id = coalesce(old.topic_id, EXCLUDED.topic_id),"
    " next_offset = coalesce(old.next_offset, EXCLUDED.next_offset)"
    " RETURNING topic_id, next_offset, epoch, owner"
)
_ADVANCE: Final = (
    "UPDATE {table} SET next_offset = %s, committed_at = now()"
    " WHERE group_name = %s AND topic = %s AND partition = %s"
    " AND next_offset = %s"
    " AND epoch = %s AND owner = %s"
)
_MARK: Final = "SET LOCAL fencepost.batch = 'open'"
"""It takes no snapshot, so that SET TRANSACTION may follow, and PostgreSQL forgets it with the
transaction: COMMIT, ROLLBACK, their AND CHAIN, and PREPARE TRANSACTION all end it."""
_LIMIT_LOCKS: Final = (
    "SELECT set_config('idle_in_transaction_session_timeout', %s, true),"
    " current_setting('fencepost.batch', true) = 'open'"
)

_REFUSED: Final = {
    Refusal.RECREATED: (
        "topic {partition.topic!r} was deleted and created again: offset {stored.next_offset} of "
        "{partition} belongs to the topic with id {stored.topic_id}; to begin anew in this one, "
        "run UPDATE {table} SET next_offset = NULL, topic_id = NULL WHERE {topic}"
    ),
    Refusal.EXPIRED: (
        "{partition} begins at offset {found.log_start}, but {stored.next_offset} is the next one "
        "to apply: what was between them is deleted; to go on without it, run UPDATE {table} SET "
        "next_offset = {found.log_start} WHERE {topic} AND partition = {partition.partition}"
    ),
    Refusal.BEYOND_END: (
        "{partition} ends at offset {found.end}, but {stored.next_offset} is the next one to "
        "apply: Kafka lost records, or the position is wrong; to go on at the end, run UPDATE "
        "{table} SET next_offset = {found.end} WHERE {topic} AND partition = {partition.partition}"
    ),
}


class OtherTransaction(Exception):  # noqa: N818 - named for what is the case
    """The transaction that was marked has ended, and another one is open."""


class Advance(NamedTuple):
    """A row that a batch moves, from the offset that it holds to the one behind the records."""

    partition: Partition
    held: Stored
    after: int


class Positions:
    """The rows of one group. All methods but `mark` and `advance` are transactions of their own."""

    def __init__(self, table: str, group: str) -> None:
        """`table` may have the name of its schema before it."""
        self.table = table
        self.group = group

    def creation(self) -> str:
        """The statement that creates the table."""
        return self._sql(_CREATE).as_string(None)

    def exists(self, connection: Connection) -> bool:
        """Whether the table can be found with this connection's search path."""
        name = self._sql("{table}").as_string(None)
        return connection.execute("SELECT to_regclass(%s)", [name]).fetchone() != (None,)

    def read(self, connection: Connection, partition: Partition, *, lock: bool = False) -> Stored:
        """The row; `lock` waits for a transaction that has changed it."""
        sql = self._sql(_READ + (" FOR UPDATE" if lock else ""))
        row = connection.execute(sql, [self.group, *partition]).fetchone()
        return Stored(*row) if row else Stored()

    def claim(
        self, connection: Connection, partition: Partition, topic_id: str, begin: int, owner: str
    ) -> Stored:
        """Raises the epoch; the row gets `topic_id` and `begin` where it has none."""
        values = [self.group, *partition, topic_id, begin, owner]
        row = connection.execute(self._sql(_CLAIM), values).fetchone()
        assert row is not None
        return Stored(*row)

    def mark(self, connection: Connection) -> None:
        """Marks the transaction that has just begun."""
        connection.execute(_MARK)

    def advance(
        self, connection: Connection, advances: Sequence[Advance], *, is_marked: bool = False
    ) -> list[Advance]:
        """Moves rows in the open transaction; returns those that did not move.

        `is_marked`: OtherTransaction if the open one is not that which was marked.
        """
        limited = connection.execute(_LIMIT_LOCKS, [str(ZOMBIE_MILLISECONDS)]).fetchone()
        assert limited is not None
        if is_marked and not limited[1]:
            raise OtherTransaction
        # In one order for all, so that two transactions never wait for each other.
        return [each for each in sorted(advances) if not self._move(connection, each)]

    def _move(self, connection: Connection, advance: Advance) -> bool:
        partition, held, after = advance
        values = [after, self.group, *partition, held.next_offset, held.epoch, held.owner]
        return connection.execute(self._sql(_ADVANCE), values).rowcount == 1

    def why_not(self, connection: Connection, advance: Advance) -> str:
        """Why a row did not move, for people."""
        partition, held, _ = advance
        row = self.read(connection, partition)
        if row.epoch == 0:
            return f"the row of {partition} in {self.table} is gone"
        if (row.epoch, row.owner) != (held.epoch, held.owner):
            return f"{partition} was claimed by {row.owner}, epoch {row.epoch}"
        return (
            f"the row of {partition} in {self.table} says {row.next_offset}, not "
            f"{held.next_offset}: it was changed, or restored"
        )

    def refuse(
        self, refusal: Refusal, partition: Partition, stored: Stored, found: Found
    ) -> PositionRefused:
        """The exception, with the statement that accepts what was found."""
        from psycopg.sql import SQL, Literal

        topic = SQL("group_name = {} AND topic = {}").format(
            Literal(self.group), Literal(partition.topic)
        )
        return PositionRefused(
            _REFUSED[refusal].format(
                partition=partition,
                stored=stored,
                found=found,
                table=self._sql("{table}").as_string(None),
                topic=topic.as_string(None),
            )
        )

    def _sql(self, text: str) -> Composed:
        from psycopg.sql import SQL, Identifier

        return SQL(text).format(table=Identifier(*self.table.split(".")))
