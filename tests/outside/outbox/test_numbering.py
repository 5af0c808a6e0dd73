"""The triggers that number rows at COMMIT: names, and what a column default would lose instead."""

from __future__ import annotations

import psycopg
import pytest

from fencepost.outside.connection import Database
from fencepost.outside.failures import DatabaseRefused
from fencepost.outside.outbox.database import Outbox
from fencepost.outside.outbox.numbering import MAX_SHARDS, structure
from fencepost.outside.outbox.setup import init

TABLES = ("outbox", "Sales.Outbox", '"Out""box"', '"a"."B $$"', '"it\'s 100%"', "a_b", "o$1")


def make(dsn: str, table: str, shards: int = 8) -> None:
    init(Database(dsn), Outbox.of("numbering", table=table, mode="table"), shards=shards)


@pytest.mark.parametrize("table", [name for name in TABLES if '""' not in name])
def test_any_name_of_a_table_works(dsn: str, table: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA sales; CREATE SCHEMA "a"')
        make(dsn, table)
        make(dsn, table)
        for _ in range(2):
            connection.execute(
                f"INSERT INTO {table} (aggregatetype, aggregateid) VALUES ('t', 'k')".encode()
            )
        found = connection.execute(f"SELECT fencepost_number FROM {table}".encode()).fetchall()
        assert sorted(found) == [(2,), (4,)]


def test_a_name_that_leaves_no_room_for_ours_is_refused() -> None:
    with pytest.raises(DatabaseRefused, match="longer than 46"):
        Outbox.of("x", table="t" * 47, mode="table")
    Outbox.of("x", table="schema_" * 8 + "." + "t" * 46, mode="table")


def test_tables_have_shards_of_their_own(dsn: str) -> None:
    """One transaction writes to two outboxes; each has its own locks and settings."""
    make(dsn, "one", 1)
    make(dsn, "two", MAX_SHARDS)
    with psycopg.connect(dsn) as connection:
        for number in range(400):
            for table in ("one", "two"):
                connection.execute(
                    f"INSERT INTO {table} (aggregatetype, aggregateid) "
                    f"VALUES ('t', 'k{number}')".encode()
                )
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        locks = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert locks.fetchone() == (1 + MAX_SHARDS,)
        shards = connection.execute(
            "SELECT count(DISTINCT fencepost_shard), min(fencepost_number) > 0 FROM two"
        )
        assert shards.fetchone() == (MAX_SHARDS, True)


@pytest.mark.parametrize(
    ("kind", "value", "settings"),
    [
        ("bytea", "decode(md5(i::text), 'hex')", ("bytea_output = hex", "bytea_output = escape")),
        ("timestamptz", "to_timestamp(i * 1000)", ("timezone = 'UTC'", "timezone = 'Asia/Tokyo'")),
        ("timestamptz", "to_timestamp(i * 1000)", ("datestyle = 'ISO'", "datestyle = 'SQL'")),
        ("float8", "1.0 / i", ("extra_float_digits = 1", "extra_float_digits = -9")),
    ],
)
def test_one_key_has_one_shard_whatever_the_settings_of_a_session(
    dsn: str, kind: str, value: str, settings: tuple[str, str]
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE outbox (topic text, key {kind}, value text)".encode())
        make(dsn, "outbox")
        for each in settings:
            connection.execute(f"SET {each}".encode())
            connection.execute(
                f"INSERT INTO outbox SELECT 't', {value} FROM generate_series(3, 40) i".encode()
            )
        found = connection.execute(
            "SELECT count(*), count(DISTINCT fencepost_shard) FROM outbox GROUP BY key"
        ).fetchall()
        assert found == [(2, 1)] * 38


def test_a_key_that_cannot_be_hashed_is_refused_before_an_insert_fails(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE outbox (topic text, key json, value text)")
        with pytest.raises(DatabaseRefused, match=r'shard by column "key" failed: .* json'):
            make(dsn, "outbox")
        connection.execute("INSERT INTO outbox VALUES ('t', '1', 'v')")
        connection.execute("ALTER TABLE outbox ALTER key TYPE jsonb")
        make(dsn, "outbox")
        connection.execute("INSERT INTO outbox VALUES ('t', '1', 'v')")


def test_a_rolled_back_transaction_holds_no_shard(dsn: str) -> None:
    make(dsn, "outbox", 1)
    insert = b"INSERT INTO outbox (aggregatetype) VALUES ('t')"
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:
        one.execute(insert)
        one.execute("SET CONSTRAINTS ALL IMMEDIATE")
        one.rollback()
        other.execute("SET lock_timeout = '10s'")
        other.execute(insert)
        other.commit()


def test_what_init_creates_is_the_same_whatever_runs_it() -> None:
    for sql, right in structure("sales.outbox", 4, 'a"key'):
        assert right
        assert "outbox" in sql or "search_path" in sql
    assert 'NEW."a""key"' in structure("outbox", 4, 'a"key')[-1][0]


IN_THE_WAY = {
    "a temporary table": (
        "CREATE TEMP TABLE outbox (fencepost_shard int, fencepost_number bigint, "
        "fencepost_at timestamptz);"
        "CREATE FUNCTION pg_temp.mine() RETURNS trigger LANGUAGE plpgsql AS $$"
        "BEGIN RAISE 'ran as %', current_user; END$$;"
        "CREATE TRIGGER mine BEFORE UPDATE ON pg_temp.outbox FOR EACH STATEMENT "
        "EXECUTE FUNCTION pg_temp.mine()"
    ),
    "a temporary sequence": "CREATE TEMP SEQUENCE outbox_fencepost START 1000000",
    **{
        function: f"CREATE FUNCTION public.{function} RETURNS {kind} LANGUAGE plpgsql AS $$"
        "BEGIN RAISE 'ran as %', current_user; END$$"
        for function, kind in (
            ("nextval(text)", "bigint"),
            ("hash_record(record)", "int"),
            ("current_setting(text, bool)", "text"),
            ("set_config(text, text, bool)", "text"),
            ("hashtextextended(text, int)", "bigint"),
            ("pg_advisory_xact_lock(bigint)", "void"),
            ("clock_timestamp()", "timestamptz"),
        )
    },
}


@pytest.mark.parametrize("case", IN_THE_WAY)
def test_nothing_of_a_writer_runs_with_the_rights_of_the_owner(dsn: str, case: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        name = f"writer_{admin.info.dbname}"
        admin.execute(f"CREATE ROLE {name} LOGIN; GRANT CREATE ON SCHEMA public TO {name}".encode())
        try:
            make(dsn, "outbox")
            admin.execute(f"GRANT INSERT ON outbox TO {name}".encode())
            with psycopg.connect(f"{dsn} user={name}", autocommit=True) as writer:
                writer.execute(IN_THE_WAY[case].encode())
                writer.execute("INSERT INTO public.outbox (aggregatetype) VALUES ('t')")
            found = admin.execute("SELECT fencepost_number FROM outbox").fetchall()
            assert found == [(2,)]
        finally:
            admin.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


def test_the_trigger_on_another_table_renumbers_no_row(dsn: str) -> None:
    """Anybody may execute a function; a row with a new number would be sent again."""
    make(dsn, "outbox", 1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO outbox (aggregatetype) VALUES ('t')")
        connection.execute("CREATE TABLE own (fencepost_shard int, fencepost_number bigint)")
        connection.execute(
            "CREATE TRIGGER own AFTER INSERT ON own FOR EACH ROW "
            "EXECUTE FUNCTION outbox_fencepost_number()"
        )
        with pytest.raises(psycopg.Error):
            connection.execute(
                "DO $$BEGIN PERFORM set_config('fencepost.shards_' || "
                "substring(prosrc FROM 'shards_(\\w+)'), '1', true) FROM pg_proc "
                "WHERE proname = 'outbox_fencepost_number'; "
                "INSERT INTO own VALUES (0, 2); END$$"
            )
        assert connection.execute("SELECT fencepost_number FROM outbox").fetchall() == [(2,)]


def test_functions_for_other_shards_do_not_stay_without_their_triggers(dsn: str) -> None:
    """Rows in shards that the first trigger does not name would not be read."""
    make(dsn, "outbox", 1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP TRIGGER fencepost_number ON outbox")
        with pytest.raises(DatabaseRefused, match="already exists"):
            make(dsn, "outbox", 32)
        for number in range(20):
            connection.execute(
                "INSERT INTO outbox (aggregatetype, aggregateid) VALUES ('t', %s)", [str(number)]
            )
        shards = connection.execute("SELECT DISTINCT fencepost_shard FROM outbox").fetchall()
        assert shards == [(0,)]
