"""Metrics of three brokers: each process answers for itself, and the parent knows them all."""

from __future__ import annotations

import json
import re
import time
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from tests.broker.metrics.scraped import get, moved, scrape
from tests.broker.raw import RawClient
from tests.broker.requests import create_topic
from tests.transactions.wire import WireProducer

PATIENCE_SECONDS = 60.0

URL = re.compile(r"metrics at (http://\S+)/metrics")


@pytest.fixture(scope="module")
def cluster() -> Iterator[fencepost.Cluster]:
    with fencepost.Cluster(3, metrics="127.0.0.1:0") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def parent(cluster: fencepost.Cluster) -> str:
    (url,) = (
        URL.findall(line)[0]
        for line in cluster.log_text().splitlines()
        if URL.search(line) and "[broker" not in line
    )
    return str(url)


def targets(parent: str) -> dict[str, str]:
    found = json.loads(get(f"{parent}/targets"))
    return {each["labels"]["broker"]: f"http://{each['targets'][0]}" for each in found}


def total(parent: str, name: str) -> float:
    urls = targets(parent)
    return sum(scrape(urls[broker])[name] for broker in ("1", "2", "3"))


def test_every_process_is_a_target_and_ready(parent: str) -> None:
    urls = targets(parent)
    assert sorted(urls) == ["1", "2", "3", "parent"]
    for broker, url in urls.items():
        assert get(f"{url}/healthz") == "ok\n"
        assert get(f"{url}/readyz") == "ready\n"
        if broker != "parent":
            assert any(f"broker_id={broker}}}" in name for name in scrape(url))
    found = scrape(parent)
    assert [found[f"fencepost_cluster_broker_serving{{broker={b}}}"] for b in (1, 2, 3)] == [1] * 3


def test_a_transaction_over_several_brokers_is_counted_once(
    cluster: fencepost.Cluster, parent: str
) -> None:
    addresses = cluster.bootstrap_servers.split(",")
    with RawClient(addresses[0]) as client:
        create_topic(client, "refunds", partitions=3)
    before = total(parent, "fencepost_transactions_committed_total")
    coordinator = cluster.coordinator_of("transactional", "a")
    with RawClient(addresses[coordinator - 1]) as client:
        writer = WireProducer(client, "a").initialise()
        led = next(i for i in range(3) if cluster.leader_of("refunds", i) == coordinator)
        writer.send("refunds", b"x", index=led)
        away = (led + 1) % 3
        writer.add_one("refunds", away)
        writer.commit()
    assert total(parent, "fencepost_transactions_committed_total") - before == 1
    assert total(parent, "fencepost_transactions_started_total") >= 1
    assert total(parent, "fencepost_partitions") >= 3


def coordinator_moves(parent: str, *brokers: int) -> dict[tuple[int, str], float]:
    """The moves of coordinators to some brokers, by broker and topic."""
    urls = targets(parent)
    return {
        (broker, name.partition("topic=")[2].rstrip("}")): value
        for broker in brokers
        for name, value in scrape(urls[str(broker)]).items()
        if name.startswith("fencepost_coordinator_moves_total")
    }


def await_moves(
    parent: str, before: dict[tuple[int, str], float], count: float
) -> dict[Any, float]:
    """Waits for so many moves to the brokers of `before`: a leader is known before it serves."""
    brokers = {broker for broker, _ in before}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = moved(before, coordinator_moves(parent, *brokers))
        if sum(found.values()) >= count:
            return found
        assert time.monotonic() < deadline, f"only {found}"


def test_a_coordinator_that_moves_is_counted_by_its_new_broker(
    cluster: fencepost.Cluster, parent: str
) -> None:
    first = cluster.coordinator_of("transactional", "moved")
    before = coordinator_moves(parent, 1, 2, 3)
    second = first % 3 + 1
    cluster.move_coordinator("transactional", "moved", second)
    assert await_moves(parent, before, 1) == {(second, "__transaction_state"): 1}


def test_the_coordinators_of_a_broker_that_dies_move_to_the_others(
    cluster: fencepost.Cluster, parent: str
) -> None:
    cluster.coordinator_of("transactional", "a")
    cluster.coordinator_of("group", "g")
    before = coordinator_moves(parent, 1, 3)
    coordinated = cluster.brokers[1].coordinates
    cluster.kill(2)
    found = await_moves(parent, before, coordinated)
    assert sum(found.values()) == coordinated
    assert {topic for _, topic in found} == {"__transaction_state", "__consumer_offsets"}
    cluster.restart(2)


def test_a_broker_that_dies_is_a_target_that_is_down_and_comes_back(
    cluster: fencepost.Cluster, parent: str
) -> None:
    url = targets(parent)["2"]
    cluster.kill(2)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        get(f"{url}/healthz")
    cluster.restart(2)
    assert scrape(parent)["fencepost_cluster_broker_restarts_total{broker=2}"] >= 1
    assert get(f"{targets(parent)['2']}/readyz") == "ready\n"
    assert get(f"{parent}/readyz") == "ready\n"
