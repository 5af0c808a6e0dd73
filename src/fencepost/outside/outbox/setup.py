"""`fencepost outbox init`: what has to be in the database, as SQL with the right that it takes.

Every statement may run again. The row of the relay is marked before the slot is created, and gets
the slot's LSN afterwards, so a slot that was created again is noticed even if `init` dies between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.outside.connection import require_writable
from fencepost.outside.failures import DatabaseRefused
from fencepost.outside.outbox.database import (
    CHUNK_TABLE,
    NO_SLOT_YET,
    SERVER_CHECKS,
    Outbox,
    read_facts,
    require,
)

if TYPE_CHECKING:
    from fencepost.outside.connection import Database

FAILOVER_VERSION: Final = 170_000
"""PostgreSQL 17 was the first to synchronise slots with standbys."""


class Statement(NamedTuple):
    """A step of `init`."""

    sql: str
    right: str
    """The right that it takes."""


def statements(
    outbox: Outbox, relay_user: str | None = None, *, survives_failover: bool = False
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
        f"    slot_lsn pg_lsn NOT NULL DEFAULT '{NO_SLOT_YET}')",
        "CREATE on the schema",
    )
    tables = f" FOR TABLE {outbox.table}" if outbox.table else ""
    yield Statement(
        f"CREATE PUBLICATION {publication}{tables} "
        "WITH (publish = 'insert', publish_via_partition_root = true)",
        "CREATE on the database, and to own the table",
    )
    yield Statement(
        f"INSERT INTO {CHUNK_TABLE} (relay) VALUES ({relay}) ON CONFLICT DO NOTHING",  # noqa: S608
        f"INSERT on {CHUNK_TABLE}",
    )
    there = f"FROM pg_replication_slots WHERE slot_name = {slot}"
    yield Statement(
        f"UPDATE {CHUNK_TABLE} SET slot_lsn = '{NO_SLOT_YET}' "  # noqa: S608
        f"WHERE relay = {relay} AND NOT EXISTS (SELECT {there})",
        f"UPDATE on {CHUNK_TABLE}",
    )
    more = ", false, false, true" if survives_failover else ""
    yield Statement(
        f"SELECT pg_create_logical_replication_slot({slot}, 'pgoutput'{more}) "
        f"WHERE NOT EXISTS (SELECT {there})",
        "REPLICATION",
    )
    yield Statement(
        f"UPDATE {CHUNK_TABLE} SET slot_lsn = (SELECT confirmed_flush_lsn {there}) "  # noqa: S608
        f"WHERE relay = {relay} AND slot_lsn = '{NO_SLOT_YET}'",
        f"UPDATE on {CHUNK_TABLE}",
    )
    if relay_user:
        user = _identifier(relay_user)
        yield Statement(f"ALTER ROLE {user} REPLICATION", "superuser, or REPLICATION and ADMIN")
        yield Statement(f"GRANT SELECT, UPDATE ON {CHUNK_TABLE} TO {user}", "to own the table")


def init(
    database: Database,
    outbox: Outbox,
    relay_user: str | None = None,
    *,
    survives_failover: bool = False,
) -> list[Statement]:
    """Creates what is missing; returns what it ran."""
    done = []
    with database.connect(autocommit=True) as connection:
        require_writable(connection, database)
        require(read_facts(connection, database, outbox), SERVER_CHECKS, database, outbox)
        if survives_failover and connection.info.server_version < FAILOVER_VERSION:
            raise DatabaseRefused(f"{database} cannot synchronise slots: PostgreSQL 17 is needed")
        for each in statements(outbox, relay_user, survives_failover=survives_failover):
            if (
                each.sql.startswith("CREATE PUBLICATION")
                and connection.execute(
                    "SELECT 1 FROM pg_publication WHERE pubname = %s", [outbox.publication]
                ).fetchone()
            ):
                continue
            what = each.sql.split("(", maxsplit=1)[0].strip()
            with database.explaining(f"{what} (it takes: {each.right})"):
                connection.execute(each.sql.encode())
            done.append(each)
    return done


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    # The backslash has no meaning in a literal: standard_conforming_strings is on.
    return "'" + text.replace("'", "''") + "'"
