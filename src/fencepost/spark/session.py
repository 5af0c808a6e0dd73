"""Settings of a Spark session: read with as few JVM calls as possible, and never left changed.

Every JVM call is a round trip, and `SparkContext.getConf` makes one or two for each of a hundred
settings: 25 ms, where `setting` needs one call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fencepost.spark import PYTHON_SET_HERE

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


@contextmanager
def workers_python(session: SparkSession) -> Iterator[None]:
    """Chooses the Python of workers for the functions of the block, unless the user has chosen one.

    On this machine it is the driver's. On other machines the driver's path, which importing this
    package may have set, means nothing.
    """
    context = session.sparkContext
    is_unset = PYTHON_SET_HERE or "PYSPARK_PYTHON" not in os.environ
    if setting(session, "spark.pyspark.python") or not is_unset:
        yield
        return
    before = context.pythonExec
    is_local = (context.master or "").startswith("local")
    context.pythonExec = sys.executable if is_local else "python3"
    try:
        yield
    finally:
        context.pythonExec = before
