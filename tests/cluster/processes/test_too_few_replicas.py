"""Too few live brokers for the transaction log: nothing is decided, and no epoch is used up."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest

import fencepost
from fencepost.client.blocking import connect

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[fencepost.Cluster]:
    with fencepost.Cluster(3, config={"transaction.state.log.num.partitions": 3}) as made:
        yield made


def producer_of(cluster: fencepost.Cluster) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": "refunds",
            "metadata.recovery.strategy": "none",
        }
    )


def epoch_of(cluster: fencepost.Cluster) -> int:
    with connect(cluster.bootstrap_servers) as client:
        (found,) = client.describe_transactions(["refunds"]).values()
    assert found is not None
    return found.producer_epoch


def test_case_89_an_init_with_too_few_replicas_times_out_and_uses_no_epoch(
    cluster: fencepost.Cluster,
) -> None:
    producer_of(cluster).init_transactions(30)
    before = epoch_of(cluster)
    owner = cluster.coordinator_of("transactional", "refunds")
    others = [broker.id for broker in cluster.brokers if broker.id != owner]
    for broker_id in others:
        cluster.kill(broker_id)
    refused = producer_of(cluster)
    with pytest.raises(confluent_kafka.KafkaException) as problem:
        refused.init_transactions(2)
    assert problem.value.args[0].retriable(), problem.value
    for broker_id in others:
        cluster.restart(broker_id)
    refused.init_transactions(30)
    assert epoch_of(cluster) == before + 1
