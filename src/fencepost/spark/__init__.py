"""The Spark room: exactly-once from Kafka through Spark to Kafka, over the wire alone.

It reaches brokers only through `fencepost.client`, so it runs unchanged on fencepost and on Apache
Kafka. A micro-batch, or a batch write, is one Kafka transaction over all executors:

    door          foreachBatch (`TransactionalSink`), or `format("fencepost")` for streams and
                  batches; translates what Spark calls into steps of the transaction
      |
    transaction   fence -> decide -> lend -> write -> enter -> end; find out what is in doubt,
      |           abort what failed. One table of states, one file that runs it
      |
      +- ledger   which batch is committed, recorded in a compacted topic by the transaction that
      |           committed it; a table says: write, drain, take over or refuse
      |
      +- ways     how rows reach the only writer of their partition: collected by the driver, from
                  task to task, or through Spark's shuffle; and how they are counted

Read in this order:

- `transaction/states.py`, `transaction/transaction.py`: the life of a batch.
- `ledger/rule.py`: what a repeated, lost or strange batch means. `ledger/writer.py`: its record.
- `ways/row_writer.py`: the choice of a route; then `collected.py`, `direct.py`, `shuffled.py`, and
  `delivery.py`, which all of them end in. `accounts.py` counts.
- `doors/foreach_batch.py`, `doors/stream_format.py`, `doors/batch_write.py`; `doors/route.py`.
- `engine/`: what is known of Spark itself: settings, hosts, the running batch, its checkpoint.
  Spark's private names stand in `private_names.py` only, with what happens without them.
- `sentences.py`: what went wrong, in one sentence. `failures.py`: the exceptions.

Beside them: `postgres/`, the sink into a table of PostgreSQL; `source/`, topics as streams and
tables; `views/`, logs with the fate of each record; `progress/`, what running queries do;
`auditing/`, whether the outputs of any pipeline agree with its inputs. `data_source.py` is
`format("fencepost")`, registered through `pyspark_fencepost`.

Spark starts its Python workers with `python3` from the PATH unless PYSPARK_PYTHON is set. In a
virtual environment that is not activated that is another Python, without pyarrow and fencepost. In
that case importing this package sets PYSPARK_PYTHON to the running Python: import it before the
session is created. spark-submit and executors on other machines keep their own
(`engine/workers_python.py`).
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fencepost.spark.auditing.run import audit
    from fencepost.spark.doors.foreach_batch import TransactionalSink
    from fencepost.spark.doors.route import route
    from fencepost.spark.installation import prepare
    from fencepost.spark.postgres.sink import PostgresSink
    from fencepost.spark.progress.progress import Progress
    from fencepost.spark.sentences import reason_of

__all__ = [
    "PostgresSink",
    "Progress",
    "TransactionalSink",
    "audit",
    "prepare",
    "reason_of",
    "route",
]

_HOMES: Final = {
    "PostgresSink": "fencepost.spark.postgres.sink",
    "Progress": "fencepost.spark.progress.progress",
    "TransactionalSink": "fencepost.spark.doors.foreach_batch",
    "audit": "fencepost.spark.auditing.run",
    "prepare": "fencepost.spark.installation",
    "reason_of": "fencepost.spark.sentences",
    "route": "fencepost.spark.doors.route",
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
        try:
            return getattr(importlib.import_module(_HOMES[name]), name)
        except ModuleNotFoundError:
            from fencepost.spark.installation import require_spark

            require_spark()
            raise
    raise AttributeError(f"module 'fencepost.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
