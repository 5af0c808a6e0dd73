"""A database to connect to, and its errors in one sentence each, with the next step.

Passwords. A connection string may contain one, and libpq quotes the string when it cannot read it.
So its message is never passed on there, nor is the exception chained; elsewhere the words of known
secrets are blanked out. The `repr` of a `Database` shows where it is, and nothing else.

A server names its errors with SQLSTATE codes, but libpq has none for a connection that failed: then
the words of the server, which are English on any server that was not told otherwise, choose the
advice.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from fencepost.outside.failures import (
    DatabaseRefused,
    DatabaseUnavailable,
    ExtraMissing,
    OutsideError,
)

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

log = logging.getLogger(__name__)

RECONNECT_SECONDS: Final = 0.5
"""Between two attempts to reach a database that is away."""
CONNECT_TIMEOUT_SECONDS: Final = 10
"""Unless the connection string has another one; libpq would wait for ever."""

MOST_CHARACTERS: Final = 400
"""Of a DETAIL or CONTEXT in a message."""

_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret", "scram_client_key")
_HOW_TO_WRITE: Final = (
    "write postgresql://USER@HOST:PORT/DATABASE or 'host=HOST port=PORT user=USER dbname=DATABASE'"
)
_OPTION: Final = re.compile(r'invalid (?:connection option|URI query parameter):? "(\w+)"')
_NO_REASON: Final = ("Is the server running", "This probably means", "before or while processing")
"""Lines of libpq below the one that counts."""
_BEFORE_REASON: Final = re.compile(
    r"^(.*?(FATAL|ERROR):\s*|(connection failed: )?(connection to server .*? failed: )?)"
)

_UNAVAILABLE: Final = ("08", "25P03", "40", "57P")
"""SQLSTATE classes: the connection was lost; the server ended it, because the process was suspended
in a transaction; the server is stopping or starting; a transaction met another one, and would
succeed alone."""

_ADVICE_BY_STATE: Final[Mapping[str, str]] = {
    "25006": "it is read-only: connect to the primary, or end its read-only mode",
    "25P02": "an error in it was caught: put `with connection.transaction():` around what may fail",
    "28000": "check the user, and the rule for it in pg_hba.conf",
    "28P01": "check the user and the password",
    "3D000": "create the database, or correct its name",
    "42501": "grant this right to the user",
    "42P01": "create it first, or correct its name",
    "42703": "add the column, or name another one",
    "53100": "its disk is full: make room there",
    "53200": "the server is out of memory",
    "53300": "all connections are in use: raise max_connections, or close some",
    "53400": "raise the limit in the server's configuration",
    "55006": "stop its other user first",
    "57014": "raise statement_timeout for this user, or give it less to do at once",
    "57P01": "an administrator stopped the server or ended the connection: start again",
    "57P02": "the server crashed and is restarting: start again",
    "57P03": "the server is starting or stopping: start again when it runs",
}
_ADVICE_BY_WORDS: Final[Mapping[str, str]] = {
    "Connection refused": "nothing listens there: start the server, or correct host and port",
    "No such file or directory": "no server has its socket there: start it, or name its host",
    "could not translate host name": "correct the host name",
    "failed to resolve host": "correct the host name",
    "timeout expired": "it does not answer: check host, port and firewall",
    "password authentication failed": _ADVICE_BY_STATE["28P01"],
    "no password supplied": "give the password with PGPASSWORD, a .pgpass file or the DSN",
    "no pg_hba.conf entry": _ADVICE_BY_STATE["28000"],
    "is not permitted to log in": "grant LOGIN to the role, or use another one",
    "permission denied": _ADVICE_BY_STATE["42501"],
    "must be superuser or replication role": "run ALTER ROLE ... REPLICATION for this user",
    "does not exist": "create it first, or correct the name",
    "starting up": _ADVICE_BY_STATE["57P03"],
    "shutting down": _ADVICE_BY_STATE["57P03"],
    "in recovery mode": _ADVICE_BY_STATE["57P02"],
    "too many clients": _ADVICE_BY_STATE["53300"],
    "remaining connection slots": _ADVICE_BY_STATE["53300"],
    "does not support SSL": "set sslmode=prefer, or turn on ssl in the server",
    "certificate verify failed": "name the authority's certificate with sslrootcert",
}
_LASTING: Final = (
    "password",
    "pg_hba.conf",
    "does not exist",
    "permission denied",
    "replication role",
    "log in",
    "SSL",
    "certificate",
)
"""Words of a failed connection that will fail again."""


def require_psycopg() -> None:
    """Raises ExtraMissing if this Python cannot reach PostgreSQL."""
    try:
        import psycopg  # noqa: F401
    except ImportError:  # It is missing, or finds no libpq.
        raise ExtraMissing(
            "PostgreSQL is reached through psycopg, which this Python cannot use: "
            "pip install 'fencepost[postgres]'"
        ) from None


class Database:
    """Where a database is. It connects when asked to, and explains errors."""

    def __init__(self, dsn: str) -> None:
        """`dsn`: a URI or `name=value` pairs; what it leaves out comes from libpq's variables."""
        require_psycopg()
        self._parameters = _read(dsn)
        self._secrets = [
            str(value)
            for name in _SECRETS
            if (value := self._parameters.get(name)) is not None and str(value)
        ]

    def __repr__(self) -> str:
        return f"<Database {self}>"

    def __str__(self) -> str:
        find = self._parameters.get
        host = find("host") or find("hostaddr") or "the default host"
        port = f":{find('port')}" if find("port") else ""
        name = f", database {find('dbname')!r}" if find("dbname") else ""
        user = f", user {find('user')!r}" if find("user") else ""
        return f"PostgreSQL at {host}{port}{name}{user}"

    def conninfo(self, **more: str) -> str:
        """The connection string, with its password, for libpq. `more` are other parameters."""
        from psycopg.conninfo import make_conninfo

        defaults = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, "application_name": "fencepost"}
        # Whatever the encoding of the database is: COPY gets bytes, and SQL_ASCII has no text.
        ours = {"client_encoding": "UTF8"}
        return make_conninfo(**{**defaults, **self._parameters, **more, **ours})

    def connect(self, *, autocommit: bool = False, **more: str) -> Connection:
        """Opens a connection; raises one sentence if that fails."""
        import psycopg

        with self.explaining("the connection"):
            return psycopg.connect(self.conninfo(**more), autocommit=autocommit)

    def connect_patiently(
        self, seconds: float, is_given_up: Callable[[], bool] = lambda: False
    ) -> Connection:
        """The same, trying for `seconds` while the database is unavailable."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.connect()
            except DatabaseUnavailable as problem:
                if time.monotonic() > deadline or is_given_up():
                    raise
                log.warning("%s; trying again for up to %.0f s", problem, seconds)
            time.sleep(RECONNECT_SECONDS)

    @property
    def has_secrets(self) -> bool:
        """Whether the connection string has a password."""
        return bool(self._secrets)

    def at(self, connection: Connection) -> Database:
        """The same database at the server of this connection, if the string names several."""
        found = connection.info
        where = {"host": found.host, "hostaddr": found.hostaddr or None, "port": str(found.port)}
        return Database(self.conninfo(**{k: v for k, v in where.items() if v is not None}))

    @contextmanager
    def explaining(self, what: str) -> Iterator[None]:
        """Raises psycopg's errors as one sentence each. `what` was being done, such as "COPY"."""
        import psycopg

        try:
            yield
        except psycopg.Error as problem:
            # Not chained: libpq's words may contain the connection string.
            raise self.explain(problem, what) from None

    def explain(self, problem: psycopg.Error, what: str) -> OutsideError:
        """The exception for an error of psycopg."""
        import psycopg

        state = problem.sqlstate
        # A lost connection may also be a plain DatabaseError.
        if state is None and isinstance(problem, (psycopg.ProgrammingError, psycopg.DataError)):
            state = ""  # The statement was not sent, and will not be the next time.
        diag = problem.diag
        return self.explain_words(
            diag.message_primary or str(problem),
            what,
            state,
            (diag.message_detail, _place(diag.context)),
        )

    def explain_words(
        self,
        text: str,
        what: str,
        state: str | None = None,
        about: Iterable[str | None] = (),
    ) -> OutsideError:
        """The exception for the words of libpq or the server.

        `about`: its DETAIL and CONTEXT, which name the key, the column or the line.
        """
        words = self._blank(_last_line(text))
        if state is None:
            found = next((w for w in _ADVICE_BY_WORDS if w in words), "")
            advice = _ADVICE_BY_WORDS.get(found)
            is_lasting = any(each in words for each in _LASTING)
        else:
            advice = _ADVICE_BY_STATE.get(state)
            is_lasting = not state.startswith(_UNAVAILABLE)
        sentence = f"{self}: {what} failed: {words}"
        for more in about:
            if more:
                sentence += f"; {self._blank(_on_one_line(more))}"
        if advice:
            sentence += f"; {advice}"
        return (DatabaseRefused if is_lasting else DatabaseUnavailable)(sentence)

    def _blank(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def require_writable(connection: Connection, database: Database) -> None:
    """Raises DatabaseRefused on a standby and on a database that is set to read-only."""
    with database.explaining("a look at its mode"):
        found = connection.execute(
            "SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'"
        ).fetchone()
    assert found is not None
    is_standby, is_read_only = found
    if is_standby:
        raise DatabaseRefused(
            f"{database} is a standby, which accepts no writes: connect to the primary"
        )
    if is_read_only:
        raise DatabaseRefused(
            f"{database} is read-only (default_transaction_read_only): end that, or use another "
            "user"
        )


def _read(dsn: str) -> dict[str, Any]:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    if not dsn.strip():
        raise DatabaseRefused(f"the connection string of PostgreSQL is empty: {_HOW_TO_WRITE}")
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.Error as problem:
        found = _OPTION.search(str(problem))
        reason = f" (it has no parameter {found[1]!r})" if found else ""
        raise DatabaseRefused(
            f"the connection string of PostgreSQL cannot be read{reason}: {_HOW_TO_WRITE}"
        ) from None


def _place(context: str | None) -> str | None:
    """A CONTEXT, unless it only says which parameter of our statement it was."""
    return None if context is None or context.startswith("unnamed portal parameter") else context


def _on_one_line(text: str) -> str:
    """A DETAIL or CONTEXT, of which a row or a stack of functions can be very long."""
    line = " ".join(text.split())
    is_long = len(line) > MOST_CHARACTERS
    return f"{line[:MOST_CHARACTERS]}..." if is_long else line.rstrip(".")


def _last_line(text: str) -> str:
    """The line that counts: libpq reports every address that it tried, with a question after it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_NO_REASON)]
    chosen = [line for line in lines if "FATAL" in line or "ERROR" in line] or lines
    line = chosen[-1] if chosen else "no reason was given"
    return _BEFORE_REASON.sub("", line).rstrip(".")
