"""`fencepost outbox init`: what has to be in the database, as SQL with the right that it takes.

Every statement may run again. The row of the relay gets the LSN of its first slot, and keeps it: a
slot that is created again is ahead of what was sent, which a start refuses. `init` says so, and
says "Ready" of nothing that a start would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.outside.connection import require_writable
from fencepost.outside.failures import DatabaseRefused
from fencepost.outside.outbox.database import (
    CHUNK_TABLE,
    IN_UTF8,
    NO_SLOT_YET,
    RELAY_CHECKS,
    SERVER_CHECKS,
    Facts,
    Outbox,
    read_facts,
    read_row,
    require,
)
from fencepost.outside.outbox.lsn import lsn_text, parse_lsn
from fencepost.outside.outbox.numbering import (
    USUAL_SHARDS,
    require_shards,
    sequence_of,
    structure,
)
from fencepost.outside.outbox.rows import KEY_COLUMNS

if TYPE_CHECKING:
    from fencepost.outside.connection import Connection, Database

_ADD_COLUMNS: Final = (
    f"ALTER TABLE {CHUNK_TABLE} ADD COLUMN IF NOT EXISTS confirmed pg_lsn, "
    "ADD COLUMN IF NOT EXISTS publication text"
)
FAILOVER_VERSION: Final = 170_000
"""PostgreSQL 17 was the first to synchronise slots with standbys."""


class Statement(NamedTuple):
    """A step of `init`."""

    sql: str
    right: str
    """The right that it takes."""


class Prepared(NamedTuple):
    """What `init` did."""

    steps: list[Statement]
    gap: str | None
    """Why a start will be refused all the same: rows may be missing in the slot."""


class Shards(NamedTuple):
    """How `init` numbers a table."""

    number: int = USUAL_SHARDS
    key_column: str = KEY_COLUMNS[-1]
    """Of the table that `init` creates."""
    exist: bool = False


def statements(
    outbox: Outbox,
    relay_user: str | None = None,
    *,
    survives_failover: bool = False,
    shards: Shards | None = None,
) -> Iterator[Statement]:
    """What `init` runs, in order."""
    relay, slot = _literal(outbox.transactional_id), _literal(outbox.slot)
    publication = _identifier(outbox.publication)
    if outbox.table:
        yield Statement(
            f"CREATE TABLE IF NOT EXISTS {outbox.table} (\n"
            "    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),\n"
            "    aggregatetype text NOT NULL,\n"
            "    aggregateid text,\n"
            "    type text,\n"
            "    payload text,\n"
            "    headers jsonb)",
            "CREATE on the schema",
        )
    yield Statement(
        f"CREATE TABLE IF NOT EXISTS {CHUNK_TABLE} (\n"
        "    relay text PRIMARY KEY,\n"
        "    chunk bigint NOT NULL DEFAULT 0,\n"
        "    end_lsn pg_lsn NOT NULL DEFAULT '0/0',\n"
        "    commit_lsn pg_lsn NOT NULL DEFAULT '0/0',\n"
        "    ordinal bigint NOT NULL DEFAULT 0,\n"
        "    numbers bigint[] NOT NULL DEFAULT '{}',\n"
        "    sent bigint[] NOT NULL DEFAULT '{}',\n"
        f"    slot_lsn pg_lsn NOT NULL DEFAULT '{NO_SLOT_YET}')",
        "CREATE on the schema",
    )
    # Rows of an earlier version get null: what those relays told their slots is not known.
    yield Statement(_ADD_COLUMNS, f"to own {CHUNK_TABLE}")
    relay_row = Statement(
        f"INSERT INTO {CHUNK_TABLE} (relay, confirmed) "  # noqa: S608
        f"VALUES ({relay}, '0/0') ON CONFLICT DO NOTHING",
        f"INSERT on {CHUNK_TABLE}",
    )
    if outbox.is_numbered:
        yield from _numbered(outbox, shards or Shards())
        yield relay_row
        yield Statement(
            f"UPDATE {CHUNK_TABLE} SET slot_lsn = '0/0' WHERE relay = {relay}",  # noqa: S608
            f"UPDATE on {CHUNK_TABLE}",
        )
        yield from _grants(outbox, relay_user)
        return
    tables = f" FOR TABLE {outbox.table}" if outbox.table else ""
    yield Statement(
        f"CREATE PUBLICATION {publication}{tables} "
        "WITH (publish = 'insert', publish_via_partition_root = true)",
        "CREATE on the database, and to own the table",
    )
    yield relay_row
    there = f"FROM pg_replication_slots WHERE slot_name = {slot}"
    more = ", false, false, true" if survives_failover else ""
    yield Statement(
        f"SELECT pg_create_logical_replication_slot({slot}, 'pgoutput'{more}) "
        f"WHERE NOT EXISTS (SELECT {there})",
        "REPLICATION",
    )
    # Of a new row, or of one that was copied from a system with another log.
    yield Statement(
        f"UPDATE {CHUNK_TABLE} SET slot_lsn = (SELECT confirmed_flush_lsn {there}) "  # noqa: S608
        f"WHERE relay = {relay} AND slot_lsn > pg_current_wal_lsn()",
        f"UPDATE on {CHUNK_TABLE}",
    )
    yield from _grants(outbox, relay_user)


def _numbered(outbox: Outbox, shards: Shards) -> Iterator[Statement]:
    assert outbox.table is not None
    if shards.exist:
        return
    for sql, right in structure(outbox.table, shards.number, shards.key_column):
        yield Statement(sql, right)


def _grants(outbox: Outbox, relay_user: str | None) -> Iterator[Statement]:
    if not relay_user:
        return
    user = _identifier(relay_user)
    chunks = Statement(f"GRANT SELECT, UPDATE ON {CHUNK_TABLE} TO {user}", "to own the table")
    if outbox.is_numbered:
        assert outbox.table is not None
        yield Statement(f"GRANT SELECT ON {outbox.table} TO {user}", "to own the table")
        sequence = sequence_of(outbox.table)
        yield Statement(f"GRANT SELECT ON SEQUENCE {sequence} TO {user}", "to own the sequence")
        yield chunks
    else:
        yield chunks
        # Last, because not all services allow it: there it is done in another way.
        yield Statement(f"ALTER ROLE {user} REPLICATION", "superuser, or REPLICATION and ADMIN")


def find_shards(
    facts: Facts, database: Database, outbox: Outbox, count: int | None, key_column: str | None
) -> Shards:
    """How to number the table; raises one sentence if it is numbered in another way."""
    if count is not None:
        require_shards(count)
    if (found := facts.numbering) is None:
        names = [name for name, _ in facts.columns]
        if key_column is not None and names and key_column not in names:
            raise DatabaseRefused(f"{database}: {outbox.table} has no column {key_column!r}")
        usual = next((each for each in KEY_COLUMNS if each in names), "")
        if not names:
            usual = KEY_COLUMNS[-1]
        return Shards(count or USUAL_SHARDS, usual if key_column is None else key_column)
    same_count = count in (None, found.shards)
    if not same_count or key_column not in (None, found.key_column):
        raise DatabaseRefused(
            f"{database}: {outbox.table} has {found.shards} shards by column "
            f"{found.key_column!r}. Others would break the order of keys: stop the writers, let "
            "every relay catch up (--until-caught-up), run DROP TRIGGER fencepost_shard ON "
            f"{outbox.table}; DROP TRIGGER fencepost_number ON {outbox.table}; then init again"
        )
    return Shards(found.shards, found.key_column, exist=True)


def init(
    database: Database,
    outbox: Outbox,
    relay_user: str | None = None,
    *,
    survives_failover: bool = False,
    shards: int | None = None,
    key_column: str | None = None,
) -> Prepared:
    """Creates what is missing. `shards`, `key_column`: of mode table."""
    done = []
    with database.connect(autocommit=True, **IN_UTF8) as connection:
        require_writable(connection, database)
        facts = read_facts(connection, database, outbox)
        numbers = Shards()
        if outbox.is_numbered:
            require(facts, SERVER_CHECKS[:1], database, outbox)
            numbers = find_shards(facts, database, outbox, shards, key_column)
            if facts.columns and numbers.key_column and not numbers.exist:
                # Otherwise every insert would fail.
                key = _identifier(numbers.key_column)
                with database.explaining(f"choosing a shard by column {key}"):
                    connection.execute(
                        "SELECT pg_catalog.hash_record(ROW((SELECT "  # noqa: S608
                        f"{key} FROM {outbox.table} LIMIT 0)))".encode()
                    )
        else:
            require(facts, SERVER_CHECKS, database, outbox)
            _require_own_slot(connection, database, outbox, facts)
        if survives_failover and connection.info.server_version < FAILOVER_VERSION:
            raise DatabaseRefused(f"{database} cannot synchronise slots: PostgreSQL 17 is needed")
        for each in statements(
            outbox, relay_user, survives_failover=survives_failover, shards=numbers
        ):
            if _is_done(each, facts):
                continue
            what = " ".join(each.sql.split("(", maxsplit=1)[0].split()[:6])
            with database.explaining(f"{what} (it takes: {each.right})"):
                connection.execute(each.sql.encode())
            done.append(each)
        gap = None if outbox.is_numbered else _look_again(connection, database, outbox, facts)
    return Prepared(done, gap)


def _is_done(step: Statement, facts: Facts) -> bool:
    """Whether to leave out a step that would fail, or take a right that is not needed."""
    is_publishing = step.sql.startswith("CREATE PUBLICATION") and bool(facts.publication)
    return is_publishing or (step.sql == _ADD_COLUMNS and facts.has_confirmed)


def _look_again(
    connection: Connection, database: Database, outbox: Outbox, before: Facts
) -> str | None:
    """Raises what a start would not get past; returns what a person has to decide first, if any."""
    facts = read_facts(connection, database, outbox)
    require(facts, RELAY_CHECKS, database, outbox)
    identity = facts.publication["identity"]
    with database.explaining(f"the update of {CHUNK_TABLE}"):
        # Nothing was sent: it is compared with this one at the first start.
        connection.execute(
            f"UPDATE {CHUNK_TABLE} SET publication = %s "  # noqa: S608
            "WHERE relay = %s AND chunk = 0 AND publication IS NULL",
            [identity, outbox.transactional_id],
        )
    row = read_row(connection, database, outbox)
    assert row is not None
    is_first = row.cursor.end_lsn == 0
    was_published = row.publication == identity if is_first else bool(before.publication)
    if not was_published:
        return (
            f"Not ready: publication {outbox.publication!r} is new or was changed, and rows that "
            "were committed before may not be in the log. A start will be refused, and says what "
            "to do."
        )
    slot_lsn = parse_lsn(facts.slot["confirmed_flush_lsn"])
    # The position may be one chunk behind this row.
    is_new = not before.slot and row.chunk > 0
    if not is_new and slot_lsn <= max(row.slot_lsn, row.cursor.end_lsn, row.confirmed or 0):
        return None
    found = "an earlier version" if row.confirmed is None else "someone else"
    why = "is new" if is_new else f"went on, which {found} did"
    return (
        f"Not ready: slot {outbox.slot!r} is at {lsn_text(slot_lsn)}, ahead of what was sent. It "
        f"{why}, and may lack rows that were committed before. A start will be refused, and says "
        "what to do."
    )


def _require_own_slot(
    connection: Connection, database: Database, outbox: Outbox, facts: Facts
) -> None:
    """Names of slots are shortened, so two ids may have one. Each relay would miss rows then."""
    if not facts.slot or not facts.chunk_rights:
        return
    with database.explaining(f"reading {CHUNK_TABLE}"):
        relays = connection.execute(
            f"SELECT relay, slot_lsn NOT IN ('0/0', '{NO_SLOT_YET}') FROM {CHUNK_TABLE}"  # noqa: S608
        ).fetchall()
    if any(relay == outbox.transactional_id for relay, _ in relays):
        return
    for relay, has_slot in relays:
        if has_slot and Outbox.of(relay).slot == outbox.slot:
            raise DatabaseRefused(
                f"{database}: slot {outbox.slot!r} is that of relay {relay!r}, and each of two "
                "would miss what the other one read: name others with --slot and --publication. "
                "If that relay is no more, drop its slot first"
            )


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    # The backslash has no meaning in a literal: standard_conforming_strings is on.
    return "'" + text.replace("'", "''") + "'"
