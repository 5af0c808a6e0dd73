"""The cached metadata, and how it is corrected."""

from __future__ import annotations

from fencepost.client.options import Endpoint
from fencepost.client.routes import CoordinatorKey, CoordinatorKind, Routes
from fencepost.wire.forms.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.client.scripted import ONE, TWO, partition

SEED = Endpoint("seed", 1)
GROUP = CoordinatorKey(CoordinatorKind.GROUP, "g")


def metadata_with(**leaders: list[int]) -> MetadataResponse:
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=1, host=ONE.host, port=ONE.port),
            MetadataResponseBroker(node_id=2, host=TWO.host, port=TWO.port),
        ],
        controller_id=2,
        topics=[
            MetadataResponseTopic(
                name=name,
                partitions=[
                    MetadataResponsePartition(partition_index=i, leader_id=leader)
                    for i, leader in enumerate(nodes)
                ],
            )
            for name, nodes in leaders.items()
        ],
    )


def routes() -> Routes:
    known = Routes((SEED,))
    known.learn_metadata(metadata_with(t=[1, 2], u=[2]), now_ms=0)
    return known


def test_without_metadata_the_bootstrap_servers_are_used() -> None:
    assert Routes((SEED, ONE)).any_broker() == SEED


def test_known_brokers_are_preferred_to_bootstrap_servers() -> None:
    assert routes().any_broker() == ONE


def test_a_broker_that_did_not_answer_is_tried_last() -> None:
    known = routes()
    known.suspect(ONE)
    assert known.any_broker() == TWO
    known.suspect(TWO)
    assert known.any_broker() == SEED
    known.suspect(SEED)
    assert known.any_broker() == ONE
    known.trust(TWO)
    assert known.any_broker() == TWO


def test_a_suspected_broker_is_not_used_as_leader_or_coordinator() -> None:
    known = routes()
    known.learn_coordinator(GROUP, 2, TWO)
    known.suspect(TWO)
    assert known.coordinator(GROUP) is None
    assert known.controller_id == -1
    assert not known.fresh("t", 0, 1000)
    assert known.leader(partition(0, "u")) is None


def test_topics_missing_from_a_metadata_response_are_kept() -> None:
    known = routes()
    known.learn_metadata(metadata_with(u=[1]), now_ms=5)
    assert known.leader(partition(1)) == TWO
    assert known.leader(partition(0, "u")) == ONE


def test_cached_metadata_becomes_stale() -> None:
    known = routes()
    assert known.fresh("t", 999, 1000)
    assert not known.fresh("t", 1000, 1000)
    assert not known.fresh("unknown", 0, 1000)


def test_a_metadata_response_without_brokers_keeps_the_known_ones() -> None:
    known = routes()
    known.learn_metadata(MetadataResponse(), now_ms=5)
    assert known.brokers == {1: ONE, 2: TWO}


def test_a_partition_without_a_leader_has_none() -> None:
    known = routes()
    known.learn_metadata(metadata_with(t=[-1]), now_ms=5)
    assert known.leader(partition(0)) is None
    assert known.leader(partition(7)) is None
