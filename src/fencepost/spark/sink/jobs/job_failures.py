"""Turns whatever a job raised into one sentence, and says whether another attempt can help.

Spark, py4j and the user's functions may raise anything. Spark wraps the error of a task in two
tracebacks and a plan: the log has all of it, the exception has the sentence.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.spark.failures import (
    BatchTooLarge,
    DataLost,
    ModuleMissing,
    RowRefused,
    SinkFailed,
    SinkRefused,
    SinkStopped,
    sentence_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fencepost.spark.sink.batch.micro_batch import MicroBatch

log = logging.getLogger(__name__)


def failure_of_job(
    problem: Exception, df: DataFrame, micro_batch: MicroBatch, stopped: str
) -> FencepostError:
    """The error to raise; `stopped` says what became of the batch if the query was stopped."""
    log.info("the job of batch %d failed", micro_batch.batch_id, exc_info=problem)
    text = str(problem)
    if micro_batch.is_stopping():
        # Spark searches this text to tell a stopped query from a failed one: it expects the
        # exception of a cancelled job, and the job group, which is the run.
        return SinkStopped(
            f"the query was stopped in batch {micro_batch.batch_id}, and the batch {stopped} "
            "(org.apache.spark.SparkException: job cancelled with its group "
            f"{micro_batch.run_id})"
        )
    if df.isStreaming:
        return SinkRefused(
            f"the sink received a streaming DataFrame for batch {micro_batch.batch_id}: pass "
            "the DataFrame that Spark passes to your function, or one derived from it. "
            "Nothing was written"
        )
    if (missing := ModuleMissing.found_in(text)) is not None:
        return missing
    if (too_large := BatchTooLarge.found_in(text)) is not None:
        return too_large
    if (refused := RowRefused.found_in(text)) is not None:
        return refused
    if (lost := DataLost.found_in(text)) is not None:
        return DataLost(f"batch {micro_batch.batch_id}: {lost}")
    return SinkFailed(f"batch {micro_batch.batch_id}: {sentence_of(problem)}")


def is_final(problem: Exception) -> bool:
    """Whether another attempt cannot help."""
    return isinstance(problem, (SinkRefused, SinkStopped, RowRefused, DataLost, ConfigError))
