"""The options of the writers of `format("fencepost")`: name, default, meaning.

`options.py` parses by this table, and docs/reference/spark-options.md is generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple


class Writes(Enum):
    """Which writers an option is for."""

    BOTH = "both"
    STREAM = "streams"
    BATCH = "batches"


class WriteOption(NamedTuple):
    """One option, in its proper spelling."""

    name: str
    meaning: str
    default: str | None = None
    """The value that is parsed if the option is missing; None if there is none."""
    scope: Writes = Writes.BOTH


WRITE_OPTIONS: Final = (
    WriteOption(
        "transactionalId",
        "the name of this output: one per query, never changed; required for streams. A batch "
        "write uses `txnAppId` or a random name without it",
    ),
    WriteOption(
        "topic",
        "checks that all rows go to this topic; the topic itself is an argument of `route()`",
    ),
    WriteOption("ledgerTopic", "the compacted topic that holds the ledger", "fencepost-ledger"),
    WriteOption(
        "adopt",
        "write although the ledger is missing or belongs to another query; for one start, after "
        "you have checked the topics",
        "false",
    ),
    WriteOption(
        "takeOver",
        "the id of the query (or the `txnAppId`) that this one continues",
    ),
    WriteOption(
        "allowEmptyState",
        "let a stateful query continue another one although its state is new",
        "false",
        Writes.STREAM,
    ),
    WriteOption(
        "commitSourceOffsets",
        "`auto`: commit them if the checkpoint's files prove that all sources are topics of this "
        "cluster; `true`: refuse if they do not; `false`: never",
        "auto",
        Writes.STREAM,
    ),
    WriteOption(
        "mayWriteToSources",
        "write to a topic that the query reads, although its output is then its input",
        "false",
    ),
    WriteOption(
        "txnAppId", "the name of a repeatable write; with `txnVersion`", scope=Writes.BATCH
    ),
    WriteOption(
        "txnVersion",
        "the number of this write, 0 or more: the last one again writes nothing, a lower one is "
        "refused",
        scope=Writes.BATCH,
    ),
)

SET_BY_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark adds to the options of a stream."""

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {option.name.lower(): option.name for option in WRITE_OPTIONS}
)
"""The proper spelling of each name, which is case-insensitive."""
