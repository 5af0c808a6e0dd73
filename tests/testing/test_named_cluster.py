"""The words of the test kit through its proxy, in front of a broker of our own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

import fencepost
from fencepost.base.failures import FencepostError, WireError
from fencepost.testing.faults import Request
from fencepost.testing.named_cluster import NamedCluster
from fencepost.wire.apis import API, BY_NUMBER, ApiKey
from fencepost.wire.forms.api_versions import ApiVersionsRequest
from fencepost.wire.forms.create_topics import CreatableTopic, CreateTopicsRequest
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.heartbeat import HeartbeatRequest
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.raw import PATIENCE_SECONDS, RawClient
from tests.broker.requests import batch_of, produce_request

HEARTBEAT = HeartbeatRequest(group_id="g", member_id="m")
HEALTHY = 25  # UNKNOWN_MEMBER_ID
REBALANCE_IN_PROGRESS = 27
LEADER_NOT_AVAILABLE = 5


@pytest.fixture(scope="module")
def upstream() -> Iterator[fencepost.Broker]:
    with fencepost.Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        broker.create_topic("payments")
        with RawClient(broker.bootstrap_servers) as client:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
            client.call(ApiKey.FIND_COORDINATOR, 4, request)
            while heartbeat(client) != HEALTHY:
                pass
        yield broker


@pytest.fixture
def cluster(upstream: fencepost.Broker) -> Iterator[NamedCluster]:
    with NamedCluster(upstream.bootstrap_servers) as named:
        yield named


@pytest.fixture
def client(cluster: NamedCluster) -> Iterator[RawClient]:
    with RawClient(cluster.bootstrap_servers) as connected:
        yield connected


def heartbeat(client: RawClient) -> int:
    code: int = client.call(ApiKey.HEARTBEAT, 4, HEARTBEAT).error_code
    return code


def metadata(client: RawClient, version: int = 9, *topics: str) -> Any:
    """Of all topics, if none is named."""
    named = [MetadataRequestTopic(name=name) for name in topics] or None
    return client.call(ApiKey.METADATA, version, MetadataRequest(topics=named))


def create(topic: str) -> CreateTopicsRequest:
    made = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[made], timeout_ms=5_000)


def exists(broker: fencepost.Broker, topic: str) -> bool:
    return broker.call(lambda node: topic in node.metadata.topics)


def wait_for(broker: fencepost.Broker, topic: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not exists(broker, topic):
        assert time.monotonic() < deadline, f"{topic} is not created"
        time.sleep(0.005)


def values(broker: fencepost.Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.committed(topic)]


# -- addresses and versions ------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(API[ApiKey.METADATA].max_version + 1))
def test_every_version_of_metadata_leads_through_the_proxy(
    cluster: NamedCluster, client: RawClient, version: int
) -> None:
    (broker,) = metadata(client, version, "payments").brokers
    assert f"{broker.host}:{broker.port}" == cluster.bootstrap_servers


def test_no_version_is_offered_that_the_proxy_cannot_read(client: RawClient) -> None:
    reply = client.call(
        ApiKey.API_VERSIONS,
        3,
        ApiVersionsRequest(client_software_name="a", client_software_version="1"),
    )
    for each in reply.api_keys:
        assert each.max_version <= BY_NUMBER[each.api_key].max_version
    assert "transaction.version" in {each.name for each in reply.finalized_features}


def test_a_cluster_that_does_not_answer_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with (
        pytest.raises(FencepostError, match=f"127.0.0.1:{port}"),
        NamedCluster(f"127.0.0.1:{port}"),
    ):
        pass


def test_bytes_of_another_protocol_end_their_connection_alone(
    cluster: NamedCluster, client: RawClient
) -> None:
    with RawClient(cluster.bootstrap_servers) as stranger:
        stranger.send_bytes(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert stranger.is_closed_by_broker()
    assert heartbeat(client) == HEALTHY


# -- what happens to a request ---------------------------------------------------------------------


def test_a_failed_request_is_answered_in_its_place(
    cluster: NamedCluster, client: RawClient
) -> None:
    fault = cluster.faults.on("Heartbeat", group="g").fail("REBALANCE_IN_PROGRESS").on_call(2)
    sent = [client.send(ApiKey.HEARTBEAT, 4, HEARTBEAT) for _ in range(3)]
    codes = [client.reply(ApiKey.HEARTBEAT, 4, each).error_code for each in sent]
    assert codes == [HEALTHY, REBALANCE_IN_PROGRESS, HEALTHY]
    assert fault.fired == 1
    cluster.faults.check()


@pytest.mark.parametrize("version", [0, 4, 9, 13])
@pytest.mark.parametrize("topics", [("payments",), ()], ids=["one", "all"])
def test_failed_metadata_still_names_the_brokers(
    cluster: NamedCluster, client: RawClient, version: int, topics: tuple[str, ...]
) -> None:
    cluster.faults.on("Metadata").fail("LEADER_NOT_AVAILABLE")
    reply = metadata(client, version, *topics)
    assert {each.error_code for each in reply.topics} == {LEADER_NOT_AVAILABLE}
    assert [f"{each.host}:{each.port}" for each in reply.brokers] == [cluster.bootstrap_servers]


def test_failed_metadata_creates_no_topic(
    upstream: fencepost.Broker, cluster: NamedCluster, client: RawClient
) -> None:
    cluster.faults.on("Metadata").fail("LEADER_NOT_AVAILABLE")
    metadata(client, 9, "not-created")
    assert not exists(upstream, "not-created")


def test_a_lost_request_has_no_effect_nor_has_one_behind_it(
    upstream: fencepost.Broker, cluster: NamedCluster, client: RawClient
) -> None:
    cluster.faults.on("CreateTopics", topic="lost").lose_request()
    client.send(ApiKey.CREATE_TOPICS, 5, create("lost"))
    client.send(ApiKey.CREATE_TOPICS, 5, create("behind"))
    assert client.is_closed_by_broker()
    cluster.create_topic("after")  # The broker has read what there was.
    assert not exists(upstream, "lost")
    assert not exists(upstream, "behind")


def test_a_lost_reply_leaves_the_effect_and_the_replies_before_it(
    upstream: fencepost.Broker, cluster: NamedCluster, client: RawClient
) -> None:
    cluster.faults.on("CreateTopics").lose_reply()
    first = client.send(ApiKey.HEARTBEAT, 4, HEARTBEAT)
    client.send(ApiKey.CREATE_TOPICS, 5, create("unseen"))
    assert client.reply(ApiKey.HEARTBEAT, 4, first).error_code == HEALTHY
    assert client.is_closed_by_broker()
    assert exists(upstream, "unseen")


def test_a_silent_connection_answers_nothing_more_and_others_do(
    upstream: fencepost.Broker, cluster: NamedCluster, client: RawClient
) -> None:
    cluster.faults.on("CreateTopics").lose_reply(disconnect=False)
    client.send(ApiKey.CREATE_TOPICS, 5, create("silent"))
    client.send(ApiKey.CREATE_TOPICS, 5, create("silent-too"))
    wait_for(upstream, "silent-too")
    client._socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.read_frame()
    with RawClient(cluster.bootstrap_servers) as other:
        assert heartbeat(other) == HEALTHY


def test_a_held_request_takes_effect_although_its_client_has_left(
    upstream: fencepost.Broker, cluster: NamedCluster, client: RawClient
) -> None:
    fault = cluster.faults.on("CreateTopics").hold()
    client.send(ApiKey.CREATE_TOPICS, 5, create("held"))
    fault.wait()
    client.close()
    assert not exists(upstream, "held")
    fault.release()
    wait_for(upstream, "held")


@pytest.mark.parametrize("held", ["hold", "delay"])
def test_a_held_request_keeps_its_place(
    cluster: NamedCluster, client: RawClient, held: str
) -> None:
    target = cluster.faults.on("Heartbeat")
    fault = target.hold() if held == "hold" else target.delay(0.01)
    sent = [client.send(ApiKey.HEARTBEAT, 4, HEARTBEAT) for _ in range(3)]
    if held == "hold":
        fault.wait()
        fault.release()
    assert [client.reply(ApiKey.HEARTBEAT, 4, each).error_code for each in sent] == [HEALTHY] * 3


def test_a_throttled_reply_says_so(cluster: NamedCluster, client: RawClient) -> None:
    cluster.faults.on("Heartbeat").throttle(20)
    sent = [client.send(ApiKey.HEARTBEAT, 4, HEARTBEAT) for _ in range(2)]
    replies = [client.reply(ApiKey.HEARTBEAT, 4, each) for each in sent]
    assert [each.throttle_time_ms for each in replies] == [20, 0]


def test_a_function_lets_a_request_pass_fails_it_or_answers(
    cluster: NamedCluster, client: RawClient
) -> None:
    answers: list[Any] = [None, "REBALANCE_IN_PROGRESS", 7]

    def decide(request: Request) -> object:
        answer = answers.pop(0)
        return request.reply(error_code=answer) if isinstance(answer, int) else answer

    cluster.faults.on("Heartbeat").do(decide).times(3)
    assert [heartbeat(client) for _ in range(3)] == [HEALTHY, REBALANCE_IN_PROGRESS, 7]
    cluster.faults.check()


def test_a_producer_that_waits_for_no_answer_sees_a_fault_as_a_cut(
    upstream: fencepost.Broker, cluster: NamedCluster, client: RawClient
) -> None:
    records = batch_of(b"no acks")
    request = produce_request("payments", records, acks=0)
    client.send(ApiKey.PRODUCE, 9, request)
    assert heartbeat(client) == HEALTHY, "no reply to Produce is expected"
    cluster.faults.on("Produce").fail("NOT_LEADER_OR_FOLLOWER")
    client.send(ApiKey.PRODUCE, 9, request)
    assert client.is_closed_by_broker()
    assert values(upstream, "payments").count(b"no acks") == 1


def test_a_reply_that_cannot_be_read_fails_the_test(
    cluster: NamedCluster, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise WireError("damaged")

    monkeypatch.setattr("fencepost.testing.fault_proxy.decode_response", fail)
    client.send(ApiKey.METADATA, 9, MetadataRequest(topics=None))
    assert client.is_closed_by_broker()
    with pytest.raises(WireError, match="damaged"):
        cluster.faults.check()


# -- clients ---------------------------------------------------------------------------------------


def transactional(cluster: NamedCluster, name: str) -> Producer:
    servers = cluster.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def test_librdkafka_commits_once_although_answers_are_lost(
    upstream: fencepost.Broker, cluster: NamedCluster
) -> None:
    cluster.create_topic("refunds", partitions=2)
    cluster.faults.on("EndTxn", transactional_id="t").lose_reply()
    cluster.faults.on("Produce", topic="refunds").fail("NOT_LEADER_OR_FOLLOWER").times(2)
    producer = transactional(cluster, "t")
    for number in range(20):
        producer.produce("refunds", key=f"s-{number}", value=b"x" * 1000)
    producer.commit_transaction(30)
    assert len({record.key for record in cluster.committed("refunds")}) == 20
    assert len(cluster.committed("refunds")) == 20
    cluster.faults.check()
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["refunds"])
    seen: set[bytes | None] = set()
    while len(seen) < 20:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            seen.add(message.key())
    consumer.close()


def test_a_second_instance_fences_the_first_one_in_its_commit(cluster: NamedCluster) -> None:
    cluster.create_topic("fenced")
    commit = cluster.faults.on("EndTxn", transactional_id="f").hold()
    producer = transactional(cluster, "f")
    producer.produce("fenced", value="49900")
    failed: list[KafkaException] = []

    def first_instance() -> None:
        try:
            producer.commit_transaction(30)
        except KafkaException as problem:
            failed.append(problem)

    first = threading.Thread(target=first_instance)
    first.start()
    commit.wait()
    cluster.fence("f")
    commit.release()
    first.join()
    assert failed
    assert cluster.committed("fenced") == []


def test_a_hundred_clients_at_once_each_get_their_own_replies(
    cluster: NamedCluster,
) -> None:
    cluster.faults.on("Heartbeat").fail("REBALANCE_IN_PROGRESS").times(50)
    codes: list[int] = []

    def use() -> None:
        with RawClient(cluster.bootstrap_servers) as client:
            codes.append(heartbeat(client))

    threads = [threading.Thread(target=use) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [HEALTHY] * 50 + [REBALANCE_IN_PROGRESS] * 50


def test_a_broker_that_has_gone_ends_its_clients_connections() -> None:
    with fencepost.Broker() as broker, NamedCluster(broker.bootstrap_servers) as named:
        with RawClient(named.bootstrap_servers) as client:
            metadata(client)
            broker.stop()
            assert client.is_closed_by_broker()
        with RawClient(named.bootstrap_servers) as client:
            assert client.is_closed_by_broker()
        broker.start()
        with RawClient(named.bootstrap_servers) as client:
            metadata(client)


@pytest.mark.slow
def test_every_broker_of_a_cluster_is_reached_through_the_proxy() -> None:
    with fencepost.Cluster(2) as brokers, NamedCluster(brokers.bootstrap_servers) as named:
        named.create_topic("refunds", partitions=4)
        named.faults.on("EndTxn").lose_reply()
        producer = transactional(named, "t")
        for number in range(40):
            producer.produce("refunds", value=str(number), partition=number % 4)
        producer.commit_transaction(30)
        assert len(named.committed("refunds")) == 40
        named.faults.check()
        with RawClient(named.bootstrap_servers) as client:
            ports = {each.port for each in metadata(client).brokers}
        assert len(ports) == 2
        direct = {int(each.rpartition(":")[2]) for each in brokers.bootstrap_servers.split(",")}
        assert ports.isdisjoint(direct)


# -- what cannot work ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda broker: broker.crash(),
        lambda broker: broker.restart(),
        lambda broker: broker.clock.advance(minutes=1),
        lambda broker: broker.denials,
        lambda broker: broker.snapshot(),
        lambda broker: broker.restore(None),
        lambda broker: broker.node,
        lambda broker: broker.call(len),
        lambda broker: broker.faults.on("EndTxn").crash(),
        lambda broker: broker.faults.at("commit.prepare-appended").crash(),
    ],
)
def test_a_test_that_needs_a_broker_of_its_own_is_skipped_with_the_reason(
    cluster: NamedCluster, use: Any
) -> None:
    with pytest.raises(pytest.skip.Exception, match="FENCEPOST_TEST_BOOTSTRAP"):
        use(cluster)
    cluster.faults.check()
