"""The batch and its query, read from the files of the checkpoint: where the engine is out of reach.

    metadata     {"id":"<the query's id>"}
    offsets/B    v1
                 {"batchWatermarkMs":..., "batchTimestampMs":..., "conf":{...}}
                 the end offsets, one line for each source; "-" for one that has none yet
                 written before batch B is planned; B begins where B-1 ends
    commits/B    written when Spark has finished the batch
    sources/N/0  where Spark's own kafka source began, if source N is one: a
                 zero byte, "v1", and a line of offsets
    state/       if the query keeps state

On Spark Connect the function of `foreachBatch` runs on the server, in a Python process that Spark
starts for every run of a query, and that has a session but no access to the engine. The session can
read the files on any file system. The path is the user's word, `checkpoint=`. So it is checked in
every batch: the checkpoint of another query has no such batch, or has finished it. What the engine
alone can tell stays unknown: its row counts, the options of the sources, whether the query is being
stopped. Spark stops it by ending the process.

`writeStream.format("fencepost")` gets neither the query id nor the batch id when Spark plans a
write, and the source offsets never. The process that plans has no session, so it reads a folder of
the driver's own file system only. Elsewhere (object stores, HDFS) nothing is known; the tasks then
supply query id and batch id, and the ledger decides without source offsets.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from fencepost.base.failures import ConfigError
from fencepost.spark.engine.micro_batch import MicroBatch
from fencepost.spark.engine.private_names import FILES
from fencepost.spark.engine.session import allows_barrier
from fencepost.spark.engine.versions import is_before_4
from fencepost.spark.failures import SinkRefused
from fencepost.spark.offsets import parse_starts
from fencepost.spark.sentences import sentence_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_METADATA: Final = "metadata"
_STATE: Final = "state"
_STATE_FILES: Final = ("state/0/_metadata/metadata", "state/0/_metadata/v2/0")
"""What Spark writes before the first batch about the first operator that keeps state: one of them,
by the operator's format."""

_NONE: Final = "-"
_STATE_NAMES: Final = (_STATE, "_metadata/metadata", "v2/0")
_INITIAL: Final = re.compile(r"\d+/0")
_GLOB_CHARACTERS: Final = frozenset("{}[]*?\\")
_RUN_ID: Final = str(uuid.uuid4())
"""The run of the query on Spark Connect: this process serves no other."""


def checked_path(checkpoint: Any) -> str | None:
    """The path, if Spark can read single files below it."""
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, str) or not checkpoint:
        raise ConfigError("checkpoint must be the path of the query's option checkpointLocation")
    if strange := sorted(_GLOB_CHARACTERS & set(checkpoint)):
        raise ConfigError(
            f"checkpoint {checkpoint!r} has {' '.join(strange)}, and Spark reads such a path as a "
            "pattern: choose another checkpointLocation"
        )
    return checkpoint.rstrip("/") or checkpoint


class StoredBatch(MicroBatch):
    """A batch, as far as the texts of its checkpoint's files tell."""

    sources_unknown = "Spark Connect does not show the options of the query's sources"
    has_engine = False

    def __init__(self, batch_id: int, texts: Mapping[str, str], run_id: str = "") -> None:
        super().__init__(_query_id(texts.get(_METADATA, "")), run_id, batch_id)
        self.end_offsets = read_offsets(texts.get(f"offsets/{batch_id}", ""))
        self.start_offsets = read_offsets(texts.get(f"offsets/{batch_id - 1}", ""))
        self.initial_files = tuple(t for name, t in texts.items() if _INITIAL.fullmatch(name))
        if batch_id == 0:
            self.start = parse_starts(self.end_offsets, self.initial_files)
        self.is_stateful = any(name in texts for name in _STATE_NAMES)

    def is_running(self) -> bool:
        """True: the process ends with the run."""
        return True


def _query_id(text: str) -> str:
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError):
        raise SinkRefused(
            f"the file metadata of the checkpoint does not have the query's id ({text[:80]!r}): "
            "pass the path of the query's option checkpointLocation as checkpoint=. Nothing was "
            "written"
        ) from None


def read_offsets(text: str) -> tuple[str, ...]:
    """The offsets of each source, in the order of `MicroBatch`; empty if unknown."""
    lines = text.splitlines()
    if not lines or lines[0] != FILES.version:
        return ()
    return tuple(sorted(line for line in lines[2:] if line and line != _NONE))


# In a folder of this file system.


def read_checkpoint(location: str | None) -> StoredBatch | None:
    """The newest batch of a checkpoint; None if its files cannot be read from here."""
    folder = None if location is None else local_folder(location)
    if folder is None:
        return None
    try:
        batch_id = max(int(f.name) for f in (folder / "offsets").iterdir() if f.name.isdecimal())
        found = StoredBatch(batch_id, _texts_in(folder, batch_id))
    except (OSError, ValueError, SinkRefused) as problem:
        log.info("the checkpoint at %s is not readable: %s", location, problem)
        return None
    # The first batch may be the one that creates the state.
    found.is_stateful = found.is_stateful or None
    return found


def local_folder(location: str) -> Path | None:
    """The folder that a location names, if it is one of the driver's file system."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(location) if not parts.scheme else None


def _texts_in(folder: Path, batch_id: int) -> dict[str, str]:
    """The files of a batch by their names, from a folder of this file system."""
    texts = {_STATE: ""} if (folder / _STATE).is_dir() else {}
    due = f"offsets/{batch_id}"
    for name in (_METADATA, due, f"offsets/{batch_id - 1}"):
        with suppress(FileNotFoundError):  # Spark deletes old ones.
            texts[name] = (folder / name).read_text("utf-8")
    for path in (folder / "sources").glob("*/0") if batch_id == 0 else ():
        texts[f"{path.parent.name}/0"] = path.read_text("utf-8")
    if "\n" not in texts.get(due, "\n"):
        raise ValueError(f"{due} is not complete")
    return texts


# Through a session.


def read_connect_batch(session: SparkSession, batch_id: int, checkpoint: str | None) -> StoredBatch:
    """Reads the batch's files; SinkRefused if they are not those of a running batch."""
    if is_before_4():
        raise SinkRefused(
            "the sink does not run on Spark Connect before Spark 4.0: use a classic session, or a "
            "newer Spark. Nothing was written"
        )
    if checkpoint is None:
        raise SinkRefused(
            "on Spark Connect the sink reads the query's id and offsets from its checkpoint: pass "
            "checkpoint=, with the same path as the query's option checkpointLocation. Nothing was "
            "written"
        )
    texts = _read_texts(session, checkpoint, batch_id)
    if f"commits/{batch_id}" in texts:
        raise _not_under_way(checkpoint, batch_id)
    return StoredBatch(batch_id, texts, _RUN_ID)


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
        return _texts_through(session, checkpoint, batch_id)
    except Exception as problem:
        # If the user's function catches it, the next call must see a failure of the sink.
        if "PATH_NOT_FOUND" in str(problem):
            raise _not_under_way(checkpoint, batch_id) from None
        raise SinkRefused(
            f"batch {batch_id}: the checkpoint {checkpoint!r} could not be read "
            f"({sentence_in(str(problem))}). Nothing was written"
        ) from problem


def _texts_through(session: SparkSession, checkpoint: str, batch_id: int) -> dict[str, str]:
    """The files of a batch by their names, through a session."""
    # The pattern finds those that may be missing. A single path that is a pattern would make Spark
    # log a stack trace; so the file that must exist has its own path.
    due = f"{checkpoint}/offsets/{batch_id}"
    names = [_METADATA, f"offsets/{batch_id - 1}", f"commits/{batch_id}", *_STATE_FILES]
    if batch_id == 0:
        names.append("sources/*/0")
    rows = (
        session.read.option("recursiveFileLookup", "true")
        .text([due, f"{checkpoint}/{{{','.join(names)}}}"], wholetext=True)
        .selectExpr("value", "input_file_name() AS file")
        .collect()
    )
    return {_name_of(row["file"]): row["value"] for row in rows}


def readinitial_files(session: SparkSession, checkpoint: str) -> tuple[str, ...]:
    """The files in which sources keep where they began; none if they cannot be read."""
    if _GLOB_CHARACTERS & set(checkpoint):
        return ()
    try:
        rows = session.read.text(f"{checkpoint}/sources/*/0", wholetext=True).collect()
    except Exception as problem:  # noqa: BLE001 - nothing is known then, and the ledger refuses.
        log.info("where the sources of %s began is not known: %s", checkpoint, problem)
        return ()
    return tuple(row["value"] for row in rows)


def _name_of(path: str) -> str:
    folder, _, name = path.rpartition("/")
    parent = folder.rpartition("/")[2]
    if name == _METADATA and parent != "_metadata":
        return name  # Whatever the checkpoint's own folder is called.
    return f"{parent}/{name}"
