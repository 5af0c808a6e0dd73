"""Refuses rows that go to a topic which their own query reads (`engine/read_topics.py`).

`route` sees the plan, and so the sources. It leaves what it has found in the metadata of the first
column, where the writer finds it. On Spark Connect it does not see the plan: there the offsets in
the checkpoint tell, if its files can be read.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fencepost.spark.engine.read_topics import (
    NO_TOPICS,
    ReadTopics,
    find_difference,
    frame_options,
    read_topics,
    refuse_loop,
    why_not,
)
from fencepost.spark.failures import RowRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from fencepost.client.options import ClientOptions
    from fencepost.spark.doors.options import WriteOptions

PERMISSION: Final = "the option mayWriteToSources=true"
_METADATA: Final = "fencepost.reads"


def loop_metadata(df: DataFrame, client: ClientOptions, topic: str | None) -> dict[str, str]:
    """What the writer must know of the sources of a DataFrame, as metadata of a column."""
    sources = [options for options in frame_options(df) if options is not None]
    read = read_topics(o for o in sources if find_difference(o, client) is None)
    if read == NO_TOPICS:
        return {}
    found = {"names": sorted(read.names), "patterns": read.patterns, "topic": topic}
    return {_METADATA: json.dumps(found)}


def with_reads(options: WriteOptions, schema: StructType) -> WriteOptions:
    """The options with what `route` has found; SinkRefused if its topic is one of those read."""
    text = schema.fields[0].metadata.get(_METADATA)
    if text is None or options.may_write_to_sources:
        return options
    found = json.loads(text)
    read = ReadTopics(frozenset(found["names"]), tuple(found["patterns"]))
    refuse_loop(found["topic"], read, PERMISSION)
    return replace(options, read=read)


def check_loops(options: WriteOptions, topics: Iterable[str], read: ReadTopics = NO_TOPICS) -> None:
    """RowRefused if rows went to a topic that the query reads."""
    known = options.read | read
    for topic in sorted(topics):
        if topic in known and not options.may_write_to_sources:
            raise RowRefused(
                f"a row names topic {topic!r}, {why_not(PERMISSION)}. Nothing of the batch was kept"
            )
