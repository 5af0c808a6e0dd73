"""Every failure to reach or use a database is one sentence with the next step, without secrets."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator

import psycopg
import pytest

from fencepost.outside.connection import Database, require_writable
from fencepost.outside.failures import (
    DatabaseRefused,
    DatabaseUnavailable,
    ExtraMissing,
    OutsideError,
)
from tests.outside.postgres import PostgresServer
from tools.processes import free_port

SECRET = "s3cr3t-Wort"


@pytest.fixture(scope="module")
def strict() -> Iterator[PostgresServer]:
    """A server that asks for passwords, except those of its superuser."""
    with PostgresServer() as server:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute("CREATE ROLE app LOGIN PASSWORD 'right'")
            admin.execute("CREATE ROLE guest NOLOGIN")
        server.replace_access_rules(
            "host all postgres 127.0.0.1/32 trust",
            "host all app,guest 127.0.0.1/32 scram-sha-256",
        )
        server.restart()
        yield server


def failure(dsn: str) -> OutsideError:
    with pytest.raises(OutsideError) as caught:
        Database(dsn).connect()
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_connection_works_and_its_repr_shows_no_password(postgres: PostgresServer) -> None:
    database = Database(postgres.dsn(password=SECRET))
    with database.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert SECRET not in f"{database} {database!r}"
    assert str(database) == (
        f"PostgreSQL at 127.0.0.1:{postgres.port}, database 'postgres', user 'postgres'"
    )


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgres//app:{SECRET}@host/app",
        f"postgresql://app:{SECRET}%@host/app",
        f"host=x password={SECRET} nonsense",
        f"postgresql://app:{SECRET}@host:port/app?x=y",
        f"password='{SECRET}",
        " ",
    ],
)
def test_an_unreadable_dsn_is_refused_without_being_quoted(dsn: str) -> None:
    problem = failure(dsn)
    assert isinstance(problem, DatabaseRefused)
    assert "postgresql://USER@HOST:PORT/DATABASE" in str(problem)


def test_an_unknown_parameter_is_named(postgres: PostgresServer) -> None:
    assert "no parameter 'passwort'" in str(failure(f"host=x passwort={SECRET}"))


def test_a_port_without_a_server_is_unavailable() -> None:
    problem = failure(f"host=127.0.0.1 port={free_port()} password={SECRET}")
    assert isinstance(problem, DatabaseUnavailable)
    assert "nothing listens there" in str(problem)


def test_an_unknown_host_is_named() -> None:
    assert "correct the host name" in str(failure(f"host=no.such.invalid password={SECRET}"))


@pytest.mark.parametrize(
    ("user", "database", "words"),
    [
        ("app", "postgres", "check the user and the password"),
        ("guest", "postgres", "check the user"),
        ("stranger", "postgres", "pg_hba.conf"),
        ("postgres", "missing", "create it first, or correct the name"),
    ],
)
def test_wrong_credentials_and_names_are_refused(
    strict: PostgresServer, user: str, database: str, words: str
) -> None:
    problem = failure(strict.dsn(user, database, password=SECRET))
    assert isinstance(problem, DatabaseRefused)
    assert words in str(problem)


def test_a_missing_password_says_where_to_put_it(strict: PostgresServer) -> None:
    assert "PGPASSWORD" in str(failure(strict.dsn("app")))


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT * FROM nowhere", "create it first"),
        ("SELECT nothing FROM pg_class", "add the column"),
        ("SELECT pg_read_file('PG_VERSION')", "grant this right"),
    ],
)
def test_a_refused_statement_says_what_to_do(
    strict: PostgresServer, statement: str, words: str
) -> None:
    database = Database(strict.dsn("app", password="right"))
    with (
        database.connect() as connection,
        pytest.raises(DatabaseRefused) as caught,
        database.explaining("the query"),
    ):
        connection.execute(statement)
    assert words in str(caught.value)
    assert "the query failed" in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("INSERT INTO kept VALUES (7, 1), (7, 2)", "Key (id)=(7) already exists"),
        ("INSERT INTO kept VALUES (8, 0)", 'constraint "positive"; Failing row contains (8, 0)'),
        ("SELECT failing()", "PL/pgSQL function failing() line 1 at PERFORM"),
    ],
)
def test_an_error_has_the_key_the_row_and_the_function(
    dsn: str, statement: str, words: str
) -> None:
    database = Database(dsn)
    with database.connect(autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE kept (id int PRIMARY KEY, n int CONSTRAINT positive CHECK (n > 0));"
            "CREATE FUNCTION failing() RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM 1/0; END'"
        )
        with pytest.raises(DatabaseRefused) as caught, database.explaining("the query"):
            connection.execute(statement.encode())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_detail_is_cut_and_has_no_password() -> None:
    database = Database(f"host=x password={SECRET}")
    about = [f"Key (id)=({SECRET}) exists.", "line 1\n  line 2", "x" * 10_000, None, ""]
    problem = str(database.explain_words("it failed", "the query", "23505", about))
    assert problem.startswith(
        "PostgreSQL at x: the query failed: it failed; Key (id)=(***) exists; line 1 line 2; xxx"
    )
    assert len(problem) < 1_000


def test_a_server_that_stops_under_a_connection_is_unavailable() -> None:
    with PostgresServer() as server:
        database = Database(server.dsn())
        one, other = database.connect(), database.connect()
        server.stop()
        with pytest.raises(DatabaseUnavailable) as caught, database.explaining("the query"):
            one.execute("SELECT 1")
        assert "start again" in str(caught.value)
        server.start()
        server.kill()
        with pytest.raises(DatabaseUnavailable), database.explaining("the query"):
            other.execute("SELECT 1")


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        ("53100", DatabaseRefused, "make room"),
        ("53300", DatabaseRefused, "max_connections"),
        ("57P01", DatabaseUnavailable, "start again"),
        ("57P03", DatabaseUnavailable, "start again when it runs"),
        ("08006", DatabaseUnavailable, "failed"),
        ("XX000", DatabaseRefused, "failed"),
    ],
)
def test_codes_of_the_server_choose_the_advice(
    state: str, kind: type[OutsideError], words: str
) -> None:
    database = Database(f"host=x password={SECRET}")
    problem = database.explain_words(f"FATAL: it says {SECRET}", "the query", state)
    assert type(problem) is kind
    assert words in str(problem)
    assert "it says ***" in str(problem)


def test_what_psycopg_does_not_send_is_refused(postgres: PostgresServer) -> None:
    database = Database(postgres.dsn())
    for statement, value in (("SELECT %x", 1), ("SELECT %s", "\0"), ("SELECT %s", object())):
        with (
            database.connect() as connection,
            pytest.raises(DatabaseRefused),
            database.explaining("the query"),
        ):
            connection.execute(statement.encode(), [value])


def test_the_line_that_counts_is_taken_from_what_libpq_says() -> None:
    said = (
        "server closed the connection unexpectedly\n\tThis probably means the server terminated "
        "abnormally\n\tbefore or while processing the request.\n"
    )
    problem = Database("host=x").explain_words(said, "the query")
    assert str(problem).endswith("the query failed: server closed the connection unexpectedly")


def test_of_several_hosts_the_one_that_answered_is_used_again(postgres: PostgresServer) -> None:
    several = Database(f"host=127.0.0.1,127.0.0.1 port={free_port()},{postgres.port} user=postgres")
    with several.connect() as connection:
        assert f"at 127.0.0.1:{postgres.port}," in str(several.at(connection))
        with several.at(connection).connect() as other:
            assert other.info.port == connection.info.port == postgres.port


def test_a_read_only_database_is_refused(dsn: str) -> None:
    database = Database(dsn)
    with (
        database.connect(options="-cdefault_transaction_read_only=on") as connection,
        pytest.raises(DatabaseRefused, match="read-only"),
    ):
        require_writable(connection, database)
    with database.connect() as connection:
        require_writable(connection, database)


def test_a_standby_is_refused() -> None:
    with PostgresServer() as server:
        server.stop()
        server.start(as_standby=True)
        database = Database(server.dsn())
        with database.connect() as connection, pytest.raises(DatabaseRefused, match="primary"):
            require_writable(connection, database)


def test_without_the_extra_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ExtraMissing, match=r"pip install 'fencepost\[postgres\]'"):
        Database("host=x")
