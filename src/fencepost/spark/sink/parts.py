"""The parts of a batch: each DataFrame with the topic that it goes to.

A topic is written by one part, because the writers of a part number its records from 0 under the
one identity of the batch. Two DataFrames for one topic have to be made one by the user (`union`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.spark.failures import SinkRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BY_COLUMN: Final = "*"
"""The name of a part whose rows name their topic: no topic can have this name."""

_HAS_A_PART: Final = (
    "which has a DataFrame of its own in this call of sink.write: a topic is written by one "
    "DataFrame of a batch, so union "
    "the two"
)
_HOLDS_THE_LEDGER: Final = "which holds the ledger: write it to another topic"


class Part(NamedTuple):
    """One DataFrame of a batch."""

    topic: str | None
    """None: the column `topic` says it."""
    df: DataFrame
    reserved: Mapping[str, str] = {}
    """Topics that rows must not name, and why: those of the other parts, and the ledger's."""

    @property
    def name(self) -> str:
        return BY_COLUMN if self.topic is None else self.topic


def frames_of(given: Any) -> tuple[Any, ...]:
    """The DataFrames that `sink.write` was given, whatever it was given."""
    return tuple(given.values()) if isinstance(given, Mapping) else (given,)


def read_parts(given: Any, sink_topic: str | None, ledger_topic: str) -> tuple[Part, ...]:
    """What `sink.write` was given; SinkRefused when it makes no sense."""
    if not isinstance(given, Mapping):
        raise SinkRefused(
            'sink.write takes DataFrames by topic, sink.write({"topic": df, ...}, batch_id), '
            f"not {type(given).__name__}; "
            "a single DataFrame is written with sink(df, batch_id). Nothing was written"
        )
    topics: dict[str | None, Any] = {}
    for key, df in given.items():
        if not (key is None or (isinstance(key, str) and key)):
            raise SinkRefused(
                f"the key {key!r} of sink.write is no topic: use the topic's name, or None for "
                "a DataFrame that goes where "
                "sink(df, batch_id) would write it. Nothing was written"
            )
        if not hasattr(df, "_jdf"):
            raise SinkRefused(
                f"sink.write got {type(df).__name__} for topic {key!r}, and needs a DataFrame "
                "of a classic session. Nothing "
                "was written"
            )
        topic = sink_topic if key is None else key
        if topic in topics:
            raise SinkRefused(
                f"sink.write got two DataFrames for topic {topic!r} (None stands for the topic "
                "of the sink): a topic is "
                "written by one DataFrame of a batch, so union the two. Nothing was written"
            )
        if topic == ledger_topic:
            raise SinkRefused(
                f"sink.write got a DataFrame for topic {topic!r}, {_HOLDS_THE_LEDGER}. Nothing "
                "was written"
            )
        topics[topic] = df
    reserved = dict.fromkeys(filter(None, topics), _HAS_A_PART) | {ledger_topic: _HOLDS_THE_LEDGER}
    return tuple(Part(topic, df, reserved if topic is None else {}) for topic, df in topics.items())
