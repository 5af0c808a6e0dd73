"""The ledger table: one row per sink, moved by the transaction that moves its rows.

    sink_id                  the key
    query_id, batch_id       of the last batch, for people
    entry                    what the sink recorded about it; its own words. NULL: nothing yet
    committed_at             for people

Whoever merges takes the lock on the row first. A row that is not there cannot be locked, so it is
inserted: a second session waits for the first one's transaction, and then reads what it committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.outside.failures import DatabaseRefused

if TYPE_CHECKING:
    from psycopg.sql import Composed

    from fencepost.outside.connection import Connection

DEFAULT_TABLE: Final = "fencepost_ledger"
ZOMBIE_MILLISECONDS: Final = 10_000
"""A process that freezes before its COMMIT holds the lock on its row. The server ends such a
session after this time, so that a successor can go on."""

_CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS {table} (sink_id text PRIMARY KEY, query_id text, batch_id bigint,"
    " entry text, committed_at timestamptz NOT NULL DEFAULT now())"
)
_SCHEMA: Final = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass(%s)"
_READ: Final = "SELECT entry FROM {table} WHERE sink_id = %s"
_INSERT: Final = "INSERT INTO {table} (sink_id) VALUES (%s) ON CONFLICT DO NOTHING"
_WRITE: Final = (
    "UPDATE {table} SET query_id = %s, batch_id = %s, entry = %s, committed_at = now()"
    " WHERE sink_id = %s"
)
_BEGIN: Final = (
    "SELECT set_config('idle_in_transaction_session_timeout', %s, true),"
    # What the batch's successor relies on must not be taken back by a crash of the server.
    " set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
)


class LedgerTable:
    """The row of one sink."""

    def __init__(self, table: str, sink_id: str) -> None:
        """`table` may have the name of its schema before it."""
        self.table = table
        self.sink_id = sink_id

    def owner(self, connection: Connection) -> str:
        """The name of the sink among those of all ledger tables of the database.

        Tables of one name may be in several schemas: the search path says which one is meant.
        """
        name = self._sql("{table}").as_string(None)
        (schema,) = connection.execute(_SCHEMA, [name]).fetchone() or ("",)
        return f"{schema} {self.table} {self.sink_id}"

    def creation(self) -> str:
        """The statement that creates the table."""
        return self._sql(_CREATE).as_string(None)

    def ensure(self, connection: Connection) -> None:
        """Creates the table if there is none."""
        from psycopg.errors import DuplicateTable, InsufficientPrivilege, UniqueViolation

        name = self._sql("{table}").as_string(None)
        if connection.execute("SELECT to_regclass(%s)", [name]).fetchone() != (None,):
            return
        try:
            connection.execute(self._sql(_CREATE))
        except (DuplicateTable, UniqueViolation):
            pass  # Another sink has created it at the same moment.
        except InsufficientPrivilege:
            raise DatabaseRefused(
                f"there is no table {self.table}, and the user may not create it: let someone who "
                f"may run {self.creation()}; GRANT SELECT, INSERT, UPDATE ON {self.table} TO this "
                "user"
            ) from None

    def read(self, connection: Connection) -> str | None:
        """The entry, as it is committed now."""
        row = connection.execute(self._sql(_READ), [self.sink_id]).fetchone()
        return None if row is None else row[0]

    def lock(self, connection: Connection) -> str | None:
        """The entry, which no one else can change until the open transaction ends."""
        connection.execute(_BEGIN, [str(ZOMBIE_MILLISECONDS)])
        connection.execute(self._sql(_INSERT), [self.sink_id])
        row = connection.execute(self._sql(_READ + " FOR UPDATE"), [self.sink_id]).fetchone()
        assert row is not None
        return None if row[0] is None else str(row[0])

    def write(self, connection: Connection, query_id: str, batch_id: int, entry: str) -> None:
        """Records a batch, in the transaction that holds the lock."""
        values = [query_id, batch_id, entry, self.sink_id]
        count = connection.execute(self._sql(_WRITE), values).rowcount
        assert count == 1, "the row is locked"

    def _sql(self, text: str) -> Composed:
        from psycopg.sql import SQL, Identifier

        return SQL(text).format(table=Identifier(*self.table.split(".")))
