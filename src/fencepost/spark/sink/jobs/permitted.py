"""The write job where Spark refuses barrier stages: a job whose tasks need permits.

Spark refuses barrier stages under dynamic allocation, because all tasks of such a stage must run at
once and the number of executors varies. Without a barrier, tasks may run in waves, and Spark may
run one of them again. `transport/meeting/permits.py` has the rule that lets only one try write.

The jobs of an attempt have a tag of their own. When the rule is broken, the driver cancels them by
that tag: nothing else of the query or of the application is affected.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fencepost.spark.session import most_tasks
from fencepost.spark.transport.meeting.permits import PermitServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def granting_permits(session: SparkSession, host: str, bind_host: str) -> Iterator[PermitServer]:
    """Grants permits to the tasks of the block's job, and cancels it when the attempt has failed.

    The exception is AttemptFailed then, with the reason, and not Spark's about a cancelled job.
    """
    context = session.sparkContext
    tag = f"fencepost-{secrets.token_hex(8)}"
    with PermitServer(host, bind_host, lambda: context.cancelJobsWithTag(tag)) as permits:
        context.addJobTag(tag)
        try:
            yield permits
        except Exception:
            permits.book.raise_problem()
            raise
        finally:
            context.removeJobTag(tag)


def planned_tasks(session: SparkSession) -> int:
    """How many tasks the write stage may have, though executors may not be there yet.

    As many as all executors could run at once; without a limit, as many as any other stage after
    a shuffle. Those that find no free core wait, and the transaction stays open.
    """
    found = most_tasks(session)
    if found is None:
        partitions = session.conf.get("spark.sql.shuffle.partitions", "200")
        found = int(partitions or 200)
    return found
