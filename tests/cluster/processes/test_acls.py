"""ACLs in a cluster of processes: every broker decides by a rule when its request is answered.

Whoever comes is User:ANONYMOUS, who may do anything until a rule is about a resource
(`allow.everyone.if.no.acl.found`). So a rule that denies one topic shows what each broker knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from fencepost.base.errors import ErrorCode
from fencepost.base.ids import TopicPartition
from fencepost.client.acls import Acl, AclFilter, create_acls, delete_acls, describe_acls
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.coordinator.acl.rules import Operation, PatternType, Permission, ResourceType
from fencepost.records.opened import Record
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.raw import RawClient

pytestmark = pytest.mark.slow

CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}
DENY = Acl(
    ResourceType.TOPIC,
    "secret",
    PatternType.LITERAL,
    "User:ANONYMOUS",
    "*",
    Operation.DESCRIBE,
    Permission.DENY,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[fencepost.Cluster]:
    with fencepost.Cluster(3, config=CONFIG) as cluster:
        yield cluster


def errors(cluster: fencepost.Cluster) -> set[int]:
    """What the brokers say about the topic."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name="secret")], allow_auto_topic_creation=False
    )
    found: set[int] = set()
    for broker in cluster.brokers:
        with RawClient(str(broker.address)) as client:
            reply: Any = client.call(ApiKey.METADATA, 9, request)
            found.add(reply.topics[0].error_code)
    return found


def test_every_broker_decides_by_a_rule_that_was_acknowledged(cluster: fencepost.Cluster) -> None:
    denied = {int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
    with connect(cluster.bootstrap_servers) as client:
        client.create_topics([NewTopic("secret", 3)])
        for _ in range(5):
            client.run(create_acls(client.core, [DENY]))
            assert errors(cluster) == denied
            assert client.run(delete_acls(client.core, [AclFilter(*DENY)])) == [DENY]
            assert errors(cluster) == {ErrorCode.NONE}
        client.run(create_acls(client.core, [DENY]))
    cluster.kill(2)
    cluster.restart(2)
    assert errors(cluster) == denied
    cluster.restart()
    assert errors(cluster) == denied
    with connect(cluster.bootstrap_servers) as client:
        assert client.run(describe_acls(client.core)) == [DENY]
        client.run(delete_acls(client.core, [AclFilter()]))
    assert errors(cluster) == {ErrorCode.NONE}


def test_what_brokers_send_each_other_needs_no_right(cluster: fencepost.Cluster) -> None:
    """Nobody has CLUSTER_ACTION, and transactions over several brokers work."""
    rule = DENY._replace(
        resource_type=ResourceType.CLUSTER,
        resource_name="kafka-cluster",
        operation=Operation.CLUSTER_ACTION,
    )
    with connect(cluster.bootstrap_servers) as client:
        client.create_topics([NewTopic("wide", 6)])
        client.run(create_acls(client.core, [rule]))
        identity = client.init_producer_id("over-all")
        places = [TopicPartition("wide", index) for index in range(6)]
        with client.writer(identity) as writer:
            for place in places:
                writer.write_records(place, [Record(value=b"v")])
            writer.flush()
        client.end_txn(identity, commit=True)
        for place in places:
            assert [record.value for record in client.records(place, 0, 1)] == [b"v"]
