"""An exchange in a few words: what a person wants to know of it.

    Produce    refunds-1 7/2: payments-0 seq 4+10, payments-1 seq 0+1
    EndTxn     refunds-1 7/2 commit
    Fetch      payments-0 from 5, read_committed: 3 batches, 1.2 MB

`7/2` is producer id 7 with epoch 2, `seq 4+10` ten records from sequence 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from fencepost.records.trace import Body

MAX_NAMED: Final = 4
"""Partitions, topics or keys that are named of a longer list."""


class TopicNames:
    """Names of topic ids, learnt from the Metadata replies of a trace."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def learn(self, line: Body) -> None:
        """Notes the topics of a Metadata or CreateTopics reply."""
        if line.get("kind") != "reply" or line.get("api") not in ("Metadata", "CreateTopics"):
            return
        for topic in _dicts(line.get("body", {}).get("topics")):
            if "topic_id" in topic and "name" in topic:
                self._names[topic["topic_id"]] = topic["name"]

    def name(self, topic: Mapping[str, Any]) -> str:
        """The name of a topic in a message, or its id."""
        named = topic.get("name") or topic.get("topic") or topic.get("topic_name")
        if named:
            return str(named)
        topic_id = str(topic.get("topic_id", "?"))
        return self._names.get(topic_id, topic_id)


def moment(time_us: int) -> str:
    """The time of day, UTC."""
    return f"{datetime.fromtimestamp(time_us // 1_000_000, UTC):%H:%M:%S}.{time_us % 1_000_000:06}"


def printable(text: str) -> str:
    """Client ids and topics come from strangers: no control characters reach the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def cut(text: str, width: int) -> str:
    """Printable text of at most this width."""
    shown = printable(text)
    return shown if len(shown) <= width else shown[: max(0, width - 1)] + "…"


def in_words(request: Body, reply: Body | None, names: TopicNames) -> str:
    """Describes a request and its reply, if it has one."""
    asked = request.get("body")
    if asked is None:
        return str(request.get("reason", ""))
    answered = (reply or {}).get("body") or {}
    describe = _WORDS.get(request["api"], _other)
    return describe(asked, answered, names)


def partitions_of(request: Body, names: TopicNames) -> list[str]:
    """The partitions that a Produce, AddPartitionsToTxn or TxnOffsetCommit request names."""
    body = request.get("body") or {}
    if request.get("api") == "Produce":
        return [f"{topic}-{data.get('index', 0)}" for topic, data in _produced(body, names)]
    if request.get("api") == "AddPartitionsToTxn":
        return [
            f"{names.name(topic)}-{index}"
            for transaction in _dicts(body.get("transactions"))
            for topic in _dicts(transaction.get("topics"))
            for index in topic.get("partitions", [])
        ]
    return []


def _produce(asked: Body, answered: Body, names: TopicNames) -> str:
    parts, producer = [], ""
    for topic, data in _produced(asked, names):
        batches = data.get("records", {}).get("batches", [])
        for batch in batches:
            if "producer_id" in batch:
                producer = f"{batch['producer_id']}/{batch['producer_epoch']}"
        sequences = " ".join(
            f"seq {batch['base_sequence']}+{batch['record_count']}"
            if "base_sequence" in batch
            else f"+{batch['record_count']}"
            for batch in batches
        )
        parts.append(f"{topic}-{data.get('index', 0)} {sequences}".rstrip())
    who = _joined([asked.get("transactional_id"), producer])
    return f"{who}: {_some(parts)}" if who else _some(parts)


def _produced(asked: Body, names: TopicNames) -> Iterator[tuple[str, Body]]:
    for topic in _dicts(asked.get("topic_data")):
        for data in _dicts(topic.get("partition_data")):
            yield names.name(topic), data


def _fetch(asked: Body, answered: Body, names: TopicNames) -> str:
    wanted = [
        f"{names.name(topic)}-{partition.get('partition', 0)} from {partition['fetch_offset']}"
        for topic in _dicts(asked.get("topics"))
        for partition in _dicts(topic.get("partitions"))
    ]
    isolation = "read_committed" if asked.get("isolation_level") else "read_uncommitted"
    sizes = [
        partition["records"].get("size_bytes", 0)
        for topic in _dicts(answered.get("responses"))
        for partition in _dicts(topic.get("partitions"))
        if "records" in partition
    ]
    got = f": {sum(sizes)} bytes" if answered else ""
    return f"{_some(wanted) or 'as in its session'}, {isolation}{got}"


def _init_producer_id(asked: Body, answered: Body, names: TopicNames) -> str:
    who = asked.get("transactional_id") or "idempotent"
    timeout = f"timeout {asked.get('transaction_timeout_ms', 0)} ms"
    if "producer_id" not in answered:
        return f"{who} {timeout}"
    return f"{who} {timeout} -> {_identity(answered)}"


def _end_txn(asked: Body, answered: Body, names: TopicNames) -> str:
    outcome = "commit" if asked.get("committed") else "abort"
    said = _joined([asked.get("transactional_id"), _identity(asked), outcome])
    return f"{said} -> {_identity(answered)}" if "producer_epoch" in answered else said


def _add_partitions(asked: Body, answered: Body, names: TopicNames) -> str:
    said = []
    for transaction in _dicts(asked.get("transactions")):
        parts = [
            f"{names.name(topic)}-{index}"
            for topic in _dicts(transaction.get("topics"))
            for index in topic.get("partitions", [])
        ]
        said.append(
            f"{transaction.get('transactional_id')} {_identity(transaction)}: {_some(parts)}"
        )
    return _some(said)


def _offsets(asked: Body, answered: Body, names: TopicNames) -> str:
    parts = [
        f"{names.name(topic)}-{partition.get('partition_index', 0)}"
        f" at {partition.get('committed_offset')}"
        for topic in _dicts(asked.get("topics"))
        for partition in _dicts(topic.get("partitions"))
    ]
    who = _joined([asked.get("transactional_id"), _identity(asked), asked.get("group_id")])
    return f"{who}: {_some(parts)}" if parts else who


def _find_coordinator(asked: Body, answered: Body, names: TopicNames) -> str:
    kind = ("group", "transactional id", "share group")[min(asked.get("key_type", 0), 2)]
    coordinators = [each.get("node_id", -1) for each in _dicts(answered.get("coordinators"))]
    found = [str(node_id) for node_id in coordinators if node_id >= 0]
    said = f"{kind} {_some([str(key) for key in asked.get('coordinator_keys', [])])}"
    return f"{said} -> broker {_some(found)}" if found else said


def _markers(asked: Body, answered: Body, names: TopicNames) -> str:
    said = []
    for marker in _dicts(asked.get("markers")):
        outcome = "COMMIT" if marker.get("transaction_result") else "ABORT"
        parts = [
            f"{names.name(topic)}-{index}"
            for topic in _dicts(marker.get("topics"))
            for index in topic.get("partition_indexes", [])
        ]
        said.append(f"{_identity(marker)} {outcome}: {_some(parts)}")
    return _some(said)


def _metadata(asked: Body, answered: Body, names: TopicNames) -> str:
    if "topics" not in asked:
        return "brokers" if not answered.get("topics") else "all topics"
    return _some([names.name(topic) for topic in _dicts(asked["topics"])])


def _other(asked: Body, answered: Body, names: TopicNames) -> str:
    """The fields that name something."""
    shown = ("transactional_id", "group_id", "member_id", "mechanism", "client_software_name")
    said = [str(asked[name]) for name in shown if asked.get(name)]
    topics = asked.get("topics")
    if isinstance(topics, list):
        said.append(_some([names.name(each) for each in _dicts(topics)]))
    return " ".join(said)


_WORDS: Final[Mapping[str, Callable[[Body, Body, TopicNames], str]]] = {
    "Produce": _produce,
    "Fetch": _fetch,
    "Metadata": _metadata,
    "FindCoordinator": _find_coordinator,
    "InitProducerId": _init_producer_id,
    "AddPartitionsToTxn": _add_partitions,
    "AddOffsetsToTxn": _offsets,
    "TxnOffsetCommit": _offsets,
    "OffsetCommit": _offsets,
    "EndTxn": _end_txn,
    "WriteTxnMarkers": _markers,
}


def _identity(body: Body) -> str:
    if "producer_id" not in body or "producer_epoch" not in body:
        return ""
    return f"{body['producer_id']}/{body['producer_epoch']}"


def _dicts(values: object) -> Iterator[Body]:
    """The structs of an array, without the note that says how many were left out."""
    if isinstance(values, list):
        yield from (value for value in values if isinstance(value, dict))


def _joined(words: list[str | None]) -> str:
    return " ".join(word for word in words if word)


def _some(parts: list[str]) -> str:
    more = len(parts) - MAX_NAMED
    return ", ".join(parts[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
