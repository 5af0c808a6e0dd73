"""Settings of a Spark session: read with as few JVM calls as possible, and always restored.

Every JVM call is a round trip, and `SparkContext.getConf` makes one or two for each of a hundred
settings: 25 ms, where `setting` needs one call.

A session of Spark Connect has no SparkContext. Its settings include the application's. It cannot
say how many tasks run at once, but a range has as many partitions as the application has cores.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from fencepost.spark.engine.private_names import EVENTS, JVM, SETTINGS, SLOTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

_TASK_CPUS: Final = "spark.task.cpus"


_LOCAL: Final = re.compile(r"local(?:\[(\d+)(?:,\s*\d+)?\])?")
"""A master whose name says how many tasks run at once."""

_PARALLELISM: Final = ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism")
"""Settings that give a range another number of partitions."""

_MOST_SLOTS: Final = 1024
"""The most partitions that are counted on Spark Connect."""

_LEAST_REPORTED: Final = 2
"""A cluster with fewer cores reports this many."""


def is_connect(session: SparkSession) -> bool:
    """Whether this is a session of Spark Connect, which has no access to the JVM."""
    try:
        return not hasattr(session, "sparkContext")
    except NotImplementedError:
        return True  # Spark 3.5 raises this.


def is_connect_process() -> bool:
    """Whether this process uses Spark Connect: as a client, or on the server in foreachBatch."""
    from pyspark.sql.utils import is_remote

    return is_remote()


def activate(session: SparkSession) -> None:
    """Makes the session the active one of this thread, if the thread has none.

    Spark looks for a Python data source in the active session of the thread that writes or starts
    a query, and only the thread that has created a session has one. Creating a DataFrame from rows
    is the one public call that sets it.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    if not is_connect(session) and SparkSession.getActiveSession() is None:
        session.createDataFrame([], StructType().add("value", "string"))


def setting(session: SparkSession, name: str, default: str = "") -> str:
    """One setting of the application, as it was when the context started."""
    if is_connect(session):
        return session.conf.get(name, default) or default
    conf = getattr(session.sparkContext, SETTINGS.application, None)
    if conf is None:
        SETTINGS.tell(AttributeError(SETTINGS.application))
        conf = session.sparkContext.getConf()
    return str(conf.get(name, default))


def is_on(session: SparkSession, name: str) -> bool:
    """Whether a setting that is off by default is on. Spark accepts the word in capitals too."""
    return setting(session, name, "false").strip().lower() == "true"


def allows_barrier(session: SparkSession) -> bool:
    """Whether Spark runs barrier stages: not under dynamic allocation, which local mode ignores."""
    return is_local(session) or not is_on(session, "spark.dynamicAllocation.enabled")


def is_local(session: SparkSession) -> bool:
    """Whether the tasks run in the driver's process."""
    master = setting(session, "spark.master")
    return master == "local" or master.startswith("local[")


def most_tasks(session: SparkSession) -> int | None:
    """How many tasks dynamic allocation can run at once with all executors; None if unlimited."""
    executors = setting(session, "spark.dynamicAllocation.maxExecutors")
    # A standalone worker gives an executor all of its cores, the others give it one.
    unset = "1" if setting(session, "spark.master").startswith(("yarn", "k8s:")) else ""
    cores = setting(session, "spark.executor.cores", unset)
    if not executors.isdigit() or not cores.isdigit():
        return None
    return max(1, int(executors)) * max(1, int(cores) // int(setting(session, _TASK_CPUS, "1")))


def concurrent_tasks(session: SparkSession) -> int:
    """How many tasks can run at the same time: the most that a barrier stage may have."""
    if is_connect(session):
        return max(1, _cores(session) // int(setting(session, "spark.task.cpus", "1")))
    with SLOTS.optional():
        context = java_context(session)
        profile = getattr(getattr(context, SLOTS.manager)(), SLOTS.profile)()
        return int(getattr(context, SLOTS.most)(profile))
    return 1


def java_context(session: SparkSession) -> Any:
    """The JVM's SparkContext."""
    return getattr(session.sparkContext, JVM.context).sc()


def await_events(session: SparkSession, seconds: float) -> None:
    """Waits until Spark has delivered the events that there are, for at most this long."""
    if is_connect(session):
        return
    with EVENTS.optional():
        bus = getattr(java_context(session), EVENTS.bus)()
        getattr(bus, EVENTS.wait)(int(seconds * 1_000))
        return
    time.sleep(seconds)


def await_slots(session: SparkSession, seconds: float) -> int:
    """`concurrent_tasks`, once the first executor is there; 0 if none came in this time."""
    deadline = time.monotonic() + seconds
    while not (found := concurrent_tasks(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _cores(session: SparkSession) -> int:
    """The cores of an application on Spark Connect; 1 if they are not known."""
    master = setting(session, "spark.master")
    if (local := _LOCAL.fullmatch(master)) is not None:
        return int(local[1] or 1)
    if any(setting(session, name) for name in _PARALLELISM):
        return 1
    rows = session.range(_MOST_SLOTS).selectExpr("spark_partition_id() AS task").collect()
    cores = 1 + max(row["task"] for row in rows)
    return cores if master.startswith("local[") or cores > _LEAST_REPORTED else 1


@contextmanager
def changed_setting(conf: RuntimeConfig, name: str, value: str) -> Iterator[None]:
    """Changes a setting of a session for the block. One that was not set is unset afterwards."""
    before = conf.get(name, None)
    conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            conf.unset(name)
        else:
            conf.set(name, before)
