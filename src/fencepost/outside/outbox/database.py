"""The database's side of the relay: what a start checks, and the row of the chunk.

`fencepost_outbox_chunk` has one row per relay. `init` writes it with the LSN of the slot; the relay
updates it before each Kafka commit, with synchronous_commit, whatever the database's default: a
chunk whose number is lost in a crash would look like a restored database. And the commit flushes
the log up to itself, so whatever the relay has read of a numbered table is on the disk by then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

from fencepost.base.arguments import checked
from fencepost.outside.connection import require_writable
from fencepost.outside.failures import DatabaseRefused
from fencepost.outside.outbox.lsn import lsn_text, parse_lsn
from fencepost.outside.outbox.numbering import (
    NUMBER_TRIGGER,
    OUR_COLUMNS,
    SHARD_TRIGGER,
    Numbering,
    read_numbering,
    sequence_of,
)
from fencepost.outside.outbox.replication import ReplicationStream
from fencepost.outside.outbox.rules import ChunkRow, Cursor, HeldWal

if TYPE_CHECKING:
    from fencepost.outside.connection import Connection, Database

CHUNK_TABLE: Final = "fencepost_outbox_chunk"
MIN_VERSION: Final = 140_000
"""PostgreSQL 14 was the first to send logical messages through pgoutput."""
READER_SETTINGS: Final = (
    # By the index of the numbers, whatever the statistics say.
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; "
    # A policy that would hide rows is an error.
    "SET row_security = off"
)
IN_UTF8: Final = {"client_encoding": "UTF8"}
"""psycopg returns bytes instead of text if a database has no encoding (SQL_ASCII)."""
SESSION_SETTINGS: Final = (
    # The lock of a relay whose machine is gone would stay for hours with the kernel's defaults.
    "SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; "
    # A connection waits for rows or for Kafka, and a query while its rows are sent.
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN "
    "('statement_timeout', 'idle_session_timeout', 'transaction_timeout')"
)
SCHEMAS_VERSION: Final = 150_000
"""PostgreSQL 15 was the first with FOR TABLES IN SCHEMA."""
_OUR_SCHEMAS: Final = (
    ", (SELECT 'n' || string_agg(n.oid::text, ',' ORDER BY n.oid) FROM pg_publication_namespace n "
    "WHERE pnpubid = p.oid AND pnnspid IN (SELECT relnamespace FROM ours))"
)
NO_SLOT_YET: Final = "FFFFFFFF/FFFFFFFF"
"""The LSN of the slot while the first `init` runs."""
_MAX_NAME: Final = 63
_TABLE: Final = re.compile(r'([A-Za-z_][\w$]*|"[^"]+")(\.([A-Za-z_][\w$]*|"[^"]+"))?')


@checked
class Outbox(NamedTuple):
    """Which outbox: the names of everything in the database."""

    transactional_id: str
    table: str | None = "outbox"
    """None: messages instead of rows."""
    prefix: str = ""
    slot: str = ""
    publication: str = ""
    is_numbered: bool = False
    """Whether the table is read (`--mode table`) instead of the log (`--mode wal`)."""

    @property
    def source(self) -> str:
        """What is read, in words."""
        return f"table {self.table}" if self.table else f"messages with prefix {self.prefix!r}"

    @property
    def application_name(self) -> str:
        """Tells the connections of this relay from others, in pg_stat_activity."""
        return f"fencepost outbox {self.transactional_id}"

    @classmethod
    def of(
        cls,
        transactional_id: str,
        *,
        table: str | None = "outbox",
        prefix: str = "",
        slot: str | None = None,
        publication: str | None = None,
        mode: Literal["wal", "table"] = "wal",
    ) -> Outbox:
        """Names of slot and publication come from the transactional id.

        The table is written as in SQL: `sales.outbox`, or with quotes for capital letters.
        """
        if not transactional_id:
            raise DatabaseRefused("a relay needs a transactional id, which names it everywhere")
        if mode == "table":
            if not table or prefix:
                raise DatabaseRefused("mode table reads a table: messages are only in the log")
            if slot is not None or publication is not None:
                raise DatabaseRefused("mode table has neither slot nor publication: leave them out")
            sequence_of(table)  # Refuses a name that is too long.
        if table is not None and not _TABLE.fullmatch(table):
            raise DatabaseRefused(
                f"{table!r} is no name of a table: write it as in SQL, such as sales.outbox"
            )
        usual = "fencepost_" + re.sub(r"[^a-z0-9_]", "_", transactional_id.lower())
        usual = usual[:_MAX_NAME]
        slot = usual if slot is None else slot
        if not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
            raise DatabaseRefused(
                f"{slot!r} is no name of a slot: use lower-case letters, digits and underscores"
            )
        if publication is not None and not re.fullmatch(r"\w{1,63}", publication):
            raise DatabaseRefused(f"{publication!r} is no name of a publication: use letters")
        names = slot, publication or usual
        return cls(transactional_id, table, prefix, *names, is_numbered=mode == "table")


# The checks of a start.


class Facts(NamedTuple):
    """What a start looks at."""

    version: int
    wal_level: str
    user: str
    may_replicate: bool
    database_name: str
    table: Mapping[str, Any]
    columns: tuple[tuple[str, int], ...]
    hidden: frozenset[str]
    """Columns that the publication leaves out."""
    publication: Mapping[str, Any]
    slot: Mapping[str, Any]
    chunk_rights: bool | None
    """None if there is no table of chunks."""
    has_confirmed: bool
    """Whether the table of chunks has the column; an earlier version made it without."""
    numbering: Numbering | None
    """None if the table has no such triggers."""
    may_select: bool
    """Whether the user may read the outbox and its sequence."""

    @property
    def way(self) -> tuple[object, Numbering | None]:
        """What shows rows to the relay. A row that was written without it is never seen."""
        return self.publication.get("identity"), self.numbering


class Check(NamedTuple):
    """What must hold, and what is said of the database if it does not."""

    holds: Callable[[Facts], bool]
    sentence: str


SERVER_CHECKS: Final[tuple[Check, ...]] = (
    Check(
        lambda f: f.version >= MIN_VERSION,
        "is PostgreSQL {f.version}, and the relay needs 14 or newer",
    ),
    Check(
        lambda f: f.wal_level == "logical",
        "has wal_level={f.wal_level}: run ALTER SYSTEM SET wal_level = 'logical', and restart it",
    ),
    Check(
        lambda f: f.may_replicate,
        'does not let {f.user!r} read its log: run ALTER ROLE "{f.user}" REPLICATION',
    ),
)

TABLE_CHECKS: Final[tuple[Check, ...]] = (
    Check(
        lambda f: f.table.get("relname", "") is not None,
        "has no table {outbox.table!r}: create it with `fencepost outbox init`, or name another "
        "one with --table",
    ),
    Check(
        lambda f: f.table.get("relpersistence", "p") == "p",
        "has {outbox.table!r} as an unlogged or temporary table, or with such a partition, whose "
        "rows are not in the log: run ALTER TABLE ... SET LOGGED",
    ),
    Check(
        lambda f: not f.table.get("has_children"),
        "has {outbox.table!r} with child tables (INHERITS), whose rows would not be sent: use "
        "PARTITION BY instead",
    ),
)
CHUNK_CHECK: Final = Check(
    lambda f: f.chunk_rights is True,
    "does not let {f.user!r} use "
    + CHUNK_TABLE
    + ": run GRANT SELECT, UPDATE ON "
    + CHUNK_TABLE
    + ' TO "{f.user}"',
)

NUMBERED_CHECKS: Final[tuple[Check, ...]] = (
    SERVER_CHECKS[0],
    *TABLE_CHECKS,
    Check(
        lambda f: f.chunk_rights is not None and f.numbering is not None,
        "is not ready for {outbox.transactional_id!r}: run `fencepost outbox init --mode table` "
        f"(triggers {SHARD_TRIGGER} and {NUMBER_TRIGGER} on {{outbox.table}}, table {CHUNK_TABLE})",
    ),
    Check(
        lambda f: f.numbering is not None and f.numbering.is_enabled,
        "has {outbox.table} with disabled triggers, so its rows get no numbers: run ALTER TABLE "
        f"{{outbox.table}} ENABLE TRIGGER {SHARD_TRIGGER}, ENABLE TRIGGER {NUMBER_TRIGGER}. Rows "
        "that were written without them are not sent",
    ),
    Check(
        lambda f: f.numbering is not None and f.numbering.is_ascending,
        "has a sequence of {outbox.table} whose numbers are not in the order in which they are "
        "given, so rows may have been missed: stop the writers, run ALTER SEQUENCE {sequence} "
        "INCREMENT 1 CACHE 1 NO CYCLE, and compare the outbox with Kafka",
    ),
    CHUNK_CHECK,
    Check(
        lambda f: f.may_select,
        "does not let {f.user!r} read {outbox.table}: run `fencepost outbox init --mode table "
        "--relay-user {f.user}`, or GRANT SELECT on the table and on its sequence",
    ),
)

RELAY_CHECKS: Final[tuple[Check, ...]] = (
    *SERVER_CHECKS,
    *TABLE_CHECKS,
    Check(
        lambda f: f.chunk_rights is not None and bool(f.slot) and bool(f.publication),
        "is not ready for {outbox.transactional_id!r}: run `fencepost outbox init` (slot "
        "{outbox.slot!r}, publication {outbox.publication!r}, table " + CHUNK_TABLE + ")",
    ),
    CHUNK_CHECK,
    Check(
        lambda f: f.has_confirmed,
        "has a table " + CHUNK_TABLE + ' of an earlier version, without column "confirmed": run '
        "`fencepost outbox init` again, which adds it",
    ),
    Check(
        lambda f: f.slot["plugin"] == "pgoutput" and f.slot["database"] == f.database_name,
        "has a slot {outbox.slot!r} for plugin {f.slot[plugin]!r} in database "
        "{f.slot[database]!r}: name another one with --slot",
    ),
    Check(
        lambda f: (
            f.slot.get("wal_status") not in ("lost", None) and not f.slot.get("invalidation_reason")
        ),
        "has lost the log that slot {outbox.slot!r} needs ({f.slot[wal_status]}): what was not "
        "relayed is only in the outbox. Run SELECT pg_drop_replication_slot('{outbox.slot}'), then "
        "`fencepost outbox init`, and raise max_slot_wal_keep_size",
    ),
    Check(
        lambda f: f.publication["pubinsert"] and f.publication["has_table"],
        "has a publication {outbox.publication!r} without inserts into {outbox.table}: run ALTER "
        'PUBLICATION "{outbox.publication}" ADD TABLE {outbox.table}, with publish_via_partition_'
        "root if it has partitions",
    ),
)


def read_facts(connection: Connection, database: Database, outbox: Outbox) -> Facts:
    """Looks at everything that a start depends on."""
    with database.explaining("a look at the database"):
        server = connection.execute(
            "SELECT current_setting('wal_level'), current_user, current_database(), "
            # The users of Amazon RDS cannot have the attribute; a role stands for it.
            "COALESCE((SELECT bool_or(CASE rolname WHEN current_user THEN rolsuper OR "
            "rolreplication ELSE pg_has_role(oid, 'MEMBER') END) FROM pg_roles "
            "WHERE rolname IN (current_user, 'rds_replication')), false)"
        ).fetchone()
        assert server is not None
        wal_level, user, name, may_replicate = server
        table = _as_json(
            connection,
            "SELECT to_jsonb(r) FROM (SELECT c.oid, nspname, relname, "
            "(SELECT max(p.relpersistence) FROM pg_class p WHERE p.oid = c.oid OR p.oid IN "
            "(SELECT relid FROM pg_partition_tree(c.oid))) AS relpersistence, c.relkind = 'r' AND "
            "EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid) AS has_children "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE c.oid = to_regclass(%s)) r",
            outbox.table,
        )
        columns = connection.execute(
            "SELECT attname, atttypid, attgenerated <> '' FROM pg_attribute "
            "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [table.get("oid", 0)],
        ).fetchall()
        if outbox.table and not table:
            table = {"relname": None}
        schemas = _OUR_SCHEMAS if connection.info.server_version >= SCHEMAS_VERSION else ""
        publication = _as_json(
            connection,
            # Rows are in the log only if the publication had the table when they were written. It
            # has a new oid when it is created again, or gets the table again, and a new xmin when
            # its options change; other tables in it change neither. Likewise its schema, and what
            # it is a partition of.
            "WITH ours AS (SELECT c.oid, relnamespace FROM pg_class c WHERE c.oid = %s "  # noqa: S608
            "OR c.oid IN (SELECT relid FROM pg_partition_ancestors(%s))) "
            "SELECT to_jsonb(p) || jsonb_build_object('has_table', %s::text IS NULL OR EXISTS ("
            "SELECT FROM pg_publication_tables t WHERE t.pubname = p.pubname AND "
            "t.schemaname = %s AND t.tablename = %s), 'identity', concat_ws('/', p.oid, p.xmin, "
            "(SELECT string_agg(r.oid::text, ',' ORDER BY r.oid) FROM pg_publication_rel r "
            "WHERE prpubid = p.oid AND prrelid IN (SELECT oid FROM ours))" + schemas + "), "
            "'columns', (SELECT to_jsonb(t) -> 'attnames' FROM pg_publication_tables t "
            "WHERE t.pubname = p.pubname AND t.schemaname = %s AND t.tablename = %s)) "
            "FROM pg_publication p WHERE pubname = %s",
            table.get("oid", 0),
            table.get("oid", 0),
            table.get("relname"),
            table.get("nspname"),
            table.get("relname"),
            table.get("nspname"),
            table.get("relname"),
            outbox.publication,
        )
        slot = _as_json(
            connection,
            "SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = %s",
            outbox.slot,
        )
        rights = connection.execute(
            "SELECT has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'UPDATE'), "
            "EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'confirmed') "
            "FROM pg_class c WHERE oid = to_regclass(%s)",
            [CHUNK_TABLE],
        ).fetchone()
        numbering, may_select = None, True
        if outbox.is_numbered:
            numbering, may_select = _numbering(connection, outbox, table.get("oid", 0))
    return Facts(
        connection.info.server_version,
        wal_level,
        user,
        may_replicate,
        name,
        table,
        tuple(
            (column, int(oid))
            for column, oid, _ in columns
            if not (outbox.is_numbered and column in OUR_COLUMNS)
        ),
        _hidden(columns, publication.get("columns")),
        publication,
        slot,
        None if rights is None else bool(rights[0]),
        rights is not None and bool(rights[1]),
        numbering,
        may_select,
    )


def _hidden(columns: Sequence[tuple[Any, ...]], published: list[str] | None) -> frozenset[str]:
    if published is None:  # PostgreSQL 14: all but those that are generated.
        return frozenset(name for name, _, is_generated in columns if is_generated)
    return frozenset(name for name, _, _ in columns if name not in published)


def _numbering(
    connection: Connection, outbox: Outbox, table_oid: int
) -> tuple[Numbering | None, bool]:
    assert outbox.table is not None
    triggers = connection.execute(
        # Those of partitions have the same names, and may be disabled there alone.
        "SELECT tgname, tgargs, COALESCE((SELECT min(c.tgenabled::text) FROM pg_trigger c "
        "JOIN pg_partition_tree(t.tgrelid) ON relid = c.tgrelid WHERE c.tgname = t.tgname "
        "AND c.tgenabled NOT IN ('O', 'A')), tgenabled::text) FROM pg_trigger t "
        "WHERE tgrelid = %s AND tgname = ANY(%s)",
        [table_oid, [SHARD_TRIGGER, NUMBER_TRIGGER]],
    ).fetchall()
    found = connection.execute(
        "SELECT seqrelid, has_sequence_privilege(seqrelid, 'SELECT') "
        "AND has_table_privilege(%s::oid, 'SELECT'), "
        "seqcache = 1 AND seqincrement > 0 AND NOT seqcycle "
        "FROM pg_sequence WHERE seqrelid = to_regclass(%s)",
        [table_oid, sequence_of(outbox.table)],
    ).fetchone()
    sequence_oid, may_select, is_ascending = found or (0, False, False)
    numbering = read_numbering(triggers, sequence_oid, is_ascending=is_ascending)
    return numbering, bool(may_select)


def _as_json(connection: Connection, query: str, *arguments: Any) -> dict[str, Any]:
    """One row as JSON: columns that this version of PostgreSQL lacks are simply missing."""
    row = connection.execute(query.encode(), list(arguments)).fetchone()
    return {} if row is None else dict(row[0])


def require(facts: Facts, checks: tuple[Check, ...], database: Database, outbox: Outbox) -> None:
    """Raises the first sentence that applies."""
    for holds, sentence in checks:
        if not holds(facts):
            sequence = sequence_of(outbox.table) if outbox.is_numbered and outbox.table else ""
            words = sentence.format(f=facts, outbox=outbox, sequence=sequence)
            raise DatabaseRefused(f"{database} {words}")


# The relay's connection.


_LOCKED: Final = (
    "FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND (classid::bigint << 32 | objid::bigint) = hashtextextended(%s, 0)"
)
_PREDECESSORS: Final = (
    # Whatever reads the slot under another name is no relay of this id, and not fenced.
    f"(SELECT pid {_LOCKED} AND pid <> pg_backend_pid() UNION "  # noqa: S608
    "SELECT pid FROM pg_replication_slots JOIN pg_stat_activity ON pid = active_pid "
    "WHERE slot_name = %s AND application_name = current_setting('application_name')) p"
)


def _connect(database: Database, outbox: Outbox) -> Connection:
    connection = database.connect(
        autocommit=True, application_name=outbox.application_name, **IN_UTF8
    )
    with database.explaining("a setting"):
        connection.execute(SESSION_SETTINGS)
    return connection


class OutboxDatabase:
    """What the relay does in the database over SQL."""

    def __init__(self, database: Database, outbox: Outbox) -> None:
        """Connects."""
        self._database = database
        self._outbox = outbox
        self._connection = _connect(database, outbox)
        self._way: tuple[object, Numbering | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the connection, and with it the lock."""
        self._connection.close()

    @property
    def outbox(self) -> Outbox:
        """The names in the database."""
        return self._outbox

    def look(self) -> Facts:
        """Looks at everything that a start depends on."""
        require_writable(self._connection, self._database)
        return read_facts(self._connection, self._database, self._outbox)

    def check(self) -> Facts:
        """Raises one sentence if the relay cannot run here."""
        facts = self.look()
        checks = NUMBERED_CHECKS if self._outbox.is_numbered else RELAY_CHECKS
        require(facts, checks, self._database, self._outbox)
        with self._database.explaining("a setting"):
            self._connection.execute("SET synchronous_commit = 'on'")
        self._way = facts.way
        return facts

    def check_again(self) -> None:
        """The same in the middle of a run: rows that are not shown to the relay stay unnoticed."""
        before = self._way
        if self.check().way != before:
            what = "triggers" if self._outbox.is_numbered else "publication"
            raise DatabaseRefused(
                f"{self._database}: the {what} of {self._outbox.source} changed while the relay "
                "ran: start again"
            )

    def stream(self) -> ReplicationStream:
        """A replication connection to the same server."""
        return ReplicationStream(self._database.at(self._connection), self._outbox.application_name)

    # A numbered table.

    def connect_reader(self) -> Connection:
        """A connection to the same server for queries."""
        connection = _connect(self._database.at(self._connection), self._outbox)
        with self._database.explaining("a setting"):
            connection.execute(READER_SETTINGS)
        return connection

    def explaining(self, what: str) -> AbstractContextManager[None]:
        """Raises psycopg's errors as one sentence each."""
        return self._database.explaining(what)

    def identify(self) -> tuple[str, int, int]:
        """System identifier, timeline, and up to where the log is flushed."""
        with self._database.explaining("a look at the system's identifier"):
            found = self._connection.execute(
                "SELECT system_identifier::text, left(pg_walfile_name(pg_current_wal_lsn()), 8), "
                "pg_current_wal_flush_lsn()::text FROM pg_control_system()"
            ).fetchone()
        assert found is not None
        return found[0], int(found[1], 16), parse_lsn(found[2])

    def last_number(self, sequence_oid: int) -> int:
        """The last number that was given; 0 if none was."""
        with self._database.explaining("a look at the numbers"):
            found = self._connection.execute(
                "SELECT COALESCE(pg_sequence_last_value(%s::oid::regclass), 0)", [sequence_oid]
            ).fetchone()
        return 0 if found is None else int(found[0])

    def count_above(self, numbers: Sequence[int]) -> int:
        """How many rows have higher numbers than these of their shards."""
        table = (self._outbox.table or "").replace("%", "%%")
        with self._database.explaining("a count of the rows that are left"):
            found = self._connection.execute(
                "SELECT count(*) FROM unnest(%s::int[], %s::bigint[]) AS c (shard, number) "  # noqa: S608
                f"JOIN {table} t ON t.fencepost_shard = c.shard "
                "AND t.fencepost_number > c.number".encode(),
                [list(range(len(numbers))), list(numbers)],
            ).fetchone()
        return 0 if found is None else int(found[0])

    # The row of the chunk.

    def try_lock(self) -> bool:
        """Locks out other relays of this id in this database, for as long as it is connected."""
        with self._database.explaining("the lock of the relay"):
            found = self._connection.execute(
                "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [self._lock]
            ).fetchone()
        return found is not None and bool(found[0])

    def is_locked(self) -> bool:
        """Whether a relay of this id is connected to the database."""
        with self._database.explaining("a look at the locks"):
            found = self._connection.execute(f"SELECT {_LOCKED}".encode(), [self._lock]).fetchone()
        return found is not None

    @property
    def _lock(self) -> str:
        return f"{CHUNK_TABLE} {self._outbox.transactional_id}"

    def find_predecessors(self) -> list[int]:
        """The processes of the server that hold the lock or the slot for another relay."""
        with self._database.explaining("a look at the predecessor"):
            found = self._connection.execute(
                f"SELECT pid FROM {_PREDECESSORS}".encode(),  # noqa: S608
                [self._lock, self._outbox.slot],
            ).fetchall()
        return [pid for (pid,) in found]

    def end_predecessors(self, pids: Sequence[int]) -> bool:
        """Ends their connections; returns whether this user may. Their relay must be fenced."""
        import psycopg

        try:
            self._connection.execute(
                f"SELECT pg_terminate_backend(pid) FROM {_PREDECESSORS} "  # noqa: S608
                "WHERE pid = ANY(%s)".encode(),
                [self._lock, self._outbox.slot, list(pids)],
            )
        except psycopg.errors.InsufficientPrivilege:
            return False
        except psycopg.Error as problem:
            raise self._database.explain(problem, "the end of the predecessor") from None
        return True

    def find_row(self) -> ChunkRow | None:
        """The row of the chunk; None if `init` did not write one."""
        return read_row(self._connection, self._database, self._outbox)

    def read_row(self) -> ChunkRow:
        """The row of the chunk."""
        row = self.find_row()
        if row is None or row.slot_lsn == parse_lsn(NO_SLOT_YET):
            what = "row" if self._outbox.is_numbered else "slot"
            raise DatabaseRefused(
                f"{self._database} has no {what} that was created for "
                f"{self._outbox.transactional_id!r}: run `fencepost outbox init`"
            )
        return row

    def write_row(self, chunk: int, cursor: Cursor, sent: Sequence[int] = ()) -> None:
        """Commits the number of the chunk and its cursor, and what was in Kafka before it."""
        self._update_row(_CHUNK, *_chunk_values(chunk, cursor, sent))

    def write_start_row(self, chunk: int, cursor: Cursor, *, resets_confirmed: bool) -> None:
        """The same for a start that has to be recorded."""
        more = ", confirmed = '0/0'" if resets_confirmed and not self._outbox.is_numbered else ""
        self._update_row(_CHUNK + more, *_chunk_values(chunk, cursor, cursor.numbers))

    def write_confirmed(self, lsn: int) -> None:
        """Commits what the slot may be told beyond the position."""
        self._update_row("confirmed = %s", lsn_text(lsn))

    def _update_row(self, assignments: str, *values: Any) -> None:
        with self._database.explaining(f"the update of {CHUNK_TABLE}"):
            done = self._connection.execute(
                f"UPDATE {CHUNK_TABLE} SET {assignments} WHERE relay = %s".encode(),  # noqa: S608
                [*values, self._outbox.transactional_id],
            )
        if done.rowcount != 1:
            raise DatabaseRefused(
                f"{self._database}: the row of {self._outbox.transactional_id!r} in {CHUNK_TABLE} "
                "was deleted: the relay cannot tell whether the database was restored. Run "
                "`fencepost outbox init`"
            )

    def confirmed_flush_lsn(self) -> int:
        """Where the slot is."""
        lsn = self._look_at_slot().get("confirmed_flush_lsn")
        if lsn is None:
            raise DatabaseRefused(
                f"{self._database} has lost slot {self._outbox.slot!r} while it was looked at: "
                "run `fencepost outbox init`"
            )
        return parse_lsn(lsn)

    def _look_at_slot(self) -> dict[str, Any]:
        with self._database.explaining("a look at the slot"):
            return _as_json(
                self._connection,
                "SELECT to_jsonb(s) || jsonb_build_object('end_lsn', pg_current_wal_lsn()) "
                "FROM pg_replication_slots s WHERE slot_name = %s",
                self._outbox.slot,
            )

    def held_wal(self) -> HeldWal:
        """How much of the log the slot holds."""
        slot = self._look_at_slot()
        if not slot.get("restart_lsn"):
            return HeldWal(0, 0)
        restart_lsn, end_lsn = parse_lsn(slot["restart_lsn"]), parse_lsn(slot["end_lsn"])
        return HeldWal(end_lsn - restart_lsn, restart_lsn, end_lsn)


_CHUNK: Final = "chunk = %s, end_lsn = %s, commit_lsn = %s, ordinal = %s, numbers = %s, sent = %s"


def _chunk_values(chunk: int, cursor: Cursor, sent: Sequence[int]) -> tuple[Any, ...]:
    end_lsn, commit_lsn = lsn_text(cursor.end_lsn), lsn_text(cursor.commit_lsn)
    return chunk, end_lsn, commit_lsn, cursor.ordinal, list(cursor.numbers), list(sent)


def read_row(connection: Connection, database: Database, outbox: Outbox) -> ChunkRow | None:
    """The row of the chunk; None if `init` did not write one."""
    with database.explaining(f"reading {CHUNK_TABLE}"):
        row = _as_json(
            connection,
            f"SELECT to_jsonb(c) FROM {CHUNK_TABLE} c WHERE relay = %s",  # noqa: S608
            outbox.transactional_id,
        )
    if not row:
        return None
    end_lsn, commit_lsn = parse_lsn(row["end_lsn"]), parse_lsn(row["commit_lsn"])
    confirmed = row.get("confirmed")
    return ChunkRow(
        row["chunk"],
        Cursor(end_lsn, commit_lsn, row["ordinal"], tuple(row["numbers"])),
        parse_lsn(row["slot_lsn"]),
        tuple(row["sent"]),
        None if confirmed is None else parse_lsn(confirmed),
        row.get("publication") or "",
    )
