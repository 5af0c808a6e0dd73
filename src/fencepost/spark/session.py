"""Settings of a Spark session: read with as few JVM calls as possible, and never left changed.

Every JVM call is a round trip, and `SparkContext.getConf` makes one or two for each of a hundred
settings: 25 ms, where `setting` needs one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig


def setting(session: SparkSession, name: str, default: str = "") -> str:
    """One setting of the application, as it was when the context started."""
    return session.sparkContext._conf.get(name, default)  # noqa: SLF001


def is_on(session: SparkSession, name: str) -> bool:
    """Whether a setting that is off by default is on. Spark accepts the word in capitals too."""
    return setting(session, name, "false").strip().lower() == "true"


def concurrent_tasks(session: SparkSession) -> int:
    """How many tasks can run at the same time: the most that a barrier stage may have."""
    context: Any = session.sparkContext._jsc.sc()  # noqa: SLF001
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


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
