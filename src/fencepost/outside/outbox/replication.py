"""The replication protocol: a connection over which the server streams a slot's changes.

psycopg does not speak it, but its `psycopg.pq` has libpq's functions. After START_REPLICATION the
connection is in COPY BOTH mode, and carries frames in both directions:

    w  LSN of the change (8), the same again (8), time (8), then a message of the plugin
    k  LSN up to which everything was sent (8), time (8), whether to answer at once (1)
    r  received, flushed and applied LSN (8 each), time (8), whether to answer at once (1): ours

The slot releases WAL up to "flushed", and starts there when it is read again. It is sent once for
each LSN that is confirmed, and 0 otherwise, as pg_receivewal does: the slot stays where it is then,
and a server that stops waits until everything was received, and not until it was flushed. The
server ends a connection that says nothing for wal_sender_timeout, so the status is repeated.
"""

from __future__ import annotations

import select
import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from fencepost.outside.failures import DatabaseUnavailable
from fencepost.outside.outbox.lsn import parse_lsn
from fencepost.outside.outbox.pgoutput import PG_EPOCH_MS

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

    from fencepost.outside.connection import Database

STATUS_SECONDS: Final = 5.0
"""How often the status is repeated. wal_sender_timeout is a minute by default."""

_XLOG: Final = struct.Struct("!cQQq")
_KEEPALIVE: Final = struct.Struct("!cQqB")
_STATUS: Final = struct.Struct("!cQQQqB")
IN_USE: Final = "55006"


class SystemIdentity(NamedTuple):
    """Which database system this is: IDENTIFY_SYSTEM."""

    system_id: str
    timeline: int
    lsn: int
    """Up to where its WAL is flushed."""


class Changes(NamedTuple):
    """A message of the plugin."""

    data: bytes
    lsn: int
    """Where the change is in the log."""


class Keepalive(NamedTuple):
    """Everything up to this LSN was sent."""

    lsn: int


class ReplicationStream:
    """One replication connection."""

    def __init__(self, database: Database, application_name: str = "fencepost outbox") -> None:
        """Connects; errors are one sentence each."""
        from psycopg import pq

        self._database = database
        self._received = self._confirmed = self._to_confirm = 0
        self._status_due = 0.0
        conninfo = database.conninfo(
            replication="database", client_encoding="UTF8", application_name=application_name
        )
        self._connection: PGconn = pq.PGconn.connect(conninfo.encode())
        if self._connection.status != pq.ConnStatus.OK:
            words = self._words()
            self.close()
            raise database.explain_words(words, "the replication connection")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; the slot is free soon after."""
        self._connection.finish()

    def identify(self) -> SystemIdentity:
        """Asks which database system this is."""
        found = self._execute("IDENTIFY_SYSTEM", "IDENTIFY_SYSTEM")
        texts = [(found.get_value(0, column) or b"").decode() for column in range(3)]
        return SystemIdentity(texts[0], int(texts[1]), parse_lsn(texts[2]))

    def start(self, slot: str, publication: str) -> None:
        """Starts to stream the slot, from where it is."""
        # A database may have another default, which its walsenders use too.
        self._execute("SET bytea_output = 'hex'", "a setting")
        options = f"proto_version '1', publication_names '{publication}', messages 'true'"
        command = f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0 ({options})'
        self._execute(command, f"START_REPLICATION of slot {slot!r}")

    def receive(self, timeout_seconds: float) -> Changes | Keepalive | None:
        """The next frame; None if none comes in this time."""
        if (frame := self._read()) is not None:
            return frame
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._repeat_status()
            # What has arrived may be in the buffers of TLS, where the socket does not show it.
            self._consume()
            frame = self._read()
            left = deadline - time.monotonic()
            if frame is not None or left <= 0:
                return frame
            if not select.select([self._connection.socket], [], [], left)[0]:
                return None

    def _consume(self) -> None:
        from psycopg import OperationalError

        try:
            self._connection.consume_input()
        except OperationalError as problem:
            raise self._lost(str(problem)) from None

    def _read(self) -> Changes | Keepalive | None:
        size, data = self._connection.get_copy_data(1)
        if size == 0:
            return None
        if size < 0:
            raise self._ended()
        frame = bytes(data)
        if frame[:1] == b"w":
            _, lsn, _, _ = _XLOG.unpack_from(frame)
            self._received = max(self._received, lsn)
            return Changes(frame[_XLOG.size :], lsn)
        _, lsn, _, must_answer = _KEEPALIVE.unpack_from(frame)
        self._received = max(self._received, lsn)
        if must_answer:
            self._status_due = 0.0
        return Keepalive(lsn)

    def confirm(self, lsn: int) -> None:
        """Tells the server that everything up to this LSN is no longer needed."""
        if lsn > self._confirmed:
            self._confirmed = self._to_confirm = lsn
            self._status_due = 0.0
        self._repeat_status()

    def _repeat_status(self) -> None:
        now = time.monotonic()
        if now < self._status_due:
            return
        self._status_due = now + STATUS_SECONDS
        now_us = time.time_ns() // 1_000 - PG_EPOCH_MS * 1_000
        flushed, self._to_confirm = self._to_confirm, 0
        status = _STATUS.pack(b"r", max(self._received, flushed), flushed, flushed, now_us, 0)
        from psycopg import OperationalError

        try:
            self._connection.put_copy_data(status)
            self._connection.flush()
        except OperationalError as problem:
            raise self._lost(str(problem)) from None

    def _execute(self, command: str, what: str) -> PGresult:
        from psycopg import OperationalError, pq

        try:
            result = self._connection.exec_(command.encode())
        except OperationalError as problem:
            raise self._lost(str(problem)) from None
        good = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_BOTH}
        if result.status not in good:
            raise self._refused(result, what)
        return result

    def _refused(self, result: PGresult, what: str) -> Exception:
        from psycopg import pq

        words = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
        text = words.decode("utf-8", "replace") or self._words()
        about = [
            (result.error_field(field) or b"").decode("utf-8", "replace")
            for field in (pq.DiagnosticField.MESSAGE_DETAIL, pq.DiagnosticField.CONTEXT)
        ]
        problem = self._database.explain_words(text, what, state.decode() or None, about)
        if state.decode() == IN_USE:
            return SlotInUse(str(problem))
        return problem

    def _ended(self) -> Exception:
        """Why the server ended the stream."""
        from psycopg import OperationalError

        try:
            result = self._connection.get_result()
        except OperationalError as problem:
            return self._lost(str(problem))
        if result is not None and result.error_message:
            return self._refused(result, "the stream of changes")
        return self._lost(self._words())

    def _lost(self, words: str) -> Exception:
        return self._database.explain_words(words, "the stream of changes", "08006")

    def _words(self) -> str:
        return self._connection.get_error_message() or "the connection was closed"


class SlotInUse(DatabaseUnavailable):
    """Another connection streams the slot."""
