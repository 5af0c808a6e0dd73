"""The batch and its query on Spark Connect, read from the checkpoint.

On Connect the function of `foreachBatch` runs on the server, in a Python process that Spark starts
for every run of a query, and that has a session but no access to the engine. What the sink has to
know is in the files of the checkpoint (`checkpoint.py`), which the session can read on any file
system.

The path is the user's word, `checkpoint=`. So it is checked in every batch: the checkpoint of
another query has no such batch, or has finished it.

What the engine alone can tell stays unknown: its row counts, the options of the sources, whether
the query is being stopped. Spark stops it by ending the process.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from fencepost.spark.engine.checkpoint import CheckpointFiles, texts_through
from fencepost.spark.engine.micro_batch import MicroBatch
from fencepost.spark.engine.session import allows_barrier
from fencepost.spark.failures import SinkRefused
from fencepost.spark.sentences import sentence_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RUN_ID: Final = str(uuid.uuid4())
"""The run of the query: this process serves no other."""


class ConnectBatch(MicroBatch):
    """One batch of the query that this process serves."""

    sources_unknown = "Spark Connect does not show the options of the query's sources"
    has_engine = False

    def __init__(self, batch_id: int, files: CheckpointFiles) -> None:
        super().__init__(files.query_id, _RUN_ID, batch_id)
        self.end_offsets = files.end_offsets
        self.start_offsets = files.start_offsets
        self.is_stateful = files.is_stateful

    def is_running(self) -> bool:
        """True: the process ends with the run."""
        return True


def read_connect_batch(
    session: SparkSession, batch_id: int, checkpoint: str | None
) -> ConnectBatch:
    """Reads the batch's files; SinkRefused if they are not those of a running batch."""
    if checkpoint is None:
        raise SinkRefused(
            "on Spark Connect the sink reads the query's id and offsets from its checkpoint: pass "
            "checkpoint=, with the same path as the query's option checkpointLocation. Nothing was "
            "written"
        )
    texts = _read_texts(session, checkpoint, batch_id)
    if f"commits/{batch_id}" in texts:
        raise _not_under_way(checkpoint, batch_id)
    return ConnectBatch(batch_id, CheckpointFiles(texts, batch_id))


def check_connect(session: SparkSession) -> None:
    """Refuses what needs the engine; SinkRefused says what to change."""
    if not allows_barrier(session):
        raise SinkRefused(
            "spark.dynamicAllocation.enabled is true, and Spark does not run barrier stages then. "
            "A classic session does without them, and Spark Connect cannot: set it to false on the "
            "server. Nothing was written"
        )


def _not_under_way(checkpoint: str, batch_id: int) -> SinkRefused:
    return SinkRefused(
        f"batch {batch_id} is not under way in the checkpoint {checkpoint!r}: pass the path of the "
        "query's option checkpointLocation as checkpoint=, and the batch id that Spark passes to "
        "your function. Nothing was written"
    )


def _read_texts(session: SparkSession, checkpoint: str, batch_id: int) -> dict[str, str]:
    """The files of a batch by their names in the checkpoint."""
    try:
        return texts_through(session, checkpoint, batch_id)
    except Exception as problem:
        # If the user's function catches it, the next call must see a failure of the sink.
        if "PATH_NOT_FOUND" in str(problem):
            raise _not_under_way(checkpoint, batch_id) from None
        raise SinkRefused(
            f"batch {batch_id}: the checkpoint {checkpoint!r} could not be read "
            f"({sentence_of(problem)}). Nothing was written"
        ) from problem
