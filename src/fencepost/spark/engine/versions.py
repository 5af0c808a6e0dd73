"""What Spark 3.5 does differently from 4.x, chosen by the version, here and nowhere else.

In a classic session PySpark and the engine have the same version, so no call into the JVM is needed
to know it, and none is made that can only fail. Before Spark 4.0:

- The run of a query holds the offsets of its current batch itself; later a context object does.
- The session of a run is private; the last plan that it has executed leads to it.
- Spark tells a stopped query from a failed one by other words in the text of the exception.
- Rows go to Python in batches of 10,000, however large they are: there is no limit in bytes.
- A listener gets the progress of a query as an object, not as a dict, and neither has the time of
  the whole batch.
- There are no data sources in Python: no `format("fencepost")`, neither to read nor to write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from fencepost.spark.engine.private_names import BATCH, BATCH_35, CLONES

if TYPE_CHECKING:
    from pyspark.sql.conf import RuntimeConfig

LEAST_SPARK: Final = (3, 5)
"""The oldest version that was tried."""

ARROW_BYTES: Final = 1024 * 1024
ARROW_ROWS: Final = 256
"""The limit in rows, for a Spark without one in bytes. A row may have 1 MB, and in the second stage
of the shuffle every row is a batch of records of that size."""


def numbers_of(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(part) for part in version.split(".")[:2])


@cache
def is_before_4() -> bool:
    """Whether the Spark of this process is 3.5."""
    import pyspark

    return numbers_of(pyspark.__version__) < (4, 0)


# The running query, as py4j shows it.


def current_batch(execution: Any) -> Any:
    """The engine's current batch: `batchId()`, `startOffsets()` and `endOffsets()`."""
    if not is_before_4():
        return getattr(execution, BATCH.context)()
    own = (BATCH_35.number, BATCH_35.start, BATCH_35.end)
    wanted = (BATCH.number, BATCH.start, BATCH.end)
    return SimpleNamespace(
        **{name: getattr(execution, old) for name, old in zip(wanted, own, strict=True)}
    )


def session_of_run(execution: Any) -> Any:
    """The session that the engine has cloned for a run; None if that is not known yet."""
    if not is_before_4():
        return getattr(execution, CLONES.session)()
    last = getattr(execution, BATCH_35.last)()
    return None if last is None else last.sparkSession()


def words_of_a_stop(run_id: str) -> str:
    """The words by which Spark tells the exception of a stopped query from that of a failed one."""
    if not is_before_4():
        # The exception of a cancelled job, and the job group, which is the run.
        return f"org.apache.spark.SparkException: job cancelled with its group {run_id}"
    return (
        "py4j.protocol.Py4JJavaError: An error occurred while calling the sink\n"
        ": java.lang.InterruptedException"
    )


def progress_of(progress: Any) -> Mapping[str, Any]:
    """The progress of a query as a dict, whether a listener or the query has it."""
    if not is_before_4():
        found: Mapping[str, Any] = progress
        return found
    values = progress if isinstance(progress, dict) else json.loads(progress.json)
    return values | {"batchDuration": values["durationMs"].get("triggerExecution", 0)}


# Rows on their way to Python.


def arrow_limit(conf: RuntimeConfig) -> tuple[str, str]:
    """The setting that limits how much Python gets at once, and the value for the sink."""
    if not is_before_4():
        return "spark.sql.execution.arrow.maxBytesPerBatch", str(ARROW_BYTES)
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    # Zero or less means that there is no limit.
    given = int(conf.get(name) or 0)
    return name, str(min(given, ARROW_ROWS) if given > 0 else ARROW_ROWS)
