"""What Prometheus gets of a relay."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from fencepost.base.failures import ConfigError
from fencepost.outside.outbox.metrics import RelayCollector, serve_metrics
from fencepost.outside.outbox.source import RelayCounts


def test_every_count_is_a_metric_with_the_age_of_the_oldest_row() -> None:
    counts = RelayCounts(7, 2, 1, 250, None, 5_000, 900)
    registry = CollectorRegistry()
    registry.register(RelayCollector(counts, lambda: 6_500))
    lines = generate_latest(registry).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "fencepost_outbox_rows_total 7.0",
        "fencepost_outbox_chunks_total 2.0",
        "fencepost_outbox_dead_letters_total 1.0",
        "fencepost_outbox_oldest_unsent_seconds 1.5",
        "fencepost_outbox_behind_bytes 250.0",
        "fencepost_outbox_held_wal_bytes 900.0",
    ]
    counts.behind_bytes = counts.held_wal_bytes = counts.oldest_unsent_at_ms = None
    counts.behind_rows = 3
    text = generate_latest(registry)
    assert b"oldest_unsent_seconds 0.0" in text
    assert b"behind_rows 3.0" in text
    assert b"bytes" not in text, "there is no log to be behind in mode table"


def test_they_are_served_over_http_and_a_taken_port_is_named() -> None:
    port = serve_metrics(RelayCounts(rows=3), "127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"fencepost_outbox_rows_total 3.0" in answer.read()
    with pytest.raises(ConfigError, match=f"127.0.0.1:{port} cannot be used"):
        serve_metrics(RelayCounts(), "127.0.0.1", port)
