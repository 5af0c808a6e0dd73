"""Rows that cannot be written to their topic: which they are, and what becomes of them.

A row is refused if it would be refused every time, whatever else is sent:

    no record can be made of it     UNREADABLE
    its topic does not exist        UNKNOWN_TOPIC_OR_PARTITION, after TOPIC_PATIENCE_SECONDS
    the broker refuses the record   MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD (such
                                    as no key on a compacted topic), INVALID_TIMESTAMP,
                                    INVALID_TOPIC_EXCEPTION

Everything else stops the relay and is no row's fault: a missing right (TOPIC_AUTHORIZATION_FAILED)
would be the end of every row, and a retriable error that lasts (RetriesExhausted) ends by itself.

How the row is found. A refused batch has many rows, and what is behind it is lost with it. So the
transaction is aborted, the chunk is read again from the position, and its rows are sent one by one:
what is refused then is one row, and nothing else is in flight. If a batch was too large, the
batches of its topic become smaller first.

Then the relay stops, after a commit of the rows before it, or a dead letter takes the place of the
row in the same transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from fencepost.base.errors import ErrorCode, error_name
from fencepost.client.admin import NewTopic, ResourceType
from fencepost.client.failures import BatchRefusedForSize, Refused
from fencepost.outside.failures import OutsideError
from fencepost.outside.outbox.lsn import lsn_text
from fencepost.outside.outbox.rows import RowRefused
from fencepost.records.opened import Record

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster

log = logging.getLogger(__name__)

TOPIC_PATIENCE_SECONDS: Final = 5.0
"""How long a topic may be unknown: brokers learn of a new one at different times."""
DEAD_LETTER_BYTES: Final = 16 * 1024 * 1024
"""max.message.bytes of a topic that the relay creates: what is refused is often large."""
READABLE_BYTES: Final = 100 * 1024 * 1024 - 64 * 1024
"""Of a record. A broker closes the connection of a larger request, instead of an answer, again and
again (socket.request.max.bytes; this is the default). A field of PostgreSQL has up to 1 GB."""
HEADER_PREFIX: Final = "fencepost.refused."

_MOST_SHOWN: Final = 100
"""Characters of a key in a message."""
_MOST_REASON: Final = 1_000

ROW_CODES: Final[Mapping[int, str]] = {
    ErrorCode.MESSAGE_TOO_LARGE: "it is larger than max.message.bytes of the topic",
    ErrorCode.RECORD_LIST_TOO_LARGE: "it is larger than segment.bytes of the topic",
    ErrorCode.INVALID_RECORD: "the topic does not accept it",
    ErrorCode.INVALID_TIMESTAMP: "the topic does not accept its time",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "no topic can have this name",
}
"""Errors of a broker that are about one record, and come every time."""


class OnRefused(Enum):
    """What happens to a row that is refused."""

    STOP = "stop"
    DEAD_LETTER = "dead-letter"


class RecordRefused(RowRefused):
    """A broker refuses the record."""

    @classmethod
    def of(cls, problem: Refused) -> Self:
        """The exception for an answer with one of ROW_CODES."""
        said = f" ({problem.message})" if problem.message else ""
        made = cls(f"{error_name(problem.code)}, {ROW_CODES[problem.code]}{said}")
        made.code = error_name(problem.code)
        return made

    @classmethod
    def unreadable(cls) -> Self:
        """The exception for a record that no broker would read."""
        made = cls("brokers do not read requests of more than 100 MiB (socket.request.max.bytes)")
        made.code = ErrorCode.MESSAGE_TOO_LARGE.name
        return made


class ChunkRefused(Exception):  # noqa: N818 - named for what is the case
    """A batch of the chunk was refused: send its rows one by one."""

    def __init__(self, problem: Refused | RowRefused) -> None:
        super().__init__(str(problem))
        self.too_large: tuple[str, int] | None = None
        """The topic and the size of a batch that may only have to be smaller."""
        if isinstance(problem, BatchRefusedForSize) and problem.records > 1 and problem.partition:
            self.too_large = problem.partition.topic, problem.size_bytes


class DeadLetterRefused(OutsideError):  # noqa: N818 - named for what is the case
    """Neither the row nor its dead letter can be written."""


class RefusedRow(NamedTuple):
    """A row, where it is, and why it was refused."""

    source: str
    where: str
    commit_lsn: int
    """0: a table was read."""
    problem: RowRefused
    topic: str
    """Empty if there was none to be read."""
    record: Record

    @property
    def size_bytes(self) -> int:
        """The size of what it would have brought."""
        record = self.record
        headers = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
        return len(record.key or b"") + len(record.value or b"") + headers

    def __str__(self) -> str:
        key, topic = self.record.key, f" to topic {self.topic!r}" if self.topic else ""
        shown = "no key" if key is None else f"key {key.decode('utf-8', 'replace')[:_MOST_SHOWN]!r}"
        return (
            f"{self.source}: {self.where} ({shown}, {self.size_bytes:,} bytes) cannot be "
            f"written{topic}: {self.problem}"
        )

    def dead_letters(self) -> Iterator[Record]:
        """What to write in its place: the first that fits."""
        record = self.record
        fields = {
            "code": self.problem.code,
            "reason": str(self.problem)[:_MOST_REASON],
            "topic": self.topic,
            "row": self.where,
            "lsn": lsn_text(self.commit_lsn) if self.commit_lsn else "",
            "bytes": str(self.size_bytes),
        }
        ours = tuple((HEADER_PREFIX + name, text.encode()) for name, text in fields.items() if text)
        # Now: with the time of an old commit, retention might delete it at once.
        yield Record(key=record.key, value=record.value, headers=record.headers + ours)
        omitted = HEADER_PREFIX + "omitted"
        yield Record(key=record.key, headers=(*ours, (omitted, b"value, headers")))
        yield Record(headers=(*ours, (omitted, b"key, value, headers")))


def dead_letter_topic(position_topic: str, named: str | None) -> str:
    """The name of the topic."""
    return named or f"{position_topic}-dead-letters"


def ensure_dead_letters(cluster: Cluster, topic: str) -> None:
    """Creates the topic if it is missing; OutsideError if it would not keep each letter."""
    if cluster.find_topic(topic) is None:
        configs = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "max.message.bytes": str(DEAD_LETTER_BYTES),
        }
        try:
            cluster.create_topics([NewTopic(topic, 1, configs=configs)], exist_ok=True)
        except Refused as problem:
            raise OutsideError(
                f"dead letters go to the topic {topic!r}, which does not exist, and the relay may "
                f"not create it ({problem}): have an administrator create it, or name another one "
                "with --dead-letter-topic. Nothing was written"
            ) from problem
    try:
        found = cluster.describe_configs(ResourceType.TOPIC, topic, ["cleanup.policy"])
    except Refused as problem:
        if problem.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        log.warning("grant DESCRIBE_CONFIGS on topic %r: it must not be compacted", topic)
        return
    if "compact" in (policy := found["cleanup.policy"].value or ""):
        raise OutsideError(
            f"topic {topic!r} has cleanup.policy={policy}, and would keep one dead letter of each "
            "key: set it to delete, or name another one with --dead-letter-topic. Nothing was "
            "written"
        )
