"""DescribeConfigs (32): v1-4

Behaviour: the settings of topics (2), of this broker (4, by its number) or of all brokers (4, no
           name), and the levels of this broker's loggers (8): each with its value, where the value
           came from and, on request, what it hides and what it means. Settings of Kafka that have
           no effect here are shown where somebody set them. Groups (32) and client metrics (16)
           have none: `kafka-configs.sh --describe --entity-type groups` asks for those of every
           group, and would end at an error.
Versions:  v3 types and documentation; v4 flexible.
Errors:    UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST (another broker, an
           unknown type of resource), TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.base.errors import ErrorCode
from fencepost.base.refusal import Refusal
from fencepost.base.topic_names import refuse_name
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME, GROUP, TOPIC
from fencepost.broker.context import Context
from fencepost.broker.settings.changes import (
    LOGGER_RESOURCE,
    Resource,
    refuse_broker,
    refuse_logger_owner,
)
from fencepost.broker.settings.views import (
    Row,
    describe_broker,
    describe_cluster_default,
    describe_loggers,
    describe_topic,
)
from fencepost.broker.turns import in_turns
from fencepost.broker.waiting import Parked
from fencepost.records.metadata_log import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    CLUSTER_DEFAULT,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from fencepost.wire.forms.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


def handle(request: DescribeConfigsRequest, context: Context) -> DescribeConfigsResponse | Parked:
    """Describes some resources per turn of the loop, as tools request all topics at once."""
    response = DescribeConfigsResponse()

    def steps() -> Iterator[None]:
        for resource in request.resources:
            response.results.append(_describe(resource, request, context))
            yield

    return in_turns(context.services.runtime, steps(), response, holds_followers=True)


def _describe(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, context: Context
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    rows = _rows_of(resource, context)
    if isinstance(rows, Refusal):
        result.error_code, result.error_message = rows.error, rows.message
        return result
    # Null and an empty list stand for all settings.
    asked = set(resource.configuration_keys or ())
    result.configs = [_encode(row, request) for row in rows if not asked or row.name in asked]
    return result


def _rows_of(described: DescribeConfigsResource, context: Context) -> list[Row] | Refusal:
    resource = Resource(described.resource_type, described.resource_name)
    if resource.kind == TOPIC_RESOURCE:
        return _topic_rows(resource.name, context)
    if resource.kind == GROUP_RESOURCE:
        if not context.authorize("DESCRIBE_CONFIGS", GROUP, resource.name):
            message = f"Not authorized to describe {resource.name!r}."
            return Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED, message)
        return []
    if resource.kind not in (BROKER_RESOURCE, LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE):
        return Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.kind}.")
    if not context.authorize("DESCRIBE_CONFIGS", CLUSTER, CLUSTER_NAME):
        return Refusal(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "Not authorized to describe the settings of the cluster.",
        )
    if resource.kind == CLIENT_METRICS_RESOURCE:
        return []
    if resource.kind == BROKER_RESOURCE:
        return _broker_rows(resource.name, context)
    return refuse_logger_owner(context.services.config, resource.name) or describe_loggers()


def _topic_rows(name: str, context: Context) -> list[Row] | Refusal:
    if not context.authorize("DESCRIBE_CONFIGS", TOPIC, name):
        return Refusal(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"Not authorized to describe {name!r}."
        )
    if problem := refuse_name(name):
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    state = context.services.metadata
    if name not in state.topics:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}.")
    return describe_topic(context.services.config, state.settings_of(TOPIC_RESOURCE, name))


def _broker_rows(name: str, context: Context) -> list[Row] | Refusal:
    if refused := refuse_broker(context.services.config, name):
        return refused
    if name == CLUSTER_DEFAULT:
        return describe_cluster_default(context.services.config)
    return describe_broker(context.services.config)


def _encode(row: Row, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
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
        is_sensitive=row.is_sensitive,
        config_source=row.source,
        synonyms=synonyms,
        config_type=0 if row.kind is None else row.kind.value,
        documentation=row.doc if request.include_documentation else None,
    )
