"""What the files of a checkpoint say about the batch that Spark is about to run.

A data source gets neither the query id nor the batch id when Spark plans a write, and the source
offsets never. The checkpoint has all of them:

    metadata     {"id": query id}
    offsets/N    written before batch N is planned: the end offsets of its sources
    offsets/N-1  where it begins
    state/       if the query keeps state

Only a folder of the driver's own file system can be read here, because the process that plans a
write has no session. Of other places (object stores, HDFS) nothing is known; the tasks then supply
query id and batch id, and the ledger decides without source offsets.
"""

from __future__ import annotations

import json
import logging
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from fencepost.spark.engine.micro_batch import MicroBatch
from fencepost.spark.engine.read_topics import topics_by_id
from fencepost.spark.ledger.sources import SourceUse
from fencepost.spark.offsets import parse_all

if TYPE_CHECKING:
    from fencepost.spark.ledger.store import LedgerStore

log = logging.getLogger(__name__)

_VERSION: Final = "v1"
_NO_OFFSET: Final = "-"
"""Stands for a source that has no offset yet."""


class StoredBatch(MicroBatch):
    """A batch, as far as it is known from the checkpoint's files or from a task."""

    def __init__(
        self,
        query_id: str,
        batch_id: int,
        start: tuple[str, ...] = (),
        end: tuple[str, ...] = (),
        *,
        keeps_state: bool | None = None,
    ) -> None:
        super().__init__(query_id, "", batch_id)
        self._start = start
        self._end = end
        self._keeps_state = keeps_state

    @cached_property
    def is_stateful(self) -> bool | None:
        """Whether the checkpoint has state; None if it may come later."""
        return self._keeps_state

    def _offsets(self, which: str) -> tuple[str, ...]:
        return self._start if which == "startOffsets" else self._end


def read_checkpoint(location: str | None) -> StoredBatch | None:
    """The newest batch of a checkpoint; None if its files cannot be read from here."""
    folder = None if location is None else local_folder(location)
    if folder is None:
        return None
    try:
        query_id = str(json.loads((folder / "metadata").read_text("utf-8"))["id"])
        numbers = [int(f.name) for f in (folder / "offsets").iterdir() if f.name.isdecimal()]
        batch_id = max(numbers)
        end = _read_offsets(folder / "offsets" / str(batch_id))
        start = _read_offsets(folder / "offsets" / str(batch_id - 1)) if batch_id else ()
    except (OSError, ValueError, KeyError, TypeError) as problem:
        log.info("the checkpoint at %s is not readable: %s", location, problem)
        return None
    keeps_state = True if (folder / "state").is_dir() else None
    return StoredBatch(query_id, batch_id, start, end, keeps_state=keeps_state)


def local_folder(location: str) -> Path | None:
    """The folder that a location names, if it is one of the driver's file system."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(location) if not parts.scheme else None


def _read_offsets(path: Path) -> tuple[str, ...]:
    """The offsets of all sources, in the order in which the engine's own are compared."""
    try:
        version, _, *offsets = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return ()  # Spark deletes old ones.
    if version != _VERSION:
        log.info("the offsets in %s have version %s, which is not known here", path, version)
        return ()
    return tuple(sorted(text for text in offsets if text != _NO_OFFSET))


def find_sources(batch: StoredBatch, ledger: LedgerStore, commit: bool | None) -> SourceUse:
    """What is known of the sources: whether the transaction can commit their offsets.

    The options of the sources are not known here. Our own source stores topic ids with its offsets,
    and a topic with the same id is in the same cluster.
    """
    read = topics_by_id(batch.end_offsets, ledger)
    ended = parse_all(batch.end_offsets)
    are_ours = ended is not None and {place.topic for place in ended.offsets} <= read.names
    return SourceUse(are_ours, are_ours and commit is not False, read)
