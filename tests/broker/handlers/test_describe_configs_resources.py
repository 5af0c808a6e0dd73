"""ACLs, quotas, the quorum, and settings of loggers, groups and client metrics, over the wire."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker.handlers import incremental_alter_configs
from fencepost.broker.settings.loggers import logger_names
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.forms.create_acls import AclCreation, CreateAclsRequest
from fencepost.wire.forms.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from fencepost.wire.forms.describe_acls import DescribeAclsRequest
from fencepost.wire.forms.describe_client_quotas import DescribeClientQuotasRequest
from fencepost.wire.forms.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from fencepost.wire.forms.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from fencepost.wire.forms.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from fencepost.wire.forms.list_config_resources import ListConfigResourcesRequest
from tests.broker.controller.topics_stage import NOW_MS, Deny, StubNode

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interpreted

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE = 0, 1
TIMEOUT = "consumer.session.timeout.ms"
CLUSTER = ("CLUSTER", "kafka-cluster")


@pytest.fixture
def node() -> StubNode:
    return StubNode().start()


@pytest.fixture
def levels() -> Iterator[None]:
    """Loggers belong to the process: changes by a test are undone."""
    logger = logging.getLogger("fencepost")
    before = logger.level
    yield
    logger.setLevel(before)


def describe(node: StubNode, kind: int, name: str) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = node.ask(ApiKey.DESCRIBE_CONFIGS, request).results
    return result


def values(node: StubNode, kind: int, name: str) -> dict[str, str | None]:
    return {row.name: row.value for row in describe(node, kind, name).configs}


def alter(
    node: StubNode,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    validate_only: bool = False,
) -> ErrorCode:
    configs = [AlterableConfig(name=n, config_operation=o, value=v) for n, o, v in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (result,) = node.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
    assert (result.error_code == 0) == (result.error_message is None)
    return ErrorCode(result.error_code)


# -- ACLs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acl_requests_get_security_disabled(node: StubNode, version: int) -> None:
    described = node.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(), version)
    assert described.error_code == ErrorCode.SECURITY_DISABLED
    assert "Authorizer" in described.error_message
    creation = CreateAclsRequest(creations=[AclCreation(), AclCreation()])
    created = node.ask(ApiKey.CREATE_ACLS, creation, version).results
    assert [each.error_code for each in created] == [ErrorCode.SECURITY_DISABLED] * 2
    deletion = DeleteAclsRequest(filters=[DeleteAclsFilter(), DeleteAclsFilter()])
    deleted = node.ask(ApiKey.DELETE_ACLS, deletion, version).filter_results
    assert [each.error_code for each in deleted] == [ErrorCode.SECURITY_DISABLED] * 2
    assert [each.matching_acls for each in deleted] == [[], []]


def test_acl_requests_are_authorized_first() -> None:
    """As in Kafka: authorization is checked first, the missing authorizer second."""
    node = StubNode(authorizer=Deny(("DESCRIBE", *CLUSTER), ("ALTER", *CLUSTER))).start()
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert node.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest()).error_code == refused
    creation = CreateAclsRequest(creations=[AclCreation()])
    assert node.ask(ApiKey.CREATE_ACLS, creation).results[0].error_code == refused
    deletion = DeleteAclsRequest(filters=[DeleteAclsFilter()])
    assert node.ask(ApiKey.DELETE_ACLS, deletion).filter_results[0].error_code == refused


# -- the quorum ------------------------------------------------------------------------------------


def quorum(node: StubNode, version: int = 2) -> Any:
    asked = TopicData(
        topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)]
    )
    return node.ask(ApiKey.DESCRIBE_QUORUM, DescribeQuorumRequest(topics=[asked]), version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_only_voter_has_all_of_the_metadata(node: StubNode, version: int) -> None:
    node.made("orders")
    reply = quorum(node, version)
    ((partition,),) = [topic.partitions for topic in reply.topics]
    (voter,) = partition.current_voters
    assert (partition.leader_id, voter.replica_id, partition.observers) == (1, 1, [])
    assert partition.high_watermark == voter.log_end_offset > 0
    assert voter.last_caught_up_timestamp == (NOW_MS if version else -1)
    assert [each.node_id for each in reply.nodes] == ([1] if version == 2 else [])
    if version == 2:
        ((listener,),) = [each.listeners for each in reply.nodes]
        assert (listener.host, listener.port) == ("localhost", 9092)


def test_the_high_watermark_of_the_quorum_waits_for_durability() -> None:
    node = StubNode({"durability": "fsync"}).start()
    before = quorum(node).topics[0].partitions[0].high_watermark
    resource = AlterConfigsResource(
        resource_type=BROKER,
        resource_name="",
        configs=[AlterableConfig(name="message.max.bytes", config_operation=SET, value="50000")],
    )
    parked = incremental_alter_configs.handle(
        IncrementalAlterConfigsRequest(resources=[resource]), node.context()
    )
    heard: list[object] = []
    parked.when_answered(heard.append)
    partition = quorum(node).topics[0].partitions[0]
    assert heard == []
    assert partition.high_watermark == before < partition.current_voters[0].log_end_offset
    node.sync()
    partition = quorum(node).topics[0].partitions[0]
    assert len(heard) == 1
    assert partition.high_watermark == partition.current_voters[0].log_end_offset


def test_describing_the_quorum_needs_permission() -> None:
    node = StubNode(authorizer=Deny(("DESCRIBE", *CLUSTER))).start()
    reply = quorum(node)
    assert (reply.error_code, reply.topics) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])


# -- groups and client metrics ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [GROUP, CLIENT_METRICS])
def test_groups_and_client_metrics_have_no_settings_and_get_none(node: StubNode, kind: int) -> None:
    """`kafka-configs.sh --describe --entity-type groups` describes every group: no error there."""
    assert values(node, kind, "one") == {}
    assert alter(node, kind, "one", (TIMEOUT, SET, "50000")) is ErrorCode.INVALID_REQUEST
    assert listed(node, kind) == []


# -- permission ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "denied", "error"),
    [
        (TOPIC, ("TOPIC", "one"), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (BROKER, CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (LOGGER, CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_describing_and_altering_settings_needs_permission(
    kind: int, denied: tuple[str, str], error: ErrorCode
) -> None:
    guard = Deny(("DESCRIBE_CONFIGS", *denied), ("ALTER_CONFIGS", *denied))
    node = StubNode(authorizer=guard).start()
    result = describe(node, kind, "one")
    assert (result.error_code, result.configs) == (error, [])
    assert alter(node, kind, "one", ("root", SET, "DEBUG")) is error


# -- lists -----------------------------------------------------------------------------------------


def listed(node: StubNode, *types: int, version: int = 1) -> list[tuple[str, int]]:
    request = ListConfigResourcesRequest(resource_types=list(types))
    reply = node.ask(ApiKey.LIST_CONFIG_RESOURCES, request, version)
    assert reply.error_code == ErrorCode.NONE
    return [(each.resource_name, each.resource_type) for each in reply.config_resources]


def test_all_resources_with_settings_are_listed(node: StubNode) -> None:
    node.made("orders")
    assert listed(node) == [("orders", TOPIC), ("1", BROKER), ("1", LOGGER)]
    assert listed(node, GROUP, TOPIC) == [("orders", TOPIC)]
    assert listed(node, version=0) == []


def test_listing_resources_and_quotas_needs_permission() -> None:
    node = StubNode(authorizer=Deny(("DESCRIBE_CONFIGS", *CLUSTER))).start()
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    reply = node.ask(ApiKey.LIST_CONFIG_RESOURCES, ListConfigResourcesRequest())
    assert (reply.error_code, reply.config_resources) == (refused, [])
    quotas = node.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest())
    assert (quotas.error_code, quotas.entries) == (refused, None)


def test_there_are_neither_quotas_nor_credentials(node: StubNode) -> None:
    for version in range(API[ApiKey.DESCRIBE_CLIENT_QUOTAS].max_version + 1):
        quotas = node.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest(), version)
        assert (quotas.error_code, quotas.entries) == (ErrorCode.NONE, [])
    everybody = DescribeUserScramCredentialsRequest(users=None)
    reply = node.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, everybody)
    assert (reply.error_code, reply.results) == (ErrorCode.NONE, [])


# -- loggers ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("levels")
def test_a_log_level_takes_effect(node: StubNode, caplog: pytest.LogCaptureFixture) -> None:
    name = "fencepost.broker.controller.controller"
    assert name in values(node, LOGGER, "1")
    assert alter(node, LOGGER, "1", ("root", SET, "ERROR"), (name, SET, "DEBUG")) is ErrorCode.NONE
    caplog.clear()
    logging.getLogger(name).debug("heard")
    logging.getLogger("fencepost.broker.node").warning("not heard")
    assert caplog.messages == ["heard"]
    assert alter(node, LOGGER, "1", (name, DELETE, "no level")) is ErrorCode.NONE
    assert set(values(node, LOGGER, "1").values()) == {"ERROR"}


@pytest.mark.usefixtures("levels")
@pytest.mark.parametrize(
    ("level", "number"),
    [("TRACE", 5), ("DEBUG", 10), ("INFO", 20), ("WARN", 30), ("ERROR", 40), ("FATAL", 50)],
)
def test_kafkas_log_levels_are_mapped_to_pythons(node: StubNode, level: str, number: int) -> None:
    assert alter(node, LOGGER, "1", ("root", SET, level)) is ErrorCode.NONE
    assert logging.getLogger("fencepost").level == number
    assert values(node, LOGGER, "1")["root"] == level


@pytest.mark.usefixtures("levels")
def test_loggers_of_the_embedding_program_are_not_changed(node: StubNode) -> None:
    outside = logging.getLogger("an.application")
    before = logging.root.level
    assert "an.application" not in logger_names()
    assert alter(node, LOGGER, "1", ("an.application", SET, "DEBUG")) is ErrorCode.INVALID_CONFIG
    assert alter(node, LOGGER, "1", ("root", SET, "DEBUG")) is ErrorCode.NONE
    assert (outside.level, logging.root.level) == (logging.NOTSET, before)


@pytest.mark.usefixtures("levels")
def test_a_level_is_not_set_if_another_is_refused_or_only_validated(node: StubNode) -> None:
    before = values(node, LOGGER, "1")
    changes: list[tuple[str, int, str | None]] = [("root", SET, "FATAL"), ("nobody", SET, "INFO")]
    assert alter(node, LOGGER, "1", *changes) is ErrorCode.INVALID_CONFIG
    assert alter(node, LOGGER, "1", changes[0], validate_only=True) is ErrorCode.NONE
    assert alter(node, LOGGER, "2", changes[0]) is ErrorCode.INVALID_REQUEST
    assert values(node, LOGGER, "1") == before
