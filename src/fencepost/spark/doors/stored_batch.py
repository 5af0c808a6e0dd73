"""What the files of a checkpoint say about the batch that Spark is about to run.

A data source gets neither the query id nor the batch id when Spark plans a write, and the source
offsets never. The checkpoint has all of them (`engine/checkpoint.py`).

Only a folder of the driver's own file system can be read here, because the process that plans a
write has no session. Of other places (object stores, HDFS) nothing is known; the tasks then supply
query id and batch id, and the ledger decides without source offsets.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from fencepost.spark.engine.checkpoint import CheckpointFiles, newest_batch, texts_in
from fencepost.spark.engine.micro_batch import MicroBatch
from fencepost.spark.engine.read_topics import topics_by_id
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger.sources import SourceUse
from fencepost.spark.offsets import parse_all

if TYPE_CHECKING:
    from fencepost.spark.ledger.store import LedgerStore

log = logging.getLogger(__name__)


class StoredBatch(MicroBatch):
    """A batch, as far as it is known from the checkpoint's files."""

    def __init__(self, batch_id: int, files: CheckpointFiles) -> None:
        super().__init__(files.query_id, "", batch_id)
        self.end_offsets = files.end_offsets
        self.start_offsets = files.start_offsets
        # The first batch may be the one that creates the state.
        self.is_stateful = files.is_stateful or None


def read_checkpoint(location: str | None) -> StoredBatch | None:
    """The newest batch of a checkpoint; None if its files cannot be read from here."""
    folder = None if location is None else local_folder(location)
    if folder is None:
        return None
    try:
        batch_id = newest_batch(folder)
        return StoredBatch(batch_id, CheckpointFiles(texts_in(folder, batch_id), batch_id))
    except (OSError, ValueError, SinkRefused) as problem:
        log.info("the checkpoint at %s is not readable: %s", location, problem)
        return None


def local_folder(location: str) -> Path | None:
    """The folder that a location names, if it is one of the driver's file system."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(location) if not parts.scheme else None


def find_sources(batch: StoredBatch, ledger: LedgerStore, commit: bool | None) -> SourceUse:
    """What is known of the sources: whether the transaction can commit their offsets.

    The options of the sources are not known here. Our own source stores topic ids with its offsets,
    and a topic with the same id is in the same cluster.
    """
    read = topics_by_id(batch.end_offsets, ledger)
    ended = parse_all(batch.end_offsets)
    are_ours = ended is not None and {place.topic for place in ended.offsets} <= read.names
    return SourceUse(are_ours, are_ours and commit is not False, read)
