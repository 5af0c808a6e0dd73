"""Positions in the write-ahead log (LSN): integers here, `16/B374D848` in SQL and for people."""

from __future__ import annotations


def lsn_text(lsn: int) -> str:
    """The LSN as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The LSN of its text; ValueError if it is none."""
    high, separator, low = text.partition("/")
    if not separator:
        raise ValueError(f"{text!r} is not an LSN")
    return (int(high, 16) << 32) + int(low, 16)
