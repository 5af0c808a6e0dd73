"""Every name of Spark that is not its public interface: what for, and what happens without it.

Another version of Spark may lack any of them. Then fencepost does something slower, or refuses the
call in one sentence; the result is never wrong. So the code never spells such a name, but looks it
up here. `tests/spark/engine/test_private_names.py` makes each of them missing in turn, by spelling
it differently.

    with SLOTS.optional():                  # warns once and goes on below if a name is missing
        return getattr(context, SLOTS.most)(...)
    return 1
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Final, Self

log = logging.getLogger(__name__)

SINCE_4: Final = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
TRIED: Final = ("3.5.9", *SINCE_4)
"""The versions of Spark that have all of them, except where another list is given."""


class Private(SimpleNamespace):
    """Names for one purpose, as attributes."""

    def __init__(
        self, purpose: str, without: str, tried: tuple[str, ...] = TRIED, **names: str
    ) -> None:
        super().__init__(**names)
        self.purpose = purpose
        self.without = without
        self.tried = tried
        self.names = names
        self.is_told = False

    def optional(self) -> Self:
        """A block that ends where a name is missing. Any other failure in it is raised."""
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> bool:
        from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

        # If Java has thrown something, or is gone, the name existed.
        if isinstance(problem, Py4JJavaError | Py4JNetworkError):
            return False
        if isinstance(problem, Py4JError | ImportError | AttributeError | TypeError):
            self.tell(problem)
            return True
        return False

    def tell(self, problem: Exception) -> None:
        """Warns, once, of what happens now."""
        if not self.is_told:
            self.is_told = True
            lost = f"this Spark does not show {self.purpose}: {self.without}"
            log.warning("fencepost: %s (%s)", lost, str(problem).partition("\n")[0])


# Attributes of PySpark's objects, and where they lead.

JVM: Final = Private(
    "the objects of the JVM",
    "see each use of them below",
    context="_jsc",
    gateway="_jvm",
    session="_jsparkSession",
    frame="_jdf",
)
SETTINGS: Final = Private(
    "its settings in Python's memory", "they are fetched, in some 25 ms", application="_conf"
)
PYTHON: Final = Private(
    "its choice of Python", "workers run PYSPARK_PYTHON or python3", executable="pythonExec"
)
COLLECT: Final = Private(
    "how many partitions it collects from at first",
    "a small batch is collected with several jobs",
    first="spark.sql.limit.initialNumPartitions",
)
COLUMNS: Final = Private(
    "where it keeps columns",
    "Spark is asked for them, so route() is refused in the function of a flow",
    tried=("4.3.0",),
    known="_cached_schema",
)
ARROW: Final = Private(
    "its types for Arrow's", "route() is refused", tried=SINCE_4, convert="from_arrow_schema"
)

# The application.

SLOTS: Final = Private(
    "how many tasks can run at once",
    "one task writes",
    manager="resourceProfileManager",
    profile="defaultResourceProfile",
    most="maxNumConcurrentTasks",
)
HOSTS: Final = Private(
    "the hosts of its executors",
    "rows go through its shuffle, and passwords that it would send in the clear are refused",
    stores="getExecutorMemoryStatus",
)
EVENTS: Final = Private(
    "whether its events have arrived",
    "Progress.stop waits for two seconds",
    bus="listenerBus",
    wait="waitUntilEmpty",
)

# The running query. `THREAD` has local properties.

THREAD: Final = Private(
    "the query of a thread",
    "the query is found by its session, format('fencepost') refuses its batches, and query.stop() "
    "may not end jobs of a thread that the user has started",
    query="sql.streaming.queryId",
    run="sql.streaming.runId",
    batch="streaming.sql.batchId",
    group="spark.jobGroup.id",
)
QUERIES: Final = Private(
    "its running queries",
    "the ledger decides without source offsets",
    shared="sharedState",
    active="activeStreamingQueries",
)
CLONES: Final = Private(
    "the session of a query",
    "calls of the sink in a thread that the user has started are refused",
    tried=SINCE_4,
    session="sparkSessionForStream",
)
BATCH: Final = Private(
    "the current batch of a query",
    "the ledger decides without source offsets, and a wrong batch id may go unnoticed",
    tried=SINCE_4,
    context="getLatestExecutionContext",
    number="batchId",
    start="startOffsets",
    end="endOffsets",
)
BATCH_35: Final = Private(
    "the same, and the session of a query, before Spark 4.0",
    "the same as above",
    tried=("3.5.9",),
    number="currentBatchId",
    start="committedOffsets",
    end="availableOffsets",
    last="lastExecution",
)
CHECKPOINT: Final = Private(
    "where a query has its checkpoint",
    "take_over is refused to a query of Spark's own kafka source if the ledger has offsets",
    tried=("4.3.0",),
    folder="resolvedCheckpointRoot",
)
PLAN: Final = Private(
    "the plan of a query",
    "it counts as one that may keep state, its source offsets stay out of the transaction, and the "
    "topics that it reads are known from the offsets of our own source only",
    running="logicalPlan",
    sources="analyzedPlan",
    execution="queryExecution",
    analyzed="analyzed",
    leaves="collectLeaves",
    streaming="isStreaming",
    node="nodeName",
    children="children",
    options="options",
    extra="extraOptions",
    entries="asCaseSensitiveMap",
)

# Files and processes: the version of the offsets in a checkpoint (`stored_batch.py`), how the
# module name of Spark's own Python processes begins, and the variable that hides tracebacks.

FILES: Final = Private("the offsets in a file", "the ledger decides without them", version="v1")
PROCESSES: Final = Private(
    "which processes are its own",
    "errors come with their traceback, and a source reads each partition in its own task",
    module="pyspark.",
    hide="SPARK_HIDE_TRACEBACK",
)
