"""What Spark writes about a batch into the files of its checkpoint.

    metadata     {"id":"<the query's id>"}
    offsets/B    v1
                 {"batchWatermarkMs":..., "batchTimestampMs":..., "conf":{...}}
                 the end offsets, one line for each source; "-" for one that has none yet
                 written before batch B is planned; B begins where B-1 ends
    commits/B    written when Spark has finished the batch
    state/       if the query keeps state

`CheckpointFiles` reads the texts of these files. They come from a folder, or through a session from
any file system.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import ConfigError
from fencepost.spark.engine.private_names import FILES
from fencepost.spark.failures import SinkRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_METADATA: Final = "metadata"
_STATE: Final = "state"
_STATE_FILES: Final = ("state/0/_metadata/metadata", "state/0/_metadata/v2/0")
"""What Spark writes before the first batch about the first operator that keeps state: one of them,
by the operator's format."""

_NONE: Final = "-"
_STATE_NAMES: Final = (_STATE, "_metadata/metadata", "v2/0")
_GLOB_CHARACTERS: Final = frozenset("{}[]*?\\")


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


class CheckpointFiles:
    """The query's id and offsets, and whether it keeps state, from the texts of its files."""

    def __init__(self, texts: Mapping[str, str], batch_id: int) -> None:
        self.query_id = _query_id(texts.get(_METADATA, ""))
        self.end_offsets = read_offsets(texts.get(f"offsets/{batch_id}", ""))
        self.is_stateful = any(name in texts for name in _STATE_NAMES)
        self.start_offsets = read_offsets(texts.get(f"offsets/{batch_id - 1}", ""))


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


def newest_batch(folder: Path) -> int:
    """The batch that Spark is about to run, in a folder of this file system."""
    return max(int(f.name) for f in (folder / "offsets").iterdir() if f.name.isdecimal())


def texts_in(folder: Path, batch_id: int) -> dict[str, str]:
    """The files of a batch by their names, from a folder of this file system."""
    texts = {_STATE: ""} if (folder / _STATE).is_dir() else {}
    due = f"offsets/{batch_id}"
    for name in (_METADATA, due, f"offsets/{batch_id - 1}"):
        with suppress(FileNotFoundError):  # Spark deletes old ones.
            texts[name] = (folder / name).read_text("utf-8")
    if "\n" not in texts.get(due, "\n"):
        raise ValueError(f"{due} is not complete")
    return texts


def texts_through(session: SparkSession, checkpoint: str, batch_id: int) -> dict[str, str]:
    """The files of a batch by their names, through a session."""
    # The pattern finds those that may be missing. A single path that is a pattern would make Spark
    # log a stack trace; so the file that must be there has a path of its own.
    due = f"{checkpoint}/offsets/{batch_id}"
    names = (_METADATA, f"offsets/{batch_id - 1}", f"commits/{batch_id}", *_STATE_FILES)
    rows = (
        session.read.option("recursiveFileLookup", "true")
        .text([due, f"{checkpoint}/{{{','.join(names)}}}"], wholetext=True)
        .selectExpr("value", "input_file_name() AS file")
        .collect()
    )
    return {_name_of(row["file"]): row["value"] for row in rows}


def _name_of(path: str) -> str:
    folder, _, name = path.rpartition("/")
    parent = folder.rpartition("/")[2]
    if name == _METADATA and parent != "_metadata":
        return name  # Whatever the checkpoint's own folder is called.
    return f"{parent}/{name}"
