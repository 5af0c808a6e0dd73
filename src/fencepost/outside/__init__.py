"""Past Kafka's edge: exactly once out of PostgreSQL and into it.

Theory of operation. Kafka's transactions cover what is in Kafka. PostgreSQL has transactions too,
but nothing commits both at one moment. So one side decides, and the other side can be asked what
was decided:

    out of PostgreSQL    Kafka decides. The position in the database's log is a record of the same
                         Kafka transaction as the rows (outbox/). A row is sent again if and only if
                         that transaction did not commit.
    into PostgreSQL      the database decides. The position in Kafka is a row of the same database
                         transaction as the effect.

Three things can go wrong besides a crash, and each one is noticed before anything is written:

- *A predecessor is still alive.* It is fenced: in Kafka by its transactional id, in the database by
  a number that only grows.
- *The database is another one*, or an older state of the same one. Each side therefore keeps what
  it knows of the other: the position names the database, and the database has the number of the
  last chunk.
- *The caller's database answers with an error.* `connection.py` turns it into one sentence with the
  next step, without passwords.

PostgreSQL is reached through psycopg 3, which comes with the extra `postgres`. This room knows
`client` and what is below it, and neither Spark nor the broker's rooms.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fencepost.outside.consumer.consumer import PostgresConsumer
    from fencepost.outside.failures import (
        BatchMisused,
        ConsumerFenced,
        DatabaseRefused,
        DatabaseUnavailable,
        OutsideError,
        PositionRefused,
    )

__all__ = [
    "BatchMisused",
    "ConsumerFenced",
    "DatabaseRefused",
    "DatabaseUnavailable",
    "OutsideError",
    "PositionRefused",
    "PostgresConsumer",
]

_FAILURES: Final = "fencepost.outside.failures"
_HOMES: Final = {
    **dict.fromkeys(__all__, _FAILURES),
    "PostgresConsumer": "fencepost.outside.consumer.consumer",
}
"""Where the public names are: importing this package loads neither psycopg nor a client."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fencepost.outside' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
