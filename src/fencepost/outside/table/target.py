"""The table that rows go to, as the catalog describes it, and what it refuses by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.options import suggest
from fencepost.outside.failures import DatabaseRefused
from fencepost.outside.table.types import ColumnType, Value, fits

if TYPE_CHECKING:
    from psycopg.sql import Composed

    from fencepost.outside.connection import Connection

_TABLE: Final = (
    "SELECT c.oid, n.nspname, c.relname, c.relkind, has_any_column_privilege(c.oid, 'INSERT'),"
    " has_any_column_privilege(c.oid, 'UPDATE') AND has_any_column_privilege(c.oid, 'SELECT'),"
    " has_schema_privilege(n.oid, 'CREATE')"
    " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.oid = to_regclass(%s)"
)
# `b` is the type without its domain, `e` that of an array's elements.
_COLUMNS: Final = (
    "SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(e.typname, b.typname),"
    " e.oid IS NOT NULL, a.attnotnull OR t.typnotnull,"
    " a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,"
    " a.attgenerated <> '' OR a.attidentity = 'a'"
    " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
    " JOIN pg_type b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END"
    " LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'"
    " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
)
_KEYS: Final = (
    "SELECT i.indisprimary, array_agg(a.attname ORDER BY a.attnum)"
    " FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid"
    " AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])"
    " WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid"
    " AND i.indpred IS NULL AND i.indexprs IS NULL"
    " GROUP BY i.indexrelid, i.indisprimary"
)
_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


class Column(NamedTuple):
    """A column of the table."""

    declared: str
    """The type as SQL writes it."""
    type: ColumnType
    is_required: bool
    """Whether it may not be null."""
    has_default: bool
    is_generated: bool
    """Whether PostgreSQL computes it always, so that no one may write it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A table."""

    schema: str
    name: str
    columns: Mapping[str, Column]
    keys: tuple[frozenset[str], ...]
    """The columns of its unique indexes."""
    primary: frozenset[str]
    """Those of its primary key; none: it has none."""
    may_insert: bool = True
    may_upsert: bool = True
    may_stage: bool = True

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def identifier(self) -> Composed:
        """Its name in SQL."""
        from psycopg.sql import SQL, Identifier

        return SQL("{}").format(Identifier(self.schema, self.name))


def read_target(connection: Connection, table: str) -> Target:
    """The table of this name, which may have that of its schema before it."""
    from psycopg.sql import Identifier

    quoted = Identifier(*table.split(".")).as_string(None)
    found = connection.execute(_TABLE, [quoted]).fetchone()
    if found is None:
        raise DatabaseRefused(
            f"the database has no table {table}: create it, or correct the name, which must be "
            "spelled as PostgreSQL stores it (in lower case, unless it was created with quotes)"
        )
    oid, schema, name, kind, may_insert, may_update, may_create = found
    if kind in _KINDS:
        raise DatabaseRefused(f"{schema}.{name} is {_KINDS[kind]}: name a table")
    columns = {
        each: Column(declared, ColumnType(base, is_array), is_required, has_default, is_generated)
        for each, declared, base, is_array, is_required, has_default, is_generated in (
            connection.execute(_COLUMNS, [oid]).fetchall()
        )
    }
    keys = [(primary, frozenset(k)) for primary, k in connection.execute(_KEYS, [oid]).fetchall()]
    return Target(
        schema,
        name,
        columns,
        tuple(key for _, key in keys),
        next((key for is_primary, key in keys if is_primary), frozenset()),
        may_insert,
        may_insert and may_update,
        may_create,
    )


class Shape(NamedTuple):
    """How rows go into a table: decided once per batch."""

    target: Target
    columns: tuple[str, ...]
    """Those that the rows have and the table too."""
    extra: Mapping[str, Value]
    """Columns of the rows that only order them."""
    key: tuple[str, ...]
    """What identifies a row; empty: every row is inserted."""
    order: tuple[str, ...]


def shape_of(
    target: Target, values: Mapping[str, Value], key: Sequence[str] | None, order: Sequence[str]
) -> Shape:
    """Checks rows with these columns against the table; DatabaseRefused names what does not fit.

    `key`: None appends; without a column it is the table's primary key.
    """
    _check_rights(target, is_upsert=key is not None)
    for name in (*(key or ()), *order):
        if name not in values:
            raise DatabaseRefused(
                f"the rows have no column {name!r}, which key= or order= names"
                f"{suggest(name, list(values))}"
            )
    extra = {name: values[name] for name in order if name not in target.columns}
    columns = tuple(name for name in values if name not in extra)
    for name in columns:
        _check_column(target, name, values[name])
    _check_required(target, values)
    chosen = () if key is None else _check_key(target, tuple(key))
    for name in chosen:
        if name not in values:
            raise DatabaseRefused(
                f"the rows have no column {name!r}, which is part of the primary key of {target}: "
                "add it"
            )
    return Shape(target, columns, extra, chosen, tuple(order))


def _check_rights(target: Target, *, is_upsert: bool) -> None:
    if is_upsert and not target.may_upsert:
        raise DatabaseRefused(
            f"the user may not upsert into {target}: GRANT SELECT, INSERT, UPDATE ON {target} TO "
            "this user"
        )
    if not target.may_insert:
        raise DatabaseRefused(
            f"the user may not insert into {target}: GRANT INSERT ON {target} TO this user"
        )
    if not target.may_stage:
        raise DatabaseRefused(
            f"the user may not create the staging table beside {target}: GRANT CREATE ON SCHEMA "
            f"{target.schema} TO this user"
        )


def _check_column(target: Target, name: str, value: Value) -> None:
    column = target.columns.get(name)
    if column is None:
        raise DatabaseRefused(
            f"{target} has no column {name!r}{suggest(name, list(target.columns))}: add it "
            f"(ALTER TABLE {target} ADD COLUMN), or drop or rename the column of the rows"
        )
    if column.is_generated:
        raise DatabaseRefused(
            f"column {name!r} of {target} is generated by PostgreSQL: drop it from the rows"
        )
    if not fits(value, column.type):
        kind = value.kind.value + (" array" if value.is_array else "")
        raise DatabaseRefused(
            f"column {name!r} is {kind} in the rows and {column.declared} in {target}: cast it in "
            f"the query, or make the column {value.own_type}"
        )


def _check_required(target: Target, values: Mapping[str, Value]) -> None:
    for name, column in target.columns.items():
        if column.is_required and not column.has_default and name not in values:
            raise DatabaseRefused(
                f"column {name!r} of {target} may not be null and has no default, and the rows do "
                "not have it: add it to the rows, or give it a default"
            )


def _check_key(target: Target, key: tuple[str, ...]) -> tuple[str, ...]:
    key = key or tuple(name for name in target.columns if name in target.primary)
    if not key:
        raise DatabaseRefused(
            f"{target} has no primary key: name the columns that identify a row with key=, and add "
            "a unique index on them"
        )
    listed = ", ".join(key)
    if frozenset(key) not in target.keys:
        raise DatabaseRefused(
            f"{target} has no unique index on ({listed}), without which PostgreSQL cannot upsert: "
            f"ALTER TABLE {target} ADD PRIMARY KEY ({listed}), or correct key="
        )
    for name in key:
        if not target.columns[name].is_required:
            raise DatabaseRefused(
                f"column {name!r} of the key of {target} may be null, and null equals nothing: "
                f"ALTER TABLE {target} ALTER COLUMN {name} SET NOT NULL"
            )
    return key
