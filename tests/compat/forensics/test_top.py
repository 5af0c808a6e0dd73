"""`fencepost top` on Apache Kafka: what coordinators write there gives the same exact figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

from fencepost.client.blocking import connect
from tests.compat.conftest import Side
from tests.forensics.situations.open_transactions import begin, create_topic, pinned_partition
from tools.fencepost_process import ROOT


def test_a_frame_has_exact_rates_and_the_pinned_partition(apache_kafka: Side) -> None:
    servers = apache_kafka.bootstrap_servers
    is_over = threading.Event()

    def work() -> None:
        with connect(servers) as cluster:
            (place,) = create_topic(cluster, "top-busy")
            while not is_over.is_set():
                opened = begin(cluster, "top-busy", [place])
                cluster.end_txn(opened.identity, commit=True)

    thread = threading.Thread(target=work)
    with pinned_partition(servers, "top-refunds", "top-refunds-1"):
        thread.start()
        try:
            options = ("--once", "--json", "--interval", "3s", "--bootstrap-servers", servers)
            done = subprocess.run(
                [sys.executable, "-m", "fencepost", "top", *options],
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            )
        finally:
            is_over.set()
            thread.join()
    assert done.returncode == 0, done.stderr
    frame = json.loads(done.stdout)
    assert frame["committed_per_second"]["certainty"] == "exact"
    assert frame["committed_per_second"]["value"] > 0
    assert frame["commit_p50_ms"]["certainty"] == "exact"
    (mine,) = [row for row in frame["open"] if row["transactional_id"] == "top-refunds-1"]
    assert mine["state"] == "Ongoing"
    assert mine["client"] is None
    pinned = {row["partition"]: row for row in frame["pinned"]}
    assert pinned["top-refunds-0"]["held_by"] == "top-refunds-1"
    assert pinned["top-refunds-0"]["hidden"] == 2
    assert frame["notes"] == []
