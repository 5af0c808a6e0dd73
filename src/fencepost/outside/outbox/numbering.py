"""The triggers of `--mode table`: they number a row when its transaction commits.

A number that is given at the insert says nothing about the order of commits, and a row with a lower
one may appear later. So it is given at COMMIT, under a lock that ends when the transaction is
visible to everybody:

    insert    `..._fencepost_shard` puts the row into a shard, by its key, and notes the shard in a
              setting that lasts as long as the transaction. The row gets a negative number.
    commit    `..._fencepost_number`, a deferred trigger, takes the locks of all these shards, in
              their order, so that two transactions cannot wait for each other. Then it gives each
              row its number, in the order of the inserts.

Rows of one key are in one shard, so they have the order of their commits. Transactions that have no
shard in common commit side by side. The numbers come from one sequence, which is not reset with the
table: numbers of a shard have gaps, and never come again, unless a crash took back the transaction
that had them before anybody could rely on it (`table_source.py`).

The functions run with the rights of their owner, so writers need INSERT on the table and no more.
Nothing that a writer may create must get in their way, and run with these rights: the search path
is that of `init`, with temporary tables last; functions are named with their schema, and called
with exactly their types, which an overload cannot fit better. And whoever puts the trigger on a
table of their own reaches no row that has its number.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from fencepost.outside.failures import DatabaseRefused

USUAL_SHARDS: Final = 8
MAX_SHARDS: Final = 32
"""A transaction may hold the locks of all, and a server has 64 per connection."""
OUR_COLUMNS: Final = ("fencepost_shard", "fencepost_number", "fencepost_at")
SHARD_TRIGGER: Final = "fencepost_shard"
NUMBER_TRIGGER: Final = "fencepost_number"
_SUFFIX: Final = "_fencepost"
_MAX_NAME: Final = 63 - len("_fencepost_number")


class Numbering(NamedTuple):
    """How a table is numbered: read from its triggers."""

    shards: int
    key_column: str
    """The column that chooses the shard; empty: there is none, and all rows are in one."""
    sequence_oid: int
    is_enabled: bool
    is_ascending: bool
    """Whether a number that is given later is higher, whatever the session."""


def sequence_of(table: str) -> str:
    """The name of the sequence, as in SQL."""
    return _named(table, _SUFFIX)


def _named(table: str, suffix: str) -> str:
    """A name beside the table, in its schema."""
    schema, name = _parts(table)
    quoted = '"' + name + suffix + '"'
    return f"{schema}.{quoted}" if schema else quoted


def _parts(table: str) -> tuple[str, str]:
    *schema, name = re.findall(r'"[^"]+"|[^."]+', table)
    plain = name[1:-1] if name.startswith('"') else name.lower()
    if len(plain) > _MAX_NAME:
        raise DatabaseRefused(
            f"the name of table {table} is longer than {_MAX_NAME} characters: --mode table makes "
            "names from it, and PostgreSQL's limit is 63"
        )
    return (schema[0] if schema else ""), plain


_COLUMNS: Final = """ALTER TABLE {table}
    ADD COLUMN IF NOT EXISTS fencepost_shard int,
    ADD COLUMN IF NOT EXISTS fencepost_number bigint,
    ADD COLUMN IF NOT EXISTS fencepost_at timestamptz"""

_SEARCH_PATH: Final = """SELECT pg_catalog.set_config('search_path', pg_catalog.concat_ws(', ', (
    SELECT pg_catalog.string_agg(pg_catalog.quote_ident(name::text), ', ')
    FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) AS name
    WHERE name !~ '^pg_temp'), 'pg_temp'), false)"""

# Not by the text of the key, which depends on the settings of a session (bytea_output, timezone).
_SHARD_FUNCTION: Final = """CREATE OR REPLACE FUNCTION {shard_function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $fencepost$
DECLARE
    noted bigint := COALESCE(NULLIF(pg_catalog.current_setting('{noted}', true), ''), '0');
    ours bigint;
BEGIN
    NEW.fencepost_shard := (pg_catalog.hash_record(ROW({key})) & 2147483647) % {shards};
    NEW.fencepost_number := -pg_catalog.nextval('{sequence_literal}'::pg_catalog.regclass);
    ours := 1::bigint << NEW.fencepost_shard;
    IF noted & ours = 0 THEN
        PERFORM pg_catalog.set_config('{noted}', (noted | ours)::text, true);
    END IF;
    RETURN NEW;
END $fencepost$"""

# Without enable_seqscan, a plan from when the table was small would read all of it for each row.
_NUMBER_FUNCTION: Final = """CREATE OR REPLACE FUNCTION {number_function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off
AS $fencepost$
DECLARE
    noted text := pg_catalog.current_setting('{noted}');
BEGIN
    IF pg_catalog.current_setting('{locked}', true) IS DISTINCT FROM noted THEN
        FOR shard IN 0..{shards} - 1 LOOP
            IF noted::bigint & (1::bigint << shard) <> 0 THEN
                PERFORM pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(
                    'fencepost outbox {table_literal}'::text, shard::bigint));
            END IF;
        END LOOP;
        PERFORM pg_catalog.set_config('{locked}', noted, true);
    END IF;
    UPDATE {table}
        SET fencepost_number = pg_catalog.nextval('{sequence_literal}'::pg_catalog.regclass),
            fencepost_at = pg_catalog.clock_timestamp()
        WHERE fencepost_shard = NEW.fencepost_shard AND fencepost_number = NEW.fencepost_number
            AND fencepost_number < 0;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'an outbox row was deleted in its own transaction'
            USING HINT = 'the relay reads the table: delete a row when it was sent';
    END IF;
    RETURN NULL;
END $fencepost$"""

# One transaction: a row that met only one of the triggers would never be sent. And if the triggers
# cannot be created, because one is there, functions with other shards must not stay either.
_TRIGGERS: Final = """BEGIN;
{functions};
CREATE TRIGGER fencepost_shard BEFORE INSERT ON {table} FOR EACH ROW
    EXECUTE FUNCTION {shard_function}('{shards}', '{key_literal}');
CREATE CONSTRAINT TRIGGER fencepost_number AFTER INSERT ON {table}
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {number_function}();
COMMIT"""


def require_shards(number: int) -> None:
    """Raises DatabaseRefused if there cannot be so many."""
    if not 1 <= number <= MAX_SHARDS:
        raise DatabaseRefused(f"{number} shards are not possible: choose 1 to {MAX_SHARDS}")


def structure(table: str, shards: int, key_column: str) -> list[tuple[str, str]]:
    """What `init` creates around a table, with the right that each statement takes.

    The triggers wait for open transactions that have written to the table. The arguments of the
    first are for the relay to read.
    """
    require_shards(shards)
    sequence, index = sequence_of(table), f'"{_parts(table)[1]}_fencepost_index"'
    digest = f"{zlib.crc32(table.encode()):08x}"  # Two tables must not share a setting.
    quoted = key_column.replace('"', '""')
    names = {
        "table": table,
        "table_literal": _literal(table),
        "shards": shards,
        "key": f'NEW."{quoted}"' if key_column else "0",
        "key_literal": _literal(key_column),
        "sequence_literal": _literal(sequence),
        "shard_function": _named(table, "_fencepost_shard"),
        "number_function": _named(table, "_fencepost_number"),
        "noted": f"fencepost.shards_{digest}",
        "locked": f"fencepost.locked_{digest}",
    }
    names["functions"] = ";\n".join(
        each.format(**names) for each in (_SHARD_FUNCTION, _NUMBER_FUNCTION)
    )
    owner, creator = "to own the table", "CREATE on the schema"
    columns = "(fencepost_shard, fencepost_number)"
    return [
        (f"CREATE SEQUENCE IF NOT EXISTS {sequence}", creator),
        (_COLUMNS.format(**names), owner),
        (f"CREATE INDEX IF NOT EXISTS {index} ON {table} {columns}", owner),
        (_SEARCH_PATH, "none: the functions run with the search path of this session"),
        (_TRIGGERS.format(**names), f"{owner}, and {creator}"),
    ]


def read_numbering(
    rows: Sequence[tuple[Any, ...]], sequence_oid: int, *, is_ascending: bool
) -> Numbering | None:
    """From the triggers of the table: name, arguments, and when they fire."""
    found = {name: (arguments, fires) for name, arguments, fires in rows}
    if set(found) != {SHARD_TRIGGER, NUMBER_TRIGGER} or not sequence_oid:
        return None
    shards, key_column, _ = found[SHARD_TRIGGER][0].decode().split("\0")
    is_enabled = all(fires in "OA" for _, fires in found.values())
    return Numbering(int(shards), key_column, sequence_oid, is_enabled, is_ascending)


def _literal(text: str) -> str:
    return text.replace("'", "''")
