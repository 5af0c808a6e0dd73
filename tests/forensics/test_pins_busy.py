"""Goal: on partitions where transactions come and go, nothing is called hanging or stuck.

Method: producers commit and abort in a loop while both commands look again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster, connect
from fencepost.forensics.hanging import find_hanging
from fencepost.forensics.pins import find_pins
from fencepost.records.opened import Record
from tests.forensics.situations.open_transactions import create_topic

LOOKS = 6


@contextmanager
def busy(servers: str, transactional_id: str, places: list[TopicPartition]) -> Iterator[list[int]]:
    """One producer that ends transaction after transaction; yields how many it has ended."""
    stop = threading.Event()
    ended: list[int] = []

    def work() -> None:
        with connect(servers) as cluster:
            identity = cluster.init_producer_id(transactional_id)
            while not stop.is_set():
                with cluster.writer(identity) as writer:
                    for place in places:
                        writer.write_records(place, [Record(value=b"x")])
                    writer.flush()
                identity = cluster.end_txn(identity, commit=len(ended) % 2 == 0)
                ended.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield ended
    finally:
        stop.set()
        thread.join()


def test_transactions_that_come_and_go_are_never_called_hanging_or_stuck(
    servers: str, cluster: Cluster, name: str
) -> None:
    places = create_topic(cluster, name, 3)
    with busy(servers, f"{name}-1", places) as first, busy(servers, f"{name}-2", places) as second:
        for _ in range(LOOKS):
            before = len(first), len(second)
            assert {pin.kind for pin in find_pins(cluster, name).found} <= {"open"}
            assert find_hanging(cluster, name, max_timeout_ms=0).found == []
            while (len(first), len(second)) == before:
                time.sleep(0.005)
    assert find_pins(cluster, name).found == []
