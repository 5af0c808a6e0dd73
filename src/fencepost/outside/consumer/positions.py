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
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from fencepost.outside.consumer.rule import NOTHING_STORED, Found, Partition, Refusal, Stored
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
    " WHERE group_name = %(group)s AND topic = %(topic)s AND partition = %(partition)s"
)
_CLAIM: Final = (
    "INSERT INTO {table} AS old (group_name, topic, partition, topic_id, next_offset, epoch, owner)"
    " VALUES (%(group)s, %(topic)s, %(partition)s, %(topic_id)s, %(next_offset)s, 1, %(owner)s)"
    " ON CONFLICT (group_name, topic, partition) DO UPDATE"
    " SET epoch = old.epoch + 1, owner = EXCLUDED.owner, claimed_at = now(),"
    " topic_id = coalesce(old.topic_id, EXCLUDED.topic_id),"
    " next_offset = coalesce(old.next_offset, EXCLUDED.next_offset)"
    " RETURNING topic_id, next_offset, epoch"
)
_ADVANCE: Final = (
    "UPDATE {table} SET next_offset = %(after)s, committed_at = now()"
    " WHERE group_name = %(group)s AND topic = %(topic)s AND partition = %(partition)s"
    " AND next_offset = %(before)s"
    " AND epoch = %(epoch)s AND owner = %(owner)s"
)
_LIMIT_LOCKS: Final = "SELECT set_config('idle_in_transaction_session_timeout', %s, true)"


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to move one row, as long as no later claim is made."""

    partition: Partition
    topic_id: str
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True)
class Advance:
    """A row that a batch moves: from the offset where its records begin to the one behind them."""

    claim: Claim
    before: int
    after: int


class Outcome(Enum):
    """What the row says of an advance whose commit got no answer."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    TAKEN = "taken"
    """By a later claim: the records were applied or will be, by whom is not known."""


class Positions:
    """The rows of one group."""

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
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone()
        return row == (True,)

    def read(self, connection: Connection, partition: Partition) -> Stored:
        row = connection.execute(self._sql(_READ), self._key(partition)).fetchone()
        return NOTHING_STORED if row is None else Stored(row[0], row[1])

    def claim(
        self, connection: Connection, partition: Partition, topic_id: str, begin: int, owner: str
    ) -> tuple[Claim, Stored]:
        """Raises the epoch; the row gets `topic_id` and `begin` where it has none."""
        values = self._key(partition) | {
            "topic_id": topic_id,
            "next_offset": begin,
            "owner": owner,
        }
        row = connection.execute(self._sql(_CLAIM), values).fetchone()
        assert row is not None
        return Claim(partition, row[0], row[2], owner), Stored(row[0], row[1])

    def advance(self, connection: Connection, advances: Sequence[Advance]) -> list[Advance]:
        """Moves rows in the open transaction; returns those that did not move."""
        connection.execute(_LIMIT_LOCKS, [str(ZOMBIE_MILLISECONDS)])
        return [
            each
            # In one order for all, so that two transactions never wait for each other.
            for each in sorted(advances, key=lambda each: each.claim.partition)
            if connection.execute(self._sql(_ADVANCE), self._values(each)).rowcount != 1
        ]

    def why_not(self, connection: Connection, advance: Advance) -> str:
        """Why a row did not move, for people."""
        claim = advance.claim
        where = f"the row of {claim.partition} in {self.table}"
        row = connection.execute(self._sql(_READ), self._key(claim.partition)).fetchone()
        if row is None:
            return f"{where} is gone"
        if (row[2], row[3]) != (claim.epoch, claim.owner):
            return f"{claim.partition} was claimed by {row[3]}, epoch {row[2]}"
        return f"{where} says {row[1]}, not {advance.before}: it was changed, or restored"

    def outcome(self, connection: Connection, advance: Advance) -> Outcome:
        """What became of an advance; waits for a transaction that still holds the row."""
        claim = advance.claim
        sql = self._sql(_READ + " FOR UPDATE")
        row = connection.execute(sql, self._key(claim.partition)).fetchone()
        if row is None or (row[2], row[3]) != (claim.epoch, claim.owner):
            return Outcome.TAKEN
        by_offset = {advance.after: Outcome.COMMITTED, advance.before: Outcome.ROLLED_BACK}
        return by_offset.get(row[1], Outcome.TAKEN)

    def refuse(
        self, refusal: Refusal, partition: Partition, stored: Stored, found: Found
    ) -> PositionRefused:
        """The exception for a refusal, with the statement that accepts it."""
        where = self._sql(
            "WHERE group_name = {group} AND topic = {topic}", topic=partition.topic
        ).as_string(None)
        row = f"{where} AND partition = {partition.partition}"
        update = f"UPDATE {self.table} SET"
        sentence = {
            Refusal.RECREATED: (
                f"topic {partition.topic!r} was deleted and created again: the position of "
                f"{partition}, {stored.next_offset}, belongs to the topic with id "
                f"{stored.topic_id}; to begin anew in this one, run {update} next_offset = NULL, "
                f"topic_id = NULL {where}"
            ),
            Refusal.EXPIRED: (
                f"{partition} begins at offset {found.log_start}, but {stored.next_offset} is the "
                "next one to apply: what was between them is deleted; to go on without it, run "
                f"{update} next_offset = {found.log_start} {row}"
            ),
            Refusal.BEYOND_END: (
                f"{partition} ends at offset {found.end}, but {stored.next_offset} is the next one "
                "to apply: Kafka lost records, or the position is wrong; to go on at the end, run "
                f"{update} next_offset = {found.end} {row}"
            ),
        }
        return PositionRefused(sentence[refusal])

    def _sql(self, text: str, **literals: str) -> Composed:
        from psycopg.sql import SQL, Identifier, Literal

        named = {name: Literal(value) for name, value in literals.items()}
        return SQL(text).format(
            table=Identifier(*self.table.split(".")), group=Literal(self.group), **named
        )

    def _key(self, partition: Partition) -> dict[str, object]:
        return {
            "group": self.group,
            "topic": partition.topic,
            "partition": partition.partition,
        }

    def _values(self, advance: Advance) -> dict[str, object]:
        claim = advance.claim
        return self._key(claim.partition) | {
            "after": advance.after,
            "before": advance.before,
            "epoch": claim.epoch,
            "owner": claim.owner,
        }
