"""DescribeConfigs (32): v1-4

Behaviour: the settings of topics (2), of this broker (4, by its number) or of all brokers (4, no name): each with its
           value, where the value came from and, on request, what it hides and what it means. Settings of Kafka
           that have no effect here are shown where somebody set them.
Versions:  v3 types and documentation; v4 flexible.
Errors:    UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST (another broker, a kind of
           resource that has no settings here), TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.base.errors import ErrorCode
from fencepost.broker.altering import Refusal, refuse_broker
from fencepost.broker.config_views import (
    describe_broker,
    describe_cluster_default,
    describe_topic,
)
from fencepost.broker.operations import CLUSTER, CLUSTER_NAME, TOPIC
from fencepost.coordinator.metadata.names import refuse_name
from fencepost.records.metadata_log import BROKER_RESOURCE, CLUSTER_DEFAULT, TOPIC_RESOURCE
from fencepost.wire.forms.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from fencepost.broker.config_views import Row
    from fencepost.broker.context import Context
    from fencepost.wire.forms.describe_configs import DescribeConfigsResource


def handle(request: DescribeConfigsRequest, context: Context) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[describe(resource, request, context) for resource in request.resources]
    )


def describe(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, context: Context
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    rows = rows_of(resource, context)
    if isinstance(rows, Refusal):
        result.error_code, result.error_message = rows.error, rows.message
        return result
    # No names, or a list without any, ask for all of them.
    asked = set(resource.configuration_keys or ())
    result.configs = [encode(row, request) for row in rows if not asked or row.name in asked]
    return result


def rows_of(resource: DescribeConfigsResource, context: Context) -> list[Row] | Refusal:
    if resource.resource_type == TOPIC_RESOURCE:
        return topic_rows(resource.resource_name, context)
    if resource.resource_type == BROKER_RESOURCE:
        return broker_rows(resource.resource_name, context)
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"Resources of type {resource.resource_type} have no settings here; topics (2) and "
        "brokers (4) do.",
    )


def topic_rows(name: str, context: Context) -> list[Row] | Refusal:
    if not context.authorize("DESCRIBE_CONFIGS", TOPIC, name):
        return Refusal(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"Not authorized to describe {name!r}."
        )
    if problem := refuse_name(name):
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    state = context.node.topics.state
    if name not in state.topics:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}.")
    return describe_topic(context.node.config, state.settings_of(TOPIC_RESOURCE, name))


def broker_rows(name: str, context: Context) -> list[Row] | Refusal:
    if not context.authorize("DESCRIBE_CONFIGS", CLUSTER, CLUSTER_NAME):
        return Refusal(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Not authorized to describe brokers."
        )
    if refused := refuse_broker(context.node, name):
        return refused
    if name == CLUSTER_DEFAULT:
        return describe_cluster_default(context.node.config)
    return describe_broker(context.node.config)


def encode(row: Row, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = []
    if request.include_synonyms:
        synonyms = [
            DescribeConfigsSynonym(name=each.name, value=each.text, source=each.source)
            for each in row.synonyms
        ]
    return DescribeConfigsResourceResult(
        name=row.name,
        value=row.value,
        read_only=row.read_only,
        config_source=row.source,
        synonyms=synonyms,
        config_type=row.kind.value,
        documentation=row.doc if request.include_documentation else None,
    )
