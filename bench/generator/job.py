"""The parameters of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Placement = Literal["any", "local", "remote"]
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
    """What the producers send, to which broker, and for how long."""

    bootstrap: str
    mode: Mode
    producers: int = 1
    records: int = 1
    """Records per request and partition."""
    size: int = 1024
    """Bytes per record value."""
    requests: int = 1
    """Produce requests per transaction."""
    spread: int = 1
    """Partitions per request, and so per transaction."""
    window: int = 5
    """Produce requests in flight per connection: the maximum of idempotent clients."""
    topic: str = "bench"
    partitions: int = 4
    prefix: str = "bench"
    """The prefix of transactional ids."""
    backoff_ms: float = 3.0
    """The pause before a retry after CONCURRENT_TRANSACTIONS.

    Kafka's Java client waits 20 ms, which makes Apache Kafka slower with one producer and with 64
    (one short run).
    """
    seconds: float = 5.0
    warmup_seconds: float = 0.0
    max_bytes: int | None = None
    room_bytes: int = 0
    """Memory to touch and release right before the load, so that the machine has it available."""
    placement: Placement = "any"
    """In a cluster: the partitions that a producer writes to. `local` ones are led by the broker
    that coordinates its transactions, `remote` ones by others."""
    broker_pids: tuple[int, ...] = ()
    """The processes of the brokers, to measure their cost; empty if unknown."""
    count: int = 0
    """The number of ids or open transactions to create."""
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"

    @property
    def is_transactional(self) -> bool:
        return self.mode in ("tv1", "tv2")

    def transactional_id(self, number: int) -> str:
        """The transactional id of one producer."""
        return f"{self.prefix}-{number}"

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The brokers to begin with."""
        parts = (one.rpartition(":") for one in self.bootstrap.split(","))
        return tuple((host, int(port)) for host, _, port in parts)

    @property
    def is_cluster(self) -> bool:
        """Whether leaders and coordinators must be looked up."""
        return len(self.addresses) > 1
