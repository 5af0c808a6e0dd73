"""What Prometheus gets of a relay: `fencepost outbox relay --metrics HOST:PORT`.

The library's own server runs in a thread. It only reads the counts, which the relay's thread
writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fencepost.base.failures import ConfigError

if TYPE_CHECKING:
    from fencepost.outside.outbox.source import RelayCounts

COUNTERS: Final = {
    "rows": "Rows that were committed to Kafka.",
    "chunks": "Kafka transactions that were committed.",
    "dead_letters": "Rows that became dead letters (--on-refused dead-letter).",
}
GAUGES: Final = {
    "behind_bytes": "How much of the log is still to be read (mode wal).",
    "behind_rows": "How many rows of the table are still to be read (mode table).",
    "held_wal_bytes": "How much of the log the slot keeps on the disk of the database (mode wal).",
}
_PREFIX: Final = "fencepost_outbox_"


class RelayCollector:
    """Makes samples from the counts of a relay."""

    def __init__(self, counts: RelayCounts, now_ms: Callable[[], int]) -> None:
        self._counts = counts
        self._now_ms = now_ms

    def collect(self) -> Iterator[Metric]:
        """All metrics, as of now."""
        counts = self._counts
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(_PREFIX + name, text, value=getattr(counts, name))
        oldest = counts.oldest_unsent_at_ms
        yield GaugeMetricFamily(
            _PREFIX + "oldest_unsent_seconds",
            "Age of the oldest row that was read and is not in Kafka yet; 0 if there is none.",
            value=0 if oldest is None else max(0, self._now_ms() - oldest) / 1_000,
        )
        for name, text in GAUGES.items():
            # A count that does not exist in this mode is missing, and not 0.
            if (value := getattr(counts, name)) is not None:
                yield GaugeMetricFamily(_PREFIX + name, text, value=value)


def serve_metrics(counts: RelayCounts, host: str, port: int) -> int:
    """Serves them in a thread until the process ends; returns the port."""
    registry = CollectorRegistry()
    registry.register(RelayCollector(counts, lambda: time.time_ns() // 1_000_000))
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as problem:
        raise ConfigError(
            f"--metrics {host}:{port} cannot be used: {problem.strerror}"
        ) from problem
    return int(server.server_port)
