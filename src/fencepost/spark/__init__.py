"""The Spark room: exactly-once from Kafka through Spark to Kafka, over the wire alone.

It reaches brokers only through `fencepost.client`, so it runs unchanged on fencepost and on Apache
Kafka. Each module opens with its theory of operation:

- `sink/`: `TransactionalSink`, one Kafka transaction per micro-batch. `sink/ledger/` records in the
  same transaction which batches were committed, and decides what to do with a batch.
- `format/`: `route` and the writers of `format("fencepost")`, for streams, pipelines and batches.
- `progress/`: `Progress`, what running queries do.
- `transport/`: how rows become batches, reach the writer of their partition, and are counted.
- `source/`: topics as streams and tables. `views/`: logs with the fate of each record.
  `auditing/`: `audit`, whether the outputs of any pipeline agree with its inputs.
  `data_source.py` is `format("fencepost")`, registered through the module `pyspark_fencepost`.

Spark starts its Python workers with `python3` from the PATH unless PYSPARK_PYTHON is set. In a
virtual environment that is not activated that is another Python, without pyarrow and fencepost. In
that case importing this package sets PYSPARK_PYTHON to the running Python: import it before the
session is created. spark-submit and executors on other machines keep their own
(`sink/jobs/workers_python.py`).
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fencepost.spark.auditing.run import audit
    from fencepost.spark.failures import reason_of
    from fencepost.spark.format.route import route
    from fencepost.spark.installation import prepare
    from fencepost.spark.progress.progress import Progress
    from fencepost.spark.sink.sink import TransactionalSink

__all__ = ["Progress", "TransactionalSink", "audit", "prepare", "reason_of", "route"]

_HOMES: Final = {
    "Progress": "fencepost.spark.progress.progress",
    "TransactionalSink": "fencepost.spark.sink.sink",
    "audit": "fencepost.spark.auditing.run",
    "prepare": "fencepost.spark.installation",
    "reason_of": "fencepost.spark.failures",
    "route": "fencepost.spark.format.route",
}
"""Where the public names are: importing this package loads neither Spark nor Arrow."""


def _is_python_needed() -> bool:
    """Whether Spark would start its workers with a Python that the user did not choose."""
    if "PYSPARK_PYTHON" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ:
        return False
    found = shutil.which("python3")
    if found is None or not sys.executable:
        return bool(sys.executable)
    # The folder too: the Pythons of all virtual environments may be links to the same file.
    is_here = os.path.dirname(found) == os.path.dirname(sys.executable)
    return not (is_here and os.path.samefile(found, sys.executable))


PYTHON_SET_HERE: Final = _is_python_needed()
"""Whether importing this package chose the workers' Python, and not the user."""

if PYTHON_SET_HERE:
    os.environ["PYSPARK_PYTHON"] = sys.executable


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fencepost.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
