"""Which Python the tasks of the sink run with, and which processes are Spark's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fencepost.spark import PYTHON_SET_HERE
from fencepost.spark.engine.private_names import PROCESSES, PYTHON
from fencepost.spark.engine.session import is_connect, setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_started_by_spark() -> bool:
    """Whether this process is a worker or planner: Spark starts those as `python -m pyspark....`.

    Not with a daemon of the user's (`spark.python.daemon.module`): then errors keep their
    traceback, and a source reads each partition in its own task.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith(PROCESSES.module)


@contextmanager
def workers_python(session: SparkSession) -> Iterator[None]:
    """Chooses the Python of workers for the functions of the block, unless the user has chosen one.

    On this machine it is the driver's. On other machines the driver's path, which importing this
    package may have set, means nothing.
    """
    if is_connect(session):
        # The server has chosen one.
        yield
        return
    context = session.sparkContext
    is_unset = PYTHON_SET_HERE or "PYSPARK_PYTHON" not in os.environ
    if setting(session, "spark.pyspark.python") or not is_unset:
        yield
        return
    before = getattr(context, PYTHON.executable, None)
    if before is None:
        PYTHON.tell(AttributeError(PYTHON.executable))
        yield
        return
    is_local = (context.master or "").startswith("local")
    setattr(context, PYTHON.executable, sys.executable if is_local else "python3")
    try:
        yield
    finally:
        setattr(context, PYTHON.executable, before)
