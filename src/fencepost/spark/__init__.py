"""The Spark room: exactly-once from Kafka through Spark to Kafka, over the wire alone.

It runs unchanged on fencepost and on Apache Kafka, because it reaches both only through
`fencepost.client`. Three parts, each with its theory at the head of its module:

- `sink.py`: `TransactionalSink`, one Kafka transaction per micro-batch. `ledger.py` decides what to
  do with a batch, `sink/ledger/store.py` reads and writes it in the topic of
  `sink/ledger/topic.py`, and `sink/ledger/admin.py` lets people do so. `producer.py` is the
  driver's identity, `transport/packing.py` and `transport/delivery.py` are the two stages of a
  write, `transport/accounts.py` the check before the commit.
- `source/stream_reader.py`, `batch.py`: the source `format("fencepost")`, registered through the
  module `pyspark_fencepost`.
- `sink/checks.py`: what would break the promise, refused before the first batch.

Importing this package sets PYSPARK_PYTHON where nobody has (and spark-submit is not in charge): an
environment that is not activated would otherwise run its workers with another Python, without
pyarrow. Import it before the session is made. Executors on other machines keep their own Python:
see `sink/checks.py`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fencepost.spark.sink.sink import TransactionalSink

__all__ = ["TransactionalSink"]

PYTHON_SET_HERE: Final = (
    "PYSPARK_PYTHON" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ
)
"""Whether it was us who chose the workers' Python, and not the user."""

if PYTHON_SET_HERE:
    os.environ["PYSPARK_PYTHON"] = sys.executable


def __getattr__(name: str) -> object:
    if name == "TransactionalSink":
        from fencepost.spark.sink.sink import TransactionalSink

        return TransactionalSink
    raise AttributeError(f"module 'fencepost.spark' has no attribute {name!r}")
