"""The messages of pgoutput, byte by byte: what is read, and that damage is one sentence."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.outside.outbox.lsn import lsn_text, parse_lsn
from fencepost.outside.outbox.pgoutput import (
    MAX_COLUMNS,
    Begin,
    Column,
    Commit,
    Insert,
    Message,
    PgoutputError,
    Relation,
    decode,
)

# As PostgreSQL 18 sent them.
BEGIN = bytes.fromhex("42000000000081e06800030391aeeaa538000002f2")
COMMIT = bytes.fromhex("4300000000000081e068000000000081e09800030391aeeaa538")
RELATION = (
    b"R\x00\x00\x40\x01public\x00outbox\x00d\x00\x02"
    b"\x00id\x00\x00\x00\x00\x17\xff\xff\xff\xff\x01value\x00\x00\x00\x00\x11\xff\xff\xff\xff"
)
INSERT = b"I\x00\x00\x40\x01N\x00\x03t\x00\x00\x00\x011nt\x00\x00\x00\x04\\x79"
MESSAGE = b"M\x01\x00\x00\x00\x00\x00\x81\xe0\xd8pfx\x00\x00\x00\x00\x05hello"
ALL = (BEGIN, COMMIT, RELATION, INSERT, MESSAGE)


def test_a_transaction_is_read_as_postgresql_sends_it() -> None:
    assert decode(BEGIN) == Begin(0x81E068, 946_684_800_000 + 0x00030391AEEAA538 // 1_000)
    assert decode(COMMIT) == Commit(0x81E068, 0x81E098)
    columns = (Column("id", 23), Column("value", 17))
    assert decode(RELATION) == Relation(0x4001, "public", "outbox", columns)
    assert decode(INSERT) == Insert(0x4001, (b"1", None, b"\\x79"))
    assert decode(MESSAGE) == Message(True, 0x81E0D8, "pfx", b"hello")


def test_a_message_outside_a_transaction_says_so() -> None:
    decoded = decode(b"M\x00" + MESSAGE[2:])
    assert isinstance(decoded, Message)
    assert not decoded.is_transactional


@pytest.mark.parametrize("data", [b"", b"U\x00", b"D", b"T", b"Y\x00\x00", b"O"])
def test_other_kinds_say_nothing(data: bytes) -> None:
    assert decode(data) is None


@pytest.mark.parametrize("data", ALL)
def test_a_message_cut_anywhere_is_an_error_in_one_sentence(data: bytes) -> None:
    for size in range(1, len(data)):
        with pytest.raises(PgoutputError) as caught:
            decode(data[:size])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"I\x00\x00\x40\x01N" + struct.pack("!H", MAX_COLUMNS + 1) + b"n" * (MAX_COLUMNS + 1),
        b"I\x00\x00\x40\x01N\x00\x01t\xff\xff\xff\xff",
        b"I\x00\x00\x40\x01N\x00\x01x",
        b"I\x00\x00\x40\x01K\x00\x01n",
        b"M\x01\x00\x00\x00\x00\x00\x81\xe0\xd8pfx\x00\x7f\xff\xff\xffhello",
        b"M\x01\x00\x00\x00\x00\x00\x81\xe0\xd8\xff\x00\x00\x00\x00\x00",
    ],
)
def test_lying_counts_and_lengths_are_refused(data: bytes) -> None:
    with pytest.raises(PgoutputError):
        decode(data)


@given(kind=st.sampled_from([b"B", b"C", b"R", b"I", b"M"]), rest=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(kind: bytes, rest: bytes) -> None:
    with contextlib.suppress(PgoutputError):
        decode(kind + rest)


@given(st.integers(0, 2**64 - 1))
def test_an_lsn_survives_its_text(lsn: int) -> None:
    assert parse_lsn(lsn_text(lsn)) == lsn


def test_an_lsn_is_written_as_postgresql_writes_it() -> None:
    assert lsn_text(0x16_B374D848) == "16/B374D848"
    with pytest.raises(ValueError, match="not an LSN"):
        parse_lsn("16")
