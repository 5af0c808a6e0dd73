"""The staging table of one attempt, in the schema of the table that its rows go to.

fencepost_stage_<digest of the sink>_<batch>_<random>

the table's columns of the rows, with its types     a value that does not fit fails in COPY
columns that only order the rows
fencepost_attempt                                   which attempt of which task copied the row
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from fencepost.outside.connection import require_psycopg
from fencepost.outside.failures import DatabaseRefused, DatabaseUnavailable
from fencepost.outside.table.target import Shape

if TYPE_CHECKING:
    from psycopg.sql import Composed

    from fencepost.outside.connection import Connection, Database

log = logging.getLogger(__name__)

ATTEMPT: Final = "fencepost_attempt"
_RANK: Final = "fencepost_rank"
_PREFIX: Final = "fencepost_stage_"

DROP_MILLISECONDS: Final = 200
"""How long to wait for the session of a dead writer. The next batch tries again."""

_ORPHANS: Final = (
    "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind = 'r' AND starts_with(c.relname::text, %s)"
)
_LIMIT_WAIT: Final = "SELECT set_config('lock_timeout', %s, true)"


@dataclass(frozen=True, slots=True)
class Staging:
    """One staging table."""

    shape: Shape
    name: str

    @classmethod
    def of(cls, shape: Shape, owner: str, batch_id: int) -> Self:
        """A new name. `owner` names the sink, and so what `drop_all` may drop."""
        return cls(shape, f"{_prefix(owner)}{batch_id}_{secrets.token_hex(4)}")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows, as they are copied."""
        return (*self.shape.columns, *self.shape.extra)

    # Statements.

    def creation(self) -> Composed:
        """Creates it."""
        from psycopg.sql import SQL, Identifier

        known, extra = self.shape.target.columns, self.shape.extra
        types = {name: known[name].declared for name in self.shape.columns}
        types |= {name: value.own_type for name, value in extra.items()} | {ATTEMPT: "bigint"}
        listed = SQL(", ").join(
            # The types are the server's own words, or ours.
            SQL("{} {}").format(Identifier(name), SQL(kind))
            for name, kind in types.items()
        )
        return SQL("CREATE UNLOGGED TABLE {} ({})").format(self._identifier, listed)

    def copying(self) -> Composed:
        """Copies rows into it, in the text format."""
        from psycopg.sql import SQL

        listed = _names((*self.columns, ATTEMPT))
        return SQL("COPY {} ({}) FROM STDIN").format(self._identifier, listed)

    def merging(self, attempts: Iterable[int]) -> Composed:
        """Moves the rows of these attempts into the table.

        It has no parameters: beside one, psycopg would take a % in a name for another.
        """
        from psycopg.sql import SQL, Identifier

        shape = self.shape
        chosen = SQL("{} = ANY ({})").format(Identifier(ATTEMPT), sorted(attempts))
        rows = SQL("SELECT {} FROM {} WHERE {}").format(
            _names(shape.columns), self._identifier, chosen
        )
        if shape.key and shape.order:
            rows = self._newest(chosen)
        elif shape.order:
            ordered = SQL(", ").join(
                SQL("{} NULLS FIRST").format(Identifier(name)) for name in shape.order
            )
            rows = SQL("{} ORDER BY {}").format(rows, ordered)
        names = _names(shape.columns)
        found = SQL("INSERT INTO {} ({}) {}").format(shape.target.identifier, names, rows)
        return SQL("{} {}").format(found, _on_conflict(shape)) if shape.key else found

    def _newest(self, chosen: Composed) -> Composed:
        """The last row of each key. Where two are last, the upsert fails: which one is not told."""
        from psycopg.sql import SQL, Identifier

        last = SQL(", ").join(
            SQL("{} DESC NULLS LAST").format(Identifier(name)) for name in self.shape.order
        )
        ranked = SQL(
            "SELECT *, rank() OVER (PARTITION BY {key} ORDER BY {last}) AS {rank} FROM {table}"
            " WHERE {chosen}"
        ).format(
            key=_names(self.shape.key),
            last=last,
            rank=Identifier(_RANK),
            table=self._identifier,
            chosen=chosen,
        )
        return SQL("SELECT {} FROM ({}) AS ranked WHERE {} = 1").format(
            _names(self.shape.columns), ranked, Identifier(_RANK)
        )

    @property
    def _identifier(self) -> Composed:
        from psycopg.sql import SQL, Identifier

        return SQL("{}").format(Identifier(self.shape.target.schema, self.name))

    # What the driver does with it.

    def create(self, connection: Connection) -> None:
        """Creates it, outside of a transaction."""
        connection.execute(self.creation())

    def count(self, connection: Connection) -> dict[int, int]:
        """How many rows each attempt has in it."""
        from psycopg.sql import SQL, Identifier

        sql = SQL("SELECT {0}, count(*) FROM {1} GROUP BY {0}")
        with _noticing_a_loss():
            rows = connection.execute(sql.format(Identifier(ATTEMPT), self._identifier)).fetchall()
        return {int(attempt): int(count) for attempt, count in rows}

    def merge(self, connection: Connection, attempts: Iterable[int]) -> None:
        """Moves the rows of these attempts into the table, in the open transaction."""
        from psycopg.errors import CardinalityViolation

        try:
            connection.execute(self.merging(attempts))
        except CardinalityViolation:
            raise DatabaseRefused(self._two_rows()) from None

    def drop(self, connection: Connection, database: Database) -> None:
        """Drops it, outside of a transaction; if that cannot be done now it is left, and logged."""
        _drop(connection, database, self.shape.target.schema, self.name)

    def _two_rows(self) -> str:
        key, order = ", ".join(self.shape.key), ", ".join(self.shape.order)
        what = f"two rows of one batch have the same key ({key})"
        if self.shape.order:
            return f"{what} and the same order ({order}): add a column to order= that differs"
        return (
            f"{what}, and nothing says which of them is the newer one: pass order=, a column that "
            "grows, such as the offset of the record"
        )


def differing(reported: Mapping[int, int], found: Mapping[int, int]) -> str | None:
    """How the rows in staging differ from what the attempts have reported; None if they do not.

    Rows of an attempt that is not reported do not count: its task died, or another copy was faster.
    """
    for attempt, rows in reported.items():
        if found.get(attempt, 0) != rows:
            return (
                f"attempt {attempt} has copied {rows} rows, and staging has "
                f"{found.get(attempt, 0)} of them"
            )
    return None


def copy_rows(database: Database, staging: Staging, attempt: int, batches: Iterable[Any]) -> int:
    """Copies Arrow batches in a session and transaction of its own; returns how many rows."""
    from fencepost.outside.table.copy_text import copy_text

    require_psycopg()
    rows = 0
    with database.connect() as connection, database.explaining("COPY"), _noticing_a_loss():
        with connection.cursor() as cursor:
            with cursor.copy(staging.copying()) as copy:
                for batch in batches:
                    columns = [batch.column(name) for name in staging.columns]
                    if batch.num_rows:
                        copy.write(copy_text(columns, attempt))
                    rows += batch.num_rows
            if cursor.rowcount != rows:
                raise DatabaseRefused(
                    f"PostgreSQL has read {cursor.rowcount} rows from a copy of {rows}: nothing of "
                    "it was kept"
                )
        connection.commit()
    return rows


def drop_all(connection: Connection, database: Database, owner: str) -> None:
    """Drops every staging table of an owner; what cannot be dropped now is left, and logged."""
    import psycopg

    try:
        found = connection.execute(_ORPHANS, [_prefix(owner)]).fetchall()
    except psycopg.Error as problem:
        log.info("no staging table was dropped: %s", database.explain(problem, "a look for them"))
        return
    for schema, name in found:
        _drop(connection, database, schema, name)


def _drop(connection: Connection, database: Database, schema: str, name: str) -> None:
    import psycopg
    from psycopg.sql import SQL, Identifier

    try:
        with connection.transaction():
            connection.execute(_LIMIT_WAIT, [str(DROP_MILLISECONDS)])
            connection.execute(SQL("DROP TABLE IF EXISTS {}").format(Identifier(schema, name)))
    except psycopg.Error as problem:
        log.info("%s is left: %s", name, database.explain(problem, "DROP TABLE"))


@contextmanager
def _noticing_a_loss() -> Iterator[None]:
    """Another driver of the same sink drops what it takes for an orphan: the batch comes again."""
    from psycopg.errors import UndefinedTable

    try:
        yield
    except UndefinedTable:
        raise DatabaseUnavailable(
            "the staging table is gone: another driver of the same sink has dropped it. Run one "
            "driver"
        ) from None


def _prefix(owner: str) -> str:
    return f"{_PREFIX}{hashlib.sha256(owner.encode()).hexdigest()[:16]}_"


def _names(names: Iterable[str]) -> Composed:
    from psycopg.sql import SQL, Identifier

    return SQL(", ").join(Identifier(name) for name in names)


def _on_conflict(shape: Shape) -> Composed:
    from psycopg.sql import SQL, Identifier

    updated = [name for name in shape.columns if name not in shape.key]
    if not updated:
        return SQL("ON CONFLICT ({}) DO NOTHING").format(_names(shape.key))
    changes = SQL(", ").join(SQL("{0} = EXCLUDED.{0}").format(Identifier(n)) for n in updated)
    return SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(_names(shape.key), changes)
