"""Describing and altering settings over the wire."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker import turns
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.broker.handlers import describe_configs, incremental_alter_configs
from fencepost.broker.waiting import Parked
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.alter_configs import AlterableConfig as LegacyConfig
from fencepost.wire.forms.alter_configs import AlterConfigsRequest
from fencepost.wire.forms.alter_configs import AlterConfigsResource as LegacyResource
from fencepost.wire.forms.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.controller.topics_stage import Deny, StubNode

pytestmark = pytest.mark.interpreted

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(
    node: StubNode,
    name: str = "orders",
    kind: int = TOPIC,
    *keys: str,
    version: int = 4,
    **more: Any,
) -> Any:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(resources=[resource], **more)
    (result,) = node.ask(ApiKey.DESCRIBE_CONFIGS, request, version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def one(node: StubNode, name: str, kind: int, key: str, **more: Any) -> Any:
    (row,) = describe(node, name, kind, key, include_synonyms=True, **more).configs
    return row


def synonyms(row: Any) -> list[tuple[str, str | None, int]]:
    return [(each.name, each.value, each.source) for each in row.synonyms]


def alter(
    node: StubNode,
    *changes: tuple[str, int, str | None],
    name: str = "orders",
    kind: int = TOPIC,
    validate_only: bool = False,
    version: int = 1,
) -> ErrorCode:
    resource = AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterableConfig(name=n, config_operation=o, value=v) for n, o, v in changes],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (result,) = node.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, version).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert (result.error_code == 0) == (result.error_message is None)
    return ErrorCode(result.error_code)


@pytest.fixture
def node() -> StubNode:
    node = StubNode({"log.retention.hours": "2", "num.io.threads": "3"}).start()
    node.made("orders")
    return node


def own(node: StubNode) -> dict[str, str]:
    return dict(node.metadata.settings_of(TOPIC, "orders"))


# -- DescribeConfigs


@pytest.mark.parametrize("version", range(1, 5))
def test_all_settings_of_a_topic_are_described(node: StubNode, version: int) -> None:
    result = describe(node, version=version)
    assert result.error_code == ErrorCode.NONE
    rows = {row.name: row for row in result.configs}
    assert len(rows) == 33
    assert not any(row.read_only or row.is_sensitive or row.synonyms for row in rows.values())
    assert rows["retention.ms"].value == "7200000"
    assert rows["max.message.bytes"].value == "1048588"
    assert rows["min.cleanable.dirty.ratio"].value == "0.5"
    assert rows["preallocate"].value == "false"
    assert rows["leader.replication.throttled.replicas"].value == ""
    if version >= 3:
        kinds = {rows[name].config_type for name in ("retention.ms", "segment.bytes")}
        assert kinds == {5, 3}
        assert rows["cleanup.policy"].config_type == 7
        assert rows["retention.ms"].documentation is None


def test_only_the_requested_settings_are_described(node: StubNode) -> None:
    result = describe(node, "orders", TOPIC, "segment.ms", "nonsense")
    assert [row.name for row in result.configs] == ["segment.ms"]


def test_documentation_is_included_on_request(node: StubNode) -> None:
    row = one(node, "orders", TOPIC, "retention.ms", include_documentation=True)
    assert row.documentation


def test_a_value_is_described_with_its_source_and_synonyms(node: StubNode) -> None:
    assert alter(node, ("log.retention.ms", SET, "77"), name="1", kind=BROKER) is ErrorCode.NONE
    assert alter(node, ("log.retention.ms", SET, "88"), name="", kind=BROKER) is ErrorCode.NONE
    row = one(node, "orders", TOPIC, "retention.ms")
    behind = [
        ("log.retention.ms", "77", 2),
        ("log.retention.ms", "88", 3),
        ("log.retention.hours", "2", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert (row.value, row.config_source, synonyms(row)) == ("77", 2, behind)
    assert alter(node, ("retention.ms", SET, "5")) is ErrorCode.NONE
    row = one(node, "orders", TOPIC, "retention.ms")
    assert (row.value, row.config_source) == ("5", 1)
    assert synonyms(row) == [("retention.ms", "5", 1), *behind]
    row = one(node, "1", BROKER, "log.retention.ms")
    assert (row.value, row.config_source, row.read_only) == ("77", 2, False)
    assert synonyms(row) == behind


def test_the_description_of_a_broker_includes_settings_without_effect(node: StubNode) -> None:
    result = describe(node, "1", BROKER)
    rows = {row.name: row for row in result.configs}
    assert rows["num.partitions"].read_only
    assert rows["num.partitions"].config_source == 5
    assert rows["log.retention.hours"].config_source == 4
    assert (rows["num.io.threads"].value, rows["num.io.threads"].config_source) == ("3", 4)
    assert rows["log.dirs"].value == "/data"
    assert not rows["log.segment.bytes"].read_only
    assert len(rows) > 70


def test_the_default_broker_has_only_dynamic_settings(node: StubNode) -> None:
    assert describe(node, "", BROKER).configs == []
    alter(node, ("log.retention.ms", SET, "88"), name="", kind=BROKER)
    alter(node, ("log.retention.ms", SET, "77"), name="1", kind=BROKER)
    (row,) = describe(node, "", BROKER, include_synonyms=True).configs
    assert (row.name, row.value, row.config_source) == ("log.retention.ms", "88", 3)
    assert synonyms(row) == [("log.retention.ms", "88", 3)]


@pytest.mark.parametrize(
    ("name", "kind", "error"),
    [
        ("absent", TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a b", TOPIC, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", TOPIC, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("2", BROKER, ErrorCode.INVALID_REQUEST),
        ("x", BROKER, ErrorCode.INVALID_REQUEST),
        ("2", 8, ErrorCode.INVALID_REQUEST),
        ("", 8, ErrorCode.INVALID_REQUEST),
        ("?", 99, ErrorCode.INVALID_REQUEST),
    ],
)
def test_describing_an_unknown_resource_gets_an_error(
    node: StubNode, name: str, kind: int, error: ErrorCode
) -> None:
    result = describe(node, name, kind)
    assert (result.error_code, result.configs) == (error, [])
    assert result.error_message


def test_describing_and_altering_settings_needs_permission() -> None:
    denied = Deny(
        ("DESCRIBE_CONFIGS", "TOPIC", "orders"),
        ("DESCRIBE_CONFIGS", "CLUSTER", "kafka-cluster"),
        ("ALTER_CONFIGS", "TOPIC", "orders"),
        ("ALTER_CONFIGS", "CLUSTER", "kafka-cluster"),
    )
    node = StubNode(authorizer=denied).start()
    node.made("orders")
    assert describe(node).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert describe(node, "1", BROKER).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    change = ("retention.ms", SET, "5")
    assert alter(node, change) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    change = ("log.retention.ms", SET, "5")
    assert alter(node, change, name="1", kind=BROKER) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


# -- IncrementalAlterConfigs


@pytest.mark.parametrize("version", [0, 1])
def test_a_setting_can_be_set_and_deleted(node: StubNode, version: int) -> None:
    assert alter(node, ("retention.ms", SET, "5"), version=version) is ErrorCode.NONE
    partition = node.partition("orders", 0)
    assert partition is not None
    assert partition.log.config.retention_ms == 5
    assert alter(node, ("retention.ms", DELETE, None), version=version) is ErrorCode.NONE
    assert partition.log.config.retention_ms == 7_200_000
    assert own(node) == {}


def test_a_list_setting_can_be_appended_to_and_subtracted_from(node: StubNode) -> None:
    for change, policy in [
        (("cleanup.policy", APPEND, "compact"), "delete,compact"),
        (("cleanup.policy", APPEND, "compact"), "delete,compact"),
        (("cleanup.policy", SUBTRACT, "delete"), "compact"),
        (("cleanup.policy", SUBTRACT, "compact"), ""),
    ]:
        assert alter(node, change) is ErrorCode.NONE
        assert one(node, "orders", TOPIC, "cleanup.policy").value == policy
    assert own(node) == {"cleanup.policy": ""}


def test_a_topic_setting_without_effect_is_logged_when_it_is_set(
    node: StubNode, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = "flush.messages has no effect: durability decides when logs are synced"
    assert alter(node, ("flush.messages", SET, "1"), ("retention.ms", SET, "5")) is ErrorCode.NONE
    assert caplog.messages == [f"topic orders: {sentence}"]
    caplog.clear()
    node.create(NewTopic("refunds", 1, settings=[("flush.messages", "1")]))
    assert caplog.messages == [f"topic refunds: {sentence}"]
    caplog.clear()
    again = node.restarted()
    assert alter(again, ("flush.messages", DELETE, None)) is ErrorCode.NONE
    assert caplog.messages == [], "not at a start, and not when it is removed"


def test_several_settings_change_together(node: StubNode) -> None:
    assert (
        alter(node, ("retention.ms", SET, "5"), ("segment.ms", SET, "6"), ("x", DELETE, None))
        is ErrorCode.NONE
    )
    assert own(node) == {"retention.ms": "5", "segment.ms": "6"}
    # One invalid value prevents all of the changes.
    assert (
        alter(node, ("retention.ms", SET, "7"), ("segment.ms", SET, "x"))
        is ErrorCode.INVALID_CONFIG
    )
    assert own(node) == {"retention.ms": "5", "segment.ms": "6"}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([("nonsense", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("nonsense", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SUBTRACT, "1")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", APPEND, "never")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        (
            [("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")],
            ErrorCode.INVALID_CONFIG,
        ),
    ],
)
def test_an_invalid_change_changes_nothing(
    node: StubNode, changes: list[tuple[str, int, str | None]], error: ErrorCode
) -> None:
    for validate_only in (True, False):
        assert alter(node, *changes, validate_only=validate_only) is error
    assert own(node) == {}


def test_validation_changes_nothing(node: StubNode) -> None:
    assert alter(node, ("retention.ms", SET, "5"), validate_only=True) is ErrorCode.NONE
    assert own(node) == {}


@pytest.mark.parametrize(
    ("name", "kind", "error"),
    [
        ("absent", TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a b", TOPIC, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", TOPIC, ErrorCode.INVALID_REQUEST),
        ("2", BROKER, ErrorCode.INVALID_REQUEST),
        ("x", BROKER, ErrorCode.INVALID_REQUEST),
        ("1", 99, ErrorCode.INVALID_REQUEST),
    ],
)
def test_altering_an_unknown_resource_gets_an_error(
    node: StubNode, name: str, kind: int, error: ErrorCode
) -> None:
    assert alter(node, ("retention.ms", SET, "5"), name=name, kind=kind) is error


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("log.retention.ms", SET, "5"), ErrorCode.NONE),
        (("num.io.threads", SET, "5"), ErrorCode.NONE),
        (("log.retention.ms", SET, "x"), ErrorCode.INVALID_REQUEST),
        (("num.partitions", SET, "5"), ErrorCode.INVALID_REQUEST),
        (("nonsense", SET, "5"), ErrorCode.INVALID_REQUEST),
        (("log.cleanup.policy", APPEND, "compact"), ErrorCode.NONE),
    ],
)
@pytest.mark.parametrize("name", ["", "1"])
def test_only_dynamic_broker_settings_can_be_changed(
    node: StubNode, name: str, change: tuple[str, int, str], error: ErrorCode
) -> None:
    assert alter(node, change, name=name, kind=BROKER) is error
    assert bool(node.metadata.settings_of(BROKER, name)) == (error is ErrorCode.NONE)


def test_a_resource_listed_twice_is_not_changed(node: StubNode) -> None:
    resource = AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="orders",
        configs=[AlterableConfig(name="retention.ms", config_operation=SET, value="1")],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource, resource])
    results = node.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
    assert [r.error_code for r in results] == [ErrorCode.INVALID_REQUEST] * 2
    assert own(node) == {}


def test_on_a_full_disk_the_old_settings_are_kept(node: StubNode) -> None:
    node.disk.fill()
    assert alter(node, ("retention.ms", SET, "5")) is ErrorCode.KAFKA_STORAGE_ERROR
    assert own(node) == {}


def test_many_resources_are_described_over_several_turns_of_the_loop(
    node: StubNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    kinds = {"orders": TOPIC, "1": BROKER, "absent": TOPIC}
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for name, kind in kinds.items()
    ]
    request = DescribeConfigsRequest(resources=resources)
    parked = describe_configs.handle(request, node.context(4))
    assert isinstance(parked, Parked)
    assert parked.holds_followers, "a later change is not shown"
    count = 0
    while node.turn():
        count += 1
    assert count >= len(resources) - 1
    assert isinstance(parked.reply, DescribeConfigsResponse)
    results = parked.reply.results
    assert [result.resource_name for result in results] == list(kinds)
    assert [bool(result.configs) for result in results] == [True, True, False]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_many_resources_are_altered_over_several_turns_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    node = StubNode({"durability": durability}).start()
    names = ["orders", "refunds", "absent", "audit"]
    node.create(*(NewTopic(name, 1) for name in names if name != "absent"))
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    change = AlterableConfig(name="retention.ms", config_operation=SET, value="5")
    resources = [
        AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[change])
        for name in names
    ]
    request = IncrementalAlterConfigsRequest(resources=resources)
    parked = incremental_alter_configs.handle(request, node.context(1))
    heard: list[Any] = []
    released: list[bool] = []
    parked.when_answered(heard.append)
    parked.when_released(lambda: released.append(True))
    assert parked.holds_followers, "what comes behind it must not take effect before it has"
    assert "retention.ms" not in node.metadata.settings_of(TOPIC, "audit")
    while node.turn():
        pass
    assert released == [True]
    assert node.metadata.settings_of(TOPIC, "audit") == {"retention.ms": "5"}
    if durability == "fsync":
        assert heard == [], "no reply before the change is durable"
        node.sync()
        while node.turn():
            pass
    (reply,) = heard
    assert [(each.resource_name, each.error_code) for each in reply.responses] == [
        (name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name == "absent" else ErrorCode.NONE)
        for name in names
    ]


# -- AlterConfigs


def replace(node: StubNode, version: int = 2, **settings: str | None) -> ErrorCode:
    resource = LegacyResource(
        resource_type=TOPIC,
        resource_name="orders",
        configs=[
            LegacyConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()
        ],
    )
    request = AlterConfigsRequest(resources=[resource])
    (result,) = node.ask(ApiKey.ALTER_CONFIGS, request, version).responses
    return ErrorCode(result.error_code)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_alter_configs_replaces_all_settings(node: StubNode, version: int) -> None:
    assert replace(node, version, retention_ms="5", segment_ms="6") is ErrorCode.NONE
    assert replace(node, version, segment_ms="7") is ErrorCode.NONE
    assert own(node) == {"segment.ms": "7"}


def test_alter_configs_refuses_the_same_values_as_incremental_alter_configs(node: StubNode) -> None:
    assert replace(node, segment_ms="x") is ErrorCode.INVALID_CONFIG
    assert replace(node, segment_ms=None) is ErrorCode.INVALID_REQUEST
    assert replace(node, nonsense="1") is ErrorCode.INVALID_CONFIG
    assert own(node) == {}
