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
    from fencepost.outside.outbox.database import Outbox
    from fencepost.outside.outbox.refused import OnRefused
    from fencepost.outside.outbox.relay import OutboxRelay, RelaySettings
    from fencepost.outside.outbox.rows import ColumnNames
    from fencepost.outside.outbox.rules import Limits, Reason

__all__ = [
    "BatchMisused",
    "ColumnNames",
    "ConsumerFenced",
    "DatabaseRefused",
    "DatabaseUnavailable",
    "Limits",
    "OnRefused",
    "Outbox",
    "OutboxRelay",
    "OutsideError",
    "PositionRefused",
    "PostgresConsumer",
    "Reason",
    "RelaySettings",
]

_FAILURES: Final = "fencepost.outside.failures"
_OUTBOX: Final = "fencepost.outside.outbox"
_HOMES: Final = {
    **dict.fromkeys(__all__, _FAILURES),
    "ColumnNames": f"{_OUTBOX}.rows",
    "Limits": f"{_OUTBOX}.rules",
    "OnRefused": f"{_OUTBOX}.refused",
    "Outbox": f"{_OUTBOX}.database",
    "OutboxRelay": f"{_OUTBOX}.relay",
    "PostgresConsumer": "fencepost.outside.consumer.consumer",
    "Reason": f"{_OUTBOX}.rules",
    "RelaySettings": f"{_OUTBOX}.relay",
}
"""Where the public names are: importing this package loads neither psycopg nor a client."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fencepost.outside' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
