"""What Spark writes about a batch into the files of its checkpoint.

metadata     {"id":"<the query's id>"}
offsets/B    v1
             {"batchWatermarkMs":..., "batchTimestampMs":..., "conf":{...}}
             the end offsets, one line for each source; "-" for one that has none yet
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fencepost.base.failures import ConfigError
from fencepost.spark.failures import SinkRefused

STATE_FILES: Final = ("_metadata/metadata", "_metadata/v2/0")
"""What Spark writes before the first batch about the first operator that keeps state: one of them,
by the operator's format."""

_VERSION: Final = "v1"
_NONE: Final = "-"
_STATE_NAMES: Final = ("_metadata/metadata", "v2/0")
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
        self.query_id = _query_id(texts.get("metadata", ""))
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
    if not lines or lines[0] != _VERSION:
        return ()
    return tuple(sorted(line for line in lines[2:] if line and line != _NONE))
