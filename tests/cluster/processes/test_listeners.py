"""Several brokers behind TLS listeners: their links are theirs alone, and need no listener."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from fencepost.base.failures import ConfigError
from fencepost.cluster.parent.addresses import settings_of_brokers
from fencepost.testing.cluster import Cluster
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.raw import RawClient
from tests.broker.security.certificates import Authority, tls_config

BROKERS: Final = 2


@pytest.fixture(name="authority", scope="module")
def _authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(name="cluster", scope="module")
def _cluster(authority: Authority) -> Iterator[Cluster]:
    config = tls_config(authority, ssl_client_auth="required") | {
        "listeners": "OUTSIDE://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "OUTSIDE:SSL,INSIDE:SSL",
        "listener.name.inside.ssl.client.auth": "none",
        "transaction.state.log.num.partitions": 4,
        "offsets.topic.num.partitions": 4,
    }
    with Cluster(brokers=BROKERS, config=config) as running:
        yield running


def librdkafka(cluster: Cluster, authority: Authority) -> dict[str, str]:
    certificate = authority.client()
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SSL",
        "ssl.ca.location": authority.file,
        "ssl.certificate.location": certificate,
        "ssl.key.location": certificate,
    }


def test_transactions_over_partitions_of_several_brokers_work_over_tls(
    cluster: Cluster, authority: Authority
) -> None:
    settings = librdkafka(cluster, authority)
    for number in range(4):  # Coordinators of both brokers.
        producer = confluent_kafka.Producer({**settings, "transactional.id": f"id-{number}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(f"topic-{partition}", str(number).encode())
        producer.commit_transaction(30)
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["topic-0", "topic-1"])
    found: list[bytes | None] = []
    while len(found) < 8:
        found += [message.value() for message in consumer.consume(8, 30)]
    consumer.close()
    assert sorted(map(str, found)) == sorted(str(str(n).encode()) for n in range(4) for _ in "ab")


def test_each_listener_tells_its_own_addresses_of_all_brokers(
    cluster: Cluster, authority: Authority
) -> None:
    outside = [int(each.rpartition(":")[2]) for each in cluster.bootstrap_servers.split(",")]
    tls = authority.trusting(authority.client())
    with RawClient(f"127.0.0.1:{outside[0]}", tls=tls) as client:
        brokers = client.call(ApiKey.METADATA, 12, MetadataRequest(topics=[])).brokers
        assert sorted(each.port for each in brokers) == sorted(outside)


def test_a_broker_that_was_killed_returns_to_the_ports_of_all_its_listeners(
    cluster: Cluster, authority: Authority
) -> None:
    port = int(cluster.bootstrap_servers.split(",")[1].rpartition(":")[2])
    cluster.kill(2)
    cluster.restart(2)
    tls = authority.trusting(authority.client())
    with RawClient(f"127.0.0.1:{port}", tls=tls) as client:
        brokers = client.call(ApiKey.METADATA, 12, MetadataRequest(topics=[])).brokers
    assert len(brokers) == BROKERS


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="/proc is Linux's")
def test_no_process_of_a_cluster_listens_anywhere_else(cluster: Cluster) -> None:
    # Links are pairs of connected sockets, without a name that anybody could connect to.
    ports = listening(cluster)
    outside = {int(each.rpartition(":")[2]) for each in cluster.bootstrap_servers.split(",")}
    assert outside < ports
    assert len(ports) == 2 * BROKERS, "two listeners of each broker, and nothing else"


def listening(cluster: Cluster) -> set[int]:
    """The TCP ports on which the brokers of a cluster listen."""
    inodes = set()
    for broker in cluster.brokers:
        for entry in Path(f"/proc/{broker.pid}/fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def test_listeners_that_would_share_ports_are_refused() -> None:
    settings = {"listeners": "SSL://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9093"}
    with pytest.raises(ConfigError, match="leave more room between them"):
        settings_of_brokers(settings, [1, 2])
    found = settings_of_brokers(settings, [1])
    assert found[0]["listeners"] == settings["listeners"]


def test_each_listener_has_its_advertised_addresses() -> None:
    found = settings_of_brokers(
        {
            "listeners": "SSL://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9192",
            "advertised.listeners": "SSL://a.test:443,SSL://b.test:443,PLAINTEXT://in.test:9192",
        },
        [1, 2],
    )
    assert [each["advertised.listeners"] for each in found] == [
        "SSL://a.test:443,PLAINTEXT://in.test:9192",
        "SSL://b.test:443,PLAINTEXT://in.test:9193",
    ]
