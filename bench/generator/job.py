"""What a run is asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Mode = Literal["acks1", "idempotent", "tv1", "tv2", "ids", "open", "fetch"]
MODES: Final[Mapping[Mode, str]] = MappingProxyType(
    {
        "acks1": "requests with acks=1, no producer id",
        "idempotent": "requests with acks=all, producer id and sequence",
        "tv1": "transactions as older clients do them: AddPartitionsToTxn, Produce, EndTxn",
        "tv2": "transactions of KIP-890: Produce, EndTxn",
        "ids": "makes `count` transactional ids known",
        "open": "begins `count` transactions and leaves them open",
        "fetch": "reads the topic, again and again",
    }
)


@dataclass(frozen=True, slots=True)
class Job:
    """Who sends what, to whom, for how long."""

    bootstrap: str
    mode: Mode
    producers: int = 1
    records: int = 1
    """Records per request and partition."""
    size: int = 1024
    """Bytes of a record's value."""
    requests: int = 1
    """Produce requests per transaction."""
    spread: int = 1
    """Partitions that a request, and so a transaction, writes to."""
    window: int = 5
    """Produce requests in flight per connection, as many as idempotent clients allow."""
    topic: str = "bench"
    partitions: int = 4
    prefix: str = "bench"
    """What transactional ids begin with."""
    backoff_ms: float = 3.0
    """The pause before a request is sent again after CONCURRENT_TRANSACTIONS.

    Kafka's Java client waits 20 ms, which makes Apache Kafka look worse with one producer and with
    64 (one short look).
    """
    seconds: float = 5.0
    warmup_seconds: float = 0.0
    max_bytes: int | None = None
    room_bytes: int = 0
    """The memory that is touched and given back right before the load, so that the machine has it
    at hand."""
    broker_pid: int = 0
    """The broker's process, to tell what it costs; 0 where it is not known."""
    count: int = 0
    """How many ids or open transactions are wanted."""
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"

    @property
    def is_transactional(self) -> bool:
        return self.mode in ("tv1", "tv2")

    def transactional_id(self, number: int) -> str:
        """That of one producer."""
        return f"{self.prefix}-{number}"

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)
