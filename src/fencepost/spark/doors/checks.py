"""Refuses, before the first batch of a run, what would break the guarantee.

Each refusal says what to change. What the ledger refuses is in `transaction/sparing.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.spark.engine.hosts import check_secrets
from fencepost.spark.engine.session import allows_barrier, await_slots, is_on
from fencepost.spark.engine.stored_batch import check_connect
from fencepost.spark.engine.versions import LEAST_SPARK, numbers_of
from fencepost.spark.failures import SinkRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.spark.engine.micro_batch import MicroBatch
    from fencepost.spark.settings import SinkSettings

EXECUTOR_WAIT_SECONDS: Final = 120.0
"""How long to wait for the first executor: a cluster starts them while the query starts."""

_claims: Final[dict[tuple[str, str], MicroBatch]] = {}
"""Which query of this application uses which transactional id."""


def check_start(
    session: SparkSession, transactional_id: str, settings: SinkSettings, micro_batch: MicroBatch
) -> None:
    """Raises SinkRefused if this session or this query cannot keep the guarantee."""
    if not micro_batch.has_engine:
        check_connect(session)
    check_session(session)
    check_secrets(session, settings)
    claim_id(transactional_id, settings, micro_batch)


def check_version(session: SparkSession) -> None:
    """Refuses a Spark that is too old."""
    if numbers_of(session.version) < LEAST_SPARK:
        raise SinkRefused(f"Spark {session.version} is too old: fencepost needs Spark 3.5 or newer")


def check_session(session: SparkSession) -> None:
    """Checks the session's version and settings."""
    check_version(session)
    if is_on(session, "spark.speculation"):
        raise SinkRefused(
            "spark.speculation is true: a second copy of a task must never write. Set it to false"
        )
    if allows_barrier(session):
        check_slots(session)


def check_slots(session: SparkSession) -> None:
    """Waits for the first executor; SinkRefused if none comes."""
    if not await_slots(session, EXECUTOR_WAIT_SECONDS):
        raise SinkRefused(
            "no executor that can run a task registered within "
            f"{EXECUTOR_WAIT_SECONDS:.0f} s: the write stage needs at least one free core "
            "(spark.executor.cores, spark.task.cpus, or the number in local[N])"
        )


def claim_id(transactional_id: str, settings: SinkSettings, micro_batch: MicroBatch) -> None:
    """Refuses a second live query of this application with the same id. The fence stops others."""
    key = (",".join(map(str, settings.client.bootstrap)), transactional_id)
    holder = _claims.get(key)
    if holder is not None and holder.query_id != micro_batch.query_id and holder.is_running():
        raise SinkRefused(
            f"query {holder.query_id} of this application writes with transactional_id "
            f"{transactional_id!r}, and so does query {micro_batch.query_id}: give each query its "
            "own transactional_id"
        )
    _claims[key] = micro_batch
