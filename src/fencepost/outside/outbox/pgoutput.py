"""The messages of `pgoutput`, PostgreSQL's own plugin for logical decoding, protocol version 1.

Each message is a byte for its kind and then fields in network order; a string ends with a zero
byte. What the outbox needs:

    B  final LSN (8), commit time (8), xid (4)                    a transaction begins
    C  flags (1), commit LSN (8), end LSN (8), commit time (8)    and ends
    R  relation id (4), schema, name, replica identity (1), column count (2),
       then per column: flags (1), name, type oid (4), type modifier (4)
    I  relation id (4), 'N', column count (2), then per column its kind: n (null), u (unchanged),
       t (text) with a length (4) and that many bytes
    M  flags (1), LSN (8), prefix, length (4), content            pg_logical_emit_message

All changes of a transaction come together, after it committed; transactions come in the order of
their commits. The "final LSN" of B is the LSN of the commit record, which C calls the commit LSN;
the end LSN is the first byte after that record. A message with flag 1 is transactional; others come
outside transactions, even from those that roll back. Every length is checked against the bytes that
are left; a message never exceeds what libpq receives at once (1 GB).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from fencepost.outside.failures import OutsideError

PG_EPOCH_MS: Final = 946_684_800_000
"""2000-01-01 UTC, where PostgreSQL's times begin."""
MAX_COLUMNS: Final = 1664
"""PostgreSQL's limit for one result row."""

_BEGIN: Final = struct.Struct("!QqI")
_COMMIT: Final = struct.Struct("!BQQq")
_MESSAGE: Final = struct.Struct("!BQ")
_COLUMN: Final = struct.Struct("!II")
_UINT32: Final = struct.Struct("!I")
_TRANSACTIONAL: Final = 1
_NEW, _TEXT, _NULL, _UNCHANGED = b"Ntnu"


class PgoutputError(OutsideError):
    """The server sent something that is not pgoutput's protocol."""


class Begin(NamedTuple):
    """A transaction begins; its changes follow."""

    commit_lsn: int
    commit_ms: int


class Commit(NamedTuple):
    """All changes of the transaction have been sent."""

    commit_lsn: int
    end_lsn: int


class Column(NamedTuple):
    """A column of a table."""

    name: str
    type_oid: int


class Relation(NamedTuple):
    """A table, as the inserts that follow have it."""

    relation_id: int
    schema: str
    name: str
    columns: tuple[Column, ...]


class Insert(NamedTuple):
    """A row, with its values as text; None is null."""

    relation_id: int
    values: tuple[bytes | None, ...]


class Message(NamedTuple):
    """The content of a `pg_logical_emit_message`."""

    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


Decoded = Begin | Commit | Relation | Insert | Message


def decode(data: bytes) -> Decoded | None:
    """One message; None for a kind that says nothing about an outbox (updates, types, origins)."""
    reader = _READERS.get(data[:1])
    if reader is None:
        return None
    try:
        return reader(data)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as problem:
        kind = data[:1].decode("ascii", "replace")
        raise PgoutputError(
            f"PostgreSQL sent a pgoutput message {kind} of {len(data)} bytes that cannot be read: "
            f"{problem}"
        ) from problem


def _milliseconds(microseconds: int) -> int:
    return PG_EPOCH_MS + microseconds // 1_000


def _begin(data: bytes) -> Begin:
    commit_lsn, committed_us, _ = _BEGIN.unpack_from(data, 1)
    return Begin(commit_lsn, _milliseconds(committed_us))


def _commit(data: bytes) -> Commit:
    _, commit_lsn, end_lsn, _ = _COMMIT.unpack_from(data, 1)
    return Commit(commit_lsn, end_lsn)


def _text(data: bytes, position: int) -> tuple[str, int]:
    end = data.index(0, position)
    return data[position:end].decode("utf-8"), end + 1


def _count(data: bytes, position: int) -> int:
    count: int = struct.unpack_from("!H", data, position)[0]
    if count > MAX_COLUMNS:
        raise ValueError(f"{count} columns")
    return count


def _relation(data: bytes) -> Relation:
    (relation_id,) = _UINT32.unpack_from(data, 1)
    schema, position = _text(data, 5)
    name, position = _text(data, position)
    position += 1  # The replica identity.
    columns = []
    count = _count(data, position)
    position += 2
    for _ in range(count):
        column, position = _text(data, position + 1)
        type_oid, _ = _COLUMN.unpack_from(data, position)
        position += _COLUMN.size
        columns.append(Column(column, type_oid))
    return Relation(relation_id, schema, name, tuple(columns))


def _insert(data: bytes) -> Insert:
    (relation_id,) = _UINT32.unpack_from(data, 1)
    if data[5] != _NEW:
        raise ValueError("there is no new row in it")
    count, position = _count(data, 6), 8
    values: list[bytes | None] = []
    for _ in range(count):
        kind = data[position]
        position += 1
        if kind == _TEXT:
            start = position + 4
            position = start + _UINT32.unpack_from(data, position)[0]
            if position > len(data):
                raise ValueError(f"a column ends {position - len(data)} bytes after the message")
            values.append(data[start:position])
        elif kind in (_NULL, _UNCHANGED):
            values.append(None)
        else:
            raise ValueError(f"a column of kind {chr(kind)!r}")
    return Insert(relation_id, tuple(values))


def _message(data: bytes) -> Message:
    flags, lsn = _MESSAGE.unpack_from(data, 1)
    prefix, position = _text(data, 1 + _MESSAGE.size)
    (size,) = _UINT32.unpack_from(data, position)
    start = position + 4
    if start + size > len(data):
        raise ValueError(f"{size} bytes announced, {len(data) - start} left")
    return Message(bool(flags & _TRANSACTIONAL), lsn, prefix, data[start : start + size])


_READERS: Final[Mapping[bytes, Callable[[bytes], Decoded]]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"I": _insert,
    b"M": _message,
}
