"""How many tasks can run at once: the sink announces it, the source packs its tasks to fit.

A barrier stage needs a free slot for each of its tasks, and its tasks are those of the source. But
a Python source plans in a separate process, without a session to ask. Driver and planner share one
thing: the folder of the application's files (`SparkFiles`), which every planner knows, and which
Spark deletes when the application ends. The sink writes the number of slots to a file there: when
it is created, in local mode, and before every batch for which the number has changed. `route` does
so too. On Spark Connect they cannot: there the sink runs in a worker, and `route` in a client.

The number affects only the choice of a route: if it is missing or outdated, rows go through Spark's
shuffle.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.spark.engine.session import concurrent_tasks, is_connect, is_local
from fencepost.spark.engine.workers_python import is_started_by_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_FILE: Final = "fencepost-slots"
_announced: Final[dict[str, int]] = {}
"""What this process has announced, by application."""


def announce_if_active() -> None:
    """Announces the slots of the active session, if there is one and they are all there."""
    if "pyspark" not in sys.modules:
        return
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    # On a cluster some executors may still be starting, and one task would read everything.
    if session is not None and not is_connect(session) and is_local(session):
        announce_slots(session, concurrent_tasks(session))


def announce_slots(session: SparkSession, slots: int) -> None:
    """Tells the sources of this application how many tasks can run at once."""
    if is_connect(session) or slots < 1:
        return
    from pyspark import SparkFiles

    application = session.sparkContext.applicationId
    if _announced.get(application) == slots:
        return
    try:
        _write(Path(SparkFiles.getRootDirectory()), slots)
    except OSError as problem:
        log.debug("the number of slots cannot be announced to the sources: %s", problem)
        return
    _announced[application] = slots


def announced_slots() -> int | None:
    """The number for the source whose planner this is; None if no sink has announced one."""
    if not is_started_by_spark():
        return None
    from pyspark import SparkFiles

    folder = Path(SparkFiles.getRootDirectory())
    # A session with its own artifacts has its own folder in it.
    for place in (folder, folder.parent):
        try:
            return max(1, int((place / _FILE).read_text()))
        except (OSError, ValueError):
            continue
    return None


def _write(folder: Path, slots: int) -> None:
    """Replaces the file at once: a planner may read it now."""
    fresh = folder / f"{_FILE}.{os.getpid()}"
    fresh.write_text(str(slots))
    fresh.replace(folder / _FILE)
