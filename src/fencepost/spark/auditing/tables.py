"""Tables of PostgreSQL as inputs and outputs of an audit.

Theory of operation. The driver reads a table once, in one REPEATABLE READ transaction, which sees
one moment of the database: all tables of a side at the same moment. A row becomes what a record of
a topic becomes: the hash of its key, and a number. So everything behind that is the same for both.

The numbers. Rows have no offsets. They are numbered as they are read, those that must have outputs
first, so that a table looks like a partition of which everything below a bound is due. They have
no order, and order is not judged.

Which rows of an input table must have outputs. Those of transactions that had ended when the audit
began: their `xmin` is older than the oldest transaction that was running then. All others may have
been committed later. A transaction that runs for hours keeps rows from being judged, and does not
make them findings. An UPDATE is a new row in this sense.

What a table cannot show: that rows were deleted. A finding that this would explain is not proven.
A user who may not see all rows is refused (row_security=off): an audit of a part proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from fencepost.base.failures import ConfigError
from fencepost.base.options import suggest
from fencepost.outside.connection import Database
from fencepost.spark.auditing.keys import (
    WHOLE,
    KeyExpression,
    columns_of,
    content_hashes,
    hashes_of,
)
from fencepost.spark.auditing.question import Question

if TYPE_CHECKING:
    from psycopg.sql import Composed

    from fencepost.outside.connection import Connection

MAX_ROWS: Final = 10_000_000
"""Their hashes and keys are in the memory of the driver: about 1.5 GB."""
_PART_ROWS: Final = 50_000
_BYTEA: Final = 17
_JSON: Final = (114, 3802)
"""The oids of json and jsonb, the same in every database."""
_STRUCTURED: Final = ("A", "C")
"""Categories of types that are compared as JSON: arrays and rows."""
_NUMBERED: Final = ("r", "p", "m")
"""Tables, partitioned tables, materialized views."""
_UNNUMBERED: Final = {"v": "view", "f": "foreign table"}
"""Their rows do not say which transaction wrote them."""


class Rows(NamedTuple):
    """A table at one moment."""

    table: str
    is_input: bool
    size: int
    due: int
    """Of these, the first ones must have outputs."""
    unkeyed: int
    hashes: np.ndarray[Any, np.dtype[np.uint64]]
    """Packed records, as those of a topic; without rows that have no key."""
    keys: pa.ChunkedArray
    """By number; null where a row has none."""

    def keys_at(self, numbers: Sequence[int]) -> dict[int, bytes | None]:
        """The keys of these rows."""
        found = self.keys.take(pa.array(numbers, pa.int64())).to_pylist()
        return dict(zip(numbers, found, strict=True))


class TableReader:
    """The tables of a question, at the moments that the audit wants them."""

    def __init__(self, question: Question, seed: int) -> None:
        self._question = question
        self._seed = seed
        self._horizon = ""
        self._database = Database(question.postgres or "")
        self.moments: dict[str, datetime] = {}
        """When each table was read, by the clock of the database."""

    def begin(self) -> None:
        """Checks that everything can be read, and remembers which transactions have ended."""
        with self._transaction() as connection, self._explaining("its oldest transaction"):
            self._horizon = _one(connection, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text")
            for is_input in (True, False):
                for table in self._question.side(is_input=is_input).tables:
                    self._plan(connection, table, is_input=is_input)

    def read(self, *, is_input: bool) -> list[Rows]:
        """All tables of a side, at one moment."""
        tables = self._question.side(is_input=is_input).tables
        if not tables:
            return []
        with self._transaction() as connection:
            with self._explaining("its clock"):
                now = _one(connection, "SELECT now()")
            self.moments |= dict.fromkeys(tables, now)
            return [self._read(connection, table, is_input=is_input) for table in tables]

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        from psycopg import IsolationLevel

        with closing(self._database.connect()) as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            with self._explaining("the start of a transaction"):
                connection.execute("SET LOCAL row_security = off")
                connection.execute("SET LOCAL TimeZone = 'UTC'")
            yield connection

    def _explaining(self, what: str) -> AbstractContextManager[None]:
        return self._database.explaining(what)

    def _read(self, connection: Connection, table: str, *, is_input: bool) -> Rows:
        plan = self._plan(connection, table, is_input=is_input)
        counted: list[int] = []
        parts: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        keys: list[pa.Array] = []
        total = unkeyed = 0
        with self._explaining(f"reading {table}"):
            for rows in _in_parts(plan.batches(connection, self._horizon, counted)):
                part, here = self._packed(plan, rows, total)
                keys.append(here)
                parts.append(part)
                total += len(rows)
                unkeyed += len(rows) - len(part)
                if total > MAX_ROWS:
                    raise ConfigError(
                        f"{table} has more than {MAX_ROWS:,} rows, which the driver would hold in "
                        "memory: audit a part of it, such as one partition"
                    )
        empty = np.zeros((0, 3 + self._question.compares), np.uint64)
        due = counted[0] if is_input else 0
        return Rows(
            table,
            is_input,
            total,
            due,
            unkeyed,
            np.concatenate([empty, *parts]),
            pa.chunked_array(keys, pa.binary()),
        )

    def _packed(
        self, plan: _Plan, rows: pa.RecordBatch, first: int
    ) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], pa.Array]:
        keys, *contents = columns_of(plan.expressions, rows)
        found = np.empty((len(rows), 3 + bool(contents)), np.uint64)
        found[:, :2] = hashes_of(keys, self._seed)
        found[:, 2] = np.arange(first, first + len(rows), dtype=np.uint64)
        if contents:
            found[:, 3] = content_hashes(contents, self._seed)
        return found[np.asarray(keys.is_valid())], keys

    def _plan(self, connection: Connection, table: str, *, is_input: bool) -> _Plan:
        side = self._question.side(is_input=is_input)
        wanted = (side.key_at(is_table=True), *side.fields_at(is_table=True))
        with self._explaining(f"a look at {table}"):
            name, kind = connection.execute(
                "SELECT oid::regclass::text, relkind::text FROM pg_class WHERE oid = %s::regclass",
                [table],
            ).fetchone() or (table, "")
            _check_kind(table, kind, is_input=is_input)
            # Reads nothing; names all columns, and refuses who may not read.
            cursor = connection.execute(f"SELECT * FROM {name} LIMIT 0")  # noqa: S608 - a regclass.
            types = {each.name: each.type_code for each in cursor.description or ()}
            structured = {
                oid
                for oid, category in connection.execute(
                    "SELECT oid::bigint, typcategory::text FROM pg_type WHERE oid = ANY(%s)",
                    [list(types.values())],
                )
                if category in _STRUCTURED or oid in _JSON
            }
        for each in wanted:
            if each.column not in (*types, WHOLE):
                hint = suggest(each.column, list(types))
                raise ConfigError(f"table {table} has no column {each.column!r}{hint}")
        columns = [_column(each, types.get(each.column, 0), structured) for each in wanted]
        return _Plan(
            name,
            tuple(sql for sql, _ in columns),
            tuple(KeyExpression(str(n), path) for n, (_, path) in enumerate(columns)),
            is_input,
        )


def _check_kind(table: str, kind: str, *, is_input: bool) -> None:
    if kind in _UNNUMBERED and is_input:
        raise ConfigError(
            f"{table} is a {_UNNUMBERED[kind]}, whose rows do not say which transaction wrote "
            "them: as an input, name a table"
        )
    if kind not in _NUMBERED and kind not in _UNNUMBERED:
        raise ConfigError(f"{table} is neither a table nor a view: correct its name")


class _Plan(NamedTuple):
    """How a table is read."""

    name: str
    """As SQL."""
    columns: tuple[Composed, ...]
    """Each is bytea."""
    expressions: tuple[KeyExpression, ...]
    """What to take from these columns, named by their numbers: the key, and what is compared."""
    is_input: bool

    def batches(
        self, connection: Connection, horizon: str, counted: list[int]
    ) -> Iterator[list[tuple[bytes | None, ...]]]:
        """The rows; of an input, those that must have outputs first, and `counted` then."""
        from psycopg.sql import SQL

        table, columns = SQL(cast("Any", self.name)), SQL(", ").join(self.columns)
        query = SQL("SELECT {} FROM {} AS fencepost_row").format(columns, table)
        if not self.is_input:
            yield from _fetched(connection, query)
            return
        is_due = SQL("age(fencepost_row.xmin) > age({}::xid8::xid)").format(horizon)
        count = 0
        for rows in _fetched(connection, SQL("{} WHERE {}").format(query, is_due)):
            count += len(rows)
            yield rows
        counted.append(count)
        others = SQL("{} WHERE NOT {}").format(query, is_due)
        yield from _fetched(connection, others)


def _fetched(connection: Connection, query: Composed) -> Iterator[list[tuple[bytes | None, ...]]]:
    with connection.cursor(name="fencepost_audit", binary=True) as cursor:
        # Without parameters: beside one, psycopg would take a % in a name for another.
        cursor.execute(query)
        while rows := cursor.fetchmany(_PART_ROWS):
            yield rows


def _in_parts(batches: Iterator[list[tuple[bytes | None, ...]]]) -> Iterator[pa.RecordBatch]:
    """The rows as Arrow: so many at a time, and fewer only at the end."""
    held: list[tuple[bytes | None, ...]] = []
    for batch in batches:
        held += batch
        while len(held) >= _PART_ROWS:
            yield _as_arrow(held[:_PART_ROWS])
            del held[:_PART_ROWS]
    if held:
        yield _as_arrow(held)


def _as_arrow(rows: list[tuple[bytes | None, ...]]) -> pa.RecordBatch:
    columns = [pa.array(values, pa.binary()) for values in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=list(map(str, range(len(columns)))))


def _column(
    wanted: KeyExpression, type_oid: int, structured: set[int]
) -> tuple[Composed, tuple[str, ...]]:
    """A column as bytea, and what to take from it.

    Text and numbers are as JSON has them, so that they are equal to those in a value.
    """
    from psycopg.sql import SQL, Identifier

    if wanted.column == WHOLE:
        return SQL("convert_to(to_jsonb(fencepost_row)::text, {})").format("UTF8"), (WHOLE,)
    name = SQL("fencepost_row.{}").format(Identifier(wanted.column))
    if type_oid == _BYTEA:
        return name, wanted.path
    if wanted.path:
        return SQL("convert_to({}::text, {})").format(name, "UTF8"), wanted.path
    if type_oid in structured:
        return SQL("convert_to(to_jsonb({})::text, {})").format(name, "UTF8"), (WHOLE,)
    return SQL("convert_to(to_jsonb({}) #>> {}, {})").format(name, "{}", "UTF8"), ()


def _one(connection: Connection, query: str) -> Any:
    found = connection.execute(query).fetchone()
    assert found is not None
    return found[0]
