"""A service that is asked for refunds: each request and its event in one transaction.

    FENCEPOST_POSTGRES_DSN=... python -m fencepost_examples.refunds.postgres.service --requests 1000

Requests are the settlements of `refunds.spark`, the same on every run. The service is killed, or
loses the database, at any moment. It then continues behind the last request that is in the table,
so a COMMIT without an answer is neither lost nor repeated. Now and then it rolls back, and an event
that never happened must not leave the database.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fencepost.outside import DatabaseUnavailable
from fencepost.outside.connection import Database
from fencepost_examples.refunds.postgres.tables import REQUESTS, dsn
from fencepost_examples.refunds.spark.settlements import Settlement, generate

if TYPE_CHECKING:
    import psycopg

PER_TRANSACTION: Final = 5
ROLLED_BACK_EVERY: Final = 20
"""Transactions from one that is rolled back to the next."""
RETRY_SECONDS: Final = 0.2
POLL_SECONDS: Final = 0.05


def run_service(
    database: Database,
    topic: str,
    requests: Sequence[Settlement],
    number: int,
    may_write: Callable[[int], bool] = lambda _: True,
) -> None:
    """Writes all requests, in order, through any number of lost connections.

    `may_write` is asked whether the service may have written so many.
    """
    while True:
        try:
            with database.connect() as connection, database.explaining("a request"):
                _write_rest(connection, topic, requests, number, may_write)
                return
        except DatabaseUnavailable as problem:
            print(f"service {number}: {problem}", flush=True)
            time.sleep(RETRY_SECONDS)


def _write_rest(
    connection: psycopg.Connection[Any],
    topic: str,
    requests: Sequence[Settlement],
    number: int,
    may_write: Callable[[int], bool],
) -> None:
    found = connection.execute(
        f"SELECT count(*) FROM {REQUESTS} WHERE service = %s",
        [number],
    ).fetchone()
    assert found is not None
    connection.rollback()
    for start in range(int(found[0]), len(requests), PER_TRANSACTION):
        part = requests[start : start + PER_TRANSACTION]
        while not may_write(start + len(part)):
            time.sleep(POLL_SECONDS)
        _write(connection, topic, part, number)
        if start // PER_TRANSACTION % ROLLED_BACK_EVERY == 0:
            connection.rollback()
            _write(connection, topic, part, number)
        connection.commit()


def _write(
    connection: psycopg.Connection[Any], topic: str, part: Sequence[Settlement], number: int
) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {REQUESTS} VALUES (%s, %s, %s, %s, %s, %s, %s)",
            [(*astuple(each), number) for each in part],
        )
        cursor.executemany(
            "INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES (%s, %s, %s)",
            [(topic, each.refund_id, each.as_json().decode()) for each in part],
        )
        # The relay reads inserts from the log: the table stays empty.
        cursor.execute("DELETE FROM outbox")


def main() -> None:
    """Runs one of several services."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--requests", type=int, required=True, help="of all services together")
    made.add_argument("--topic", default="settlements")
    made.add_argument("--number", type=int, default=0, help="which of the services this is")
    made.add_argument("--services", type=int, default=1)
    made.add_argument(
        "--allowed", type=Path, help="a file with the number of requests that all may have written"
    )
    options = made.parse_args()
    mine = list(generate(options.requests))[options.number :: options.services]

    def may_write(count: int) -> bool:
        allowed: Path | None = options.allowed
        return allowed is None or count * options.services <= int(allowed.read_text())

    run_service(Database(dsn()), options.topic, mine, options.number, may_write)


if __name__ == "__main__":
    main()
