"""What would break the promise, looked for before the first batch of a run.

Each refusal says what to change. What cannot be seen from here (a second driver elsewhere) is left to the epoch.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from fencepost.spark import PYTHON_SET_HERE
from fencepost.spark.failures import SinkRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.spark.moment import Moment
    from fencepost.spark.settings import SinkSettings

LEAST_SPARK: Final = (4, 2)

_claims: Final[dict[tuple[str, str], Moment]] = {}
"""Which query of this application uses which transactional id."""


def check_start(
    session: SparkSession, transactional_id: str, settings: SinkSettings, moment: Moment
) -> None:
    """SinkRefused when this session or this query cannot keep the promise."""
    check_session(session)
    claim_id(transactional_id, settings, moment)


def check_session(session: SparkSession) -> None:
    """The session's version, settings and Python."""
    version = tuple(int(part) for part in session.version.split(".")[:2])
    if version < LEAST_SPARK:
        raise SinkRefused(f"Spark {session.version} is too old: fencepost needs Spark 4.2 or newer")
    conf = session.sparkContext.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise SinkRefused(
            "spark.dynamicAllocation.enabled is true, and Spark does not run barrier stages then: set it to false"
        )
    if conf.get("spark.speculation", "false") == "true":
        raise SinkRefused(
            "spark.speculation is true: a second copy of a task must never write. Set it to false"
        )
    _check_slots(session)
    _use_this_python(session)


def _check_slots(session: SparkSession) -> None:
    from fencepost.spark.job import concurrent_tasks

    if concurrent_tasks(session) < 1:
        raise SinkRefused(
            "no executor can run a task: the write stage needs at least one free core (spark.executor.cores, "
            "spark.task.cpus, or the number in local[N])"
        )


def _use_this_python(session: SparkSession) -> None:
    """Workers on this machine run the Python that the driver runs, unless the user has chosen one.

    Those on other machines do not: the path of our interpreter (which importing this package may have set) means
    nothing there.
    """
    context = session.sparkContext
    is_unset = PYTHON_SET_HERE or "PYSPARK_PYTHON" not in os.environ
    if context.getConf().get("spark.pyspark.python") or not is_unset:
        return
    is_local = (context.master or "").startswith("local")
    context.pythonExec = sys.executable if is_local else "python3"


def claim_id(transactional_id: str, settings: SinkSettings, moment: Moment) -> None:
    """Refuses a second live query of this application with the same id; those elsewhere are fenced."""
    key = (",".join(map(str, settings.client.bootstrap)), transactional_id)
    holder = _claims.get(key)
    if holder is not None and holder.query_id != moment.query_id and holder.is_running():
        raise SinkRefused(
            f"query {holder.query_id} of this application writes with transactional_id {transactional_id!r}, and so "
            f"does query {moment.query_id}: give each query its own transactional_id"
        )
    _claims[key] = moment
