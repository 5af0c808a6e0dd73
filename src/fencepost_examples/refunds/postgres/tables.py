"""The tables of requests and payments."""

from __future__ import annotations

import os
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.outside import Outbox
from fencepost.outside.connection import Database
from fencepost.outside.outbox.setup import init

DSN_VARIABLE: Final = "FENCEPOST_POSTGRES_DSN"
REQUESTS: Final = "refund_request"
PAYMENTS: Final = "refund_payment"
PAYING: Final = "payments"
"""The checkpoint of the query that pays."""
OUTBOX: Final = Outbox.of("refunds-outbox", table="outbox")

_SETTLEMENT: Final = (
    "refund_id text, merchant text, amount_paise bigint, reason text, actor text, day text"
)
SCHEMA: Final = (
    f"CREATE TABLE {REQUESTS} ({_SETTLEMENT}, service int)",
    # No key: what is paid twice is there twice.
    f"CREATE TABLE {PAYMENTS} (refund_id text, merchant text, amount_paise bigint)",
)


def dsn() -> str:
    """The connection string of the environment."""
    found = os.environ.get(DSN_VARIABLE)
    if not found:
        raise FencepostError(f"name the database with {DSN_VARIABLE}: dbname=shop host=localhost")
    return found


def create_tables(database: Database) -> None:
    """Creates the tables, and what the relay needs."""
    with database.connect() as connection, database.explaining("the creation of the tables"):
        for statement in SCHEMA:
            connection.execute(statement.encode())
    init(database, OUTBOX)
