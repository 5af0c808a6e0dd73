"""The topics that a query reads from the cluster it writes to.

A query that writes to one of them reads its own output, and never ends. That happens by accident:
the rows of a source have a column `topic`, which names the topic they were read from, and a sink
created without a topic writes each row to the topic that this column names. So it is refused unless
the user says that it is intended.

What is known of a query's sources depends on where one looks. Spark's plan has their options
(`read_topics`). Where the plan cannot be seen, the offsets of this package's source still have the
ids of its topics (`topics_by_id`): a topic with the same id is the same topic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from fencepost.base.failures import FencepostError
from fencepost.client.options import KNOWN, ClientOptions, read_options
from fencepost.spark.connection import cluster_of
from fencepost.spark.engine.private_names import JVM, PLAN
from fencepost.spark.failures import SinkRefused
from fencepost.spark.ledger.topic import LEDGER_TOPIC
from fencepost.spark.offsets import parse_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fencepost.spark.engine.micro_batch import MicroBatch
    from fencepost.spark.ledger.store import LedgerStore

_IS_READ: Final = "which this query reads: its output would be its input, without end"


@dataclass(frozen=True, slots=True)
class ReadTopics:
    """Topics of one cluster, by name or by pattern."""

    names: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()

    def __contains__(self, topic: str) -> bool:
        # The source leaves the ledger out where a pattern matches it.
        return topic in self.names or (topic != LEDGER_TOPIC and self.matches(topic))

    def matches(self, topic: str) -> bool:
        """Whether a pattern matches, as the source reads it: even in part."""
        return any(re.search(pattern, topic) for pattern in self.patterns)

    def __or__(self, other: ReadTopics) -> ReadTopics:
        return ReadTopics(self.names | other.names, self.patterns + other.patterns)


NO_TOPICS: Final = ReadTopics()


def refuse_loop(topic: str | None, read: ReadTopics, permission: str) -> None:
    """SinkRefused if the query reads the topic that all rows go to."""
    if topic is not None and topic in read:
        raise SinkRefused(
            f"the rows would go to topic {topic!r}, {_IS_READ}. Name another topic; if they are "
            f"meant to go there, pass {permission}. Nothing was written"
        )


def refuse_own_ledger(topic: str, read: ReadTopics, permission: str) -> None:
    """SinkRefused if the query reads the topic of its ledger."""
    if topic in read:
        raise SinkRefused(
            f"this query reads topic {topic!r}, which holds its ledger: every batch adds a record "
            "there, so that there is always another batch. Read other topics, or name another "
            f"topic for the ledger; or pass {permission}. Nothing was written"
        )


def why_not(permission: str) -> str:
    """Why a row must not name a topic that the query reads."""
    return (
        f"{_IS_READ}. The column topic of a source is the topic that a row was read from: name a "
        "topic for all rows, or set the column to another one; if they are meant to go there, pass "
        f"{permission}"
    )


def read_topics(sources: Iterable[Mapping[str, str]]) -> ReadTopics:
    """What these sources subscribe to, from their options."""
    names: set[str] = set()
    patterns: list[str] = []
    for options in sources:
        given = {name.lower(): value for name, value in options.items()}
        names |= {name.strip() for name in given.get("subscribe", "").split(",")} - {""}
        names |= _assigned(given.get("assign", "{}"))
        patterns += _valid(given.get("subscribepattern", "").strip())
    return ReadTopics(frozenset(names), tuple(patterns))


def _assigned(text: str) -> set[str]:
    try:
        return set(json.loads(text))
    except (ValueError, TypeError):
        return set()  # Its source refuses it.


def _valid(pattern: str) -> list[str]:
    try:
        re.compile(pattern)
    except re.error:
        return []  # A Java pattern, which Spark's own source accepts.
    return [pattern] if pattern else []


def topics_by_id(jsons: Iterable[str], ledger: LedgerStore) -> ReadTopics:
    """Topics in the offsets of a batch that are the same topics of the sink's cluster, by id."""
    known: dict[str, str] = {}
    for text in jsons:
        with suppress(ValueError):  # Not a source of topics.
            known |= parse_offsets(json.loads(text)).id_texts
    now = ledger.current_ids(known.keys())
    return ReadTopics(frozenset(topic for topic in known if now.get(topic) == known[topic]))


def read_in_batch(read: ReadTopics, micro_batch: MicroBatch) -> ReadTopics:
    """The same, with the names of the topics that patterns have matched in this batch."""
    if not read.patterns:
        return read
    found = set(read.names)
    for text in micro_batch.end_offsets:
        with suppress(ValueError):  # Not a source of topics.
            found |= {place.topic for place in parse_offsets(json.loads(text)).offsets}
    names = (topic for topic in found if topic in read.names or read.matches(topic))
    return replace(read, names=frozenset(names))


def find_difference(options: Mapping[str, str], sink: ClientOptions) -> str | None:
    """Why a source is not in the sink's cluster; None if it is."""
    given = {name.lower().removeprefix("kafka."): value for name, value in options.items()}
    servers = given.get("bootstrap.servers", "")
    try:
        source = read_options(servers, {name: given[name] for name in given.keys() & KNOWN})
        if set(source.bootstrap) & set(sink.bootstrap):
            return None
        theirs = cluster_of(source).describe_cluster().cluster_id
        ours = cluster_of(sink).describe_cluster().cluster_id
    except FencepostError as problem:
        return (
            f"the cluster at {servers or 'no kafka.bootstrap.servers'} did not return its id "
            f"({problem})"
        )
    if theirs == ours:
        return None
    return (
        f"the query reads from cluster {theirs} ({servers}), and the sink writes to cluster {ours}"
    )


def frame_options(df: DataFrame) -> list[dict[str, str] | None]:
    """The same for the sources of a DataFrame; empty if nothing is known."""
    with PLAN.optional():
        plan = getattr(getattr(getattr(df, JVM.frame), PLAN.execution)(), PLAN.analyzed)()
        # Of a stream, only streaming sources read what is added.
        return list(leaf_options(plan, streaming_only=df.isStreaming))
    return []


def leaf_options(plan: Any, *, streaming_only: bool = False) -> Iterator[dict[str, str] | None]:
    """The options of each source in a logical plan of the JVM; None for one that shows none."""
    leaves = getattr(plan, PLAN.leaves)().iterator()
    while leaves.hasNext():
        leaf = leaves.next()
        if not streaming_only or getattr(leaf, PLAN.streaming)():
            yield _options_of(leaf)


def _options_of(leaf: Any) -> dict[str, str] | None:
    # Of a stream; of a table.
    for name in (PLAN.extra, PLAN.options):
        with suppress(Py4JError):
            return _entries(getattr(getattr(leaf, name)(), PLAN.entries)())
    return None


def _entries(options: Any) -> dict[str, str]:
    """A JVM map as a dict.

    Checks `hasNext`: py4j's own iteration runs until Java throws, which takes 20 ms.
    """
    found = {}
    entries = options.entrySet().iterator()
    while entries.hasNext():
        entry = entries.next()
        found[entry.getKey()] = entry.getValue()
    return found
