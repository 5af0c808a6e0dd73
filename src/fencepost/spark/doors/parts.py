"""The parts of a batch: each DataFrame with its topic.

One part writes a topic, because the writers of a part number its records from 0 under the batch's
identity. The user must union two DataFrames for one topic.

`create_topics={"partitions": 4}` creates missing topics, for trying things out. It is off by
default: a misspelt name would become a topic. Only topics that the sink knows before the rows are
created: `topic=`, and the keys of `sink.write`. A topic that exists stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import ConfigError
from fencepost.base.options import parse_whole, suggest
from fencepost.client.admin import NewTopic
from fencepost.spark.connection import cluster_of
from fencepost.spark.engine.read_topics import (
    ReadTopics,
    refuse_loop,
    refuse_own_ledger,
    why_not,
)
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ways.row_writer import Part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.client.options import ClientOptions

log = logging.getLogger(__name__)

_HAS_A_PART: Final = (
    "which has its own DataFrame in this call of sink.write: one DataFrame of a batch writes a "
    "topic, so union the two"
)
_PERMISSION: Final = "may_write_to_sources=True to the sink"
HOLDS_THE_LEDGER: Final = "which holds the ledger: write it to another topic"

_KEYS: Final = ("partitions", "replication_factor", "configs")
_MOST_PARTITIONS: Final = 100_000
_MOST_REPLICAS: Final = 32_767


def without_loops(parts: tuple[Part, ...], read: ReadTopics, ledger_topic: str) -> tuple[Part, ...]:
    """Parts whose rows must not name a topic that the query reads.

    SinkRefused if a part goes to one, or if the ledger is in one.
    """
    if not read.names and not read.patterns:
        return parts
    for part in parts:
        refuse_loop(part.topic, read, _PERMISSION)
    refuse_own_ledger(ledger_topic, read, _PERMISSION)
    named = dict.fromkeys(read.names, why_not(_PERMISSION))
    return tuple(
        part._replace(reserved={**named, **part.reserved}) if part.topic is None else part
        for part in parts
    )


def frames_of(given: Any) -> tuple[Any, ...]:
    """The DataFrames in the argument of `sink.write`, of whatever type it is."""
    return tuple(given.values()) if isinstance(given, Mapping) else (given,)


def read_parts(given: Any, sink_topic: str | None, ledger_topic: str) -> tuple[Part, ...]:
    """Checks the argument of `sink.write`; SinkRefused says what is wrong."""
    if not isinstance(given, Mapping):
        raise SinkRefused(
            "sink.write expects a mapping from topics to DataFrames: it got "
            f'{type(given).__name__}. Call sink.write({{"topic": df, ...}}, batch_id), or '
            "sink(df, batch_id) for a single DataFrame. Nothing was written"
        )
    topics: dict[str | None, Any] = {}
    for key, df in given.items():
        if not (key is None or (isinstance(key, str) and key)):
            raise SinkRefused(
                f"the key {key!r} of sink.write is not a topic name: use the topic's name, or None "
                "for the DataFrame that goes where sink(df, batch_id) would write it. Nothing was "
                "written"
            )
        if not hasattr(df, "sparkSession"):
            raise SinkRefused(
                f"sink.write got {type(df).__name__} for topic {key!r}, and needs a DataFrame. "
                "Nothing was written"
            )
        topic = sink_topic if key is None else key
        if topic in topics:
            raise SinkRefused(
                f"sink.write got two DataFrames for topic {topic!r} (None means the topic of the "
                "sink): one DataFrame of a batch writes a topic, so union the two. Nothing was "
                "written"
            )
        if topic == ledger_topic:
            raise SinkRefused(
                f"sink.write got a DataFrame for topic {topic!r}, {HOLDS_THE_LEDGER}. Nothing "
                "was written"
            )
        topics[topic] = df
    reserved = dict.fromkeys(filter(None, topics), _HAS_A_PART) | {ledger_topic: HOLDS_THE_LEDGER}
    return tuple(Part(topic, df, reserved if topic is None else {}) for topic, df in topics.items())


def session_of(frames: tuple[Any, ...]) -> SparkSession:
    """The session of the first DataFrame, or the active one of this thread."""
    from pyspark.sql import SparkSession

    for frame in frames:
        if hasattr(frame, "sparkSession"):
            found: SparkSession = frame.sparkSession
            return found
    active = SparkSession.getActiveSession()
    if active is None:
        raise SinkRefused(
            "the sink was called outside of a streaming query: call it in the function "
            "that you pass to foreachBatch. Nothing was written"
        )
    return active


class TopicCreation:
    """Creates the topics of a sink, each once."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._wanted = _read_creation(given)
        self._known: set[str] = set()

    def ensure(self, options: ClientOptions, parts: Iterable[Part]) -> None:
        """Creates the topics of these parts that are missing."""
        cluster = cluster_of(options)
        for topic in (part.topic for part in parts):
            if topic is None or topic in self._known:
                continue
            if cluster.find_topic(topic) is None:
                new = NewTopic(topic, *self._wanted)
                cluster.create_topics([new], exist_ok=True)
                log.info("created topic %r with %d partitions", topic, new.partitions)
            self._known.add(topic)


def _read_creation(given: Any) -> tuple[int, int, Mapping[str, str]]:
    if not isinstance(given, Mapping) or "partitions" not in given:
        raise ConfigError(
            f"create_topics is {given!r}, and must be a mapping with the number of partitions, "
            'for instance {"partitions": 4}'
        )
    for key in given:
        if key not in _KEYS:
            raise ConfigError(f"{key!r} is not a key of create_topics{suggest(str(key), _KEYS)}")
    configs = given.get("configs") or {}
    if not isinstance(configs, Mapping):
        raise ConfigError(f"configs of create_topics is {configs!r}, and must be a mapping")
    return (
        parse_whole("partitions", given["partitions"], least=1, most=_MOST_PARTITIONS),
        _replicas(given.get("replication_factor")),
        {str(name): str(value) for name, value in configs.items()},
    )


def _replicas(given: Any) -> int:
    if given is None:
        return NewTopic("").replication_factor
    return parse_whole("replication_factor", given, least=1, most=_MOST_REPLICAS)
