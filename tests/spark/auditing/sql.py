"""Statements of the tests of tables."""

from __future__ import annotations

import psycopg


def run(dsn: str, *statements: str) -> None:
    """Runs each in a transaction of its own."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
