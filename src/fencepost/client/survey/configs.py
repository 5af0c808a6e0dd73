"""One or a few settings of many topics or brokers, as far as the caller may read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.client.admin import ResourceType
from fencepost.client.calls import AnyBroker, Core, call_one
from fencepost.client.survey.asking import Missing, ask_brokers, chunks
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from fencepost.client.steps import Steps


def topic_settings(core: Core, topics: Collection[str], key: str) -> Steps[dict[str, str | None]]:
    """Returns one setting of each topic; topics that may not be read, or are gone, are left out."""
    found: dict[str, str | None] = {}
    for some in chunks(topics):
        request = _configs_request(ResourceType.TOPIC, some, [key])
        reply = yield from call_one(
            core, AnyBroker(), ApiKey.DESCRIBE_CONFIGS, request, lambda _: (0, None)
        )
        found |= _values(reply.form, key)
    return found


def broker_settings(
    core: Core, brokers: Collection[int], keys: Collection[str]
) -> Steps[dict[int, dict[str, str | None]]]:
    """Returns settings of these brokers, as far as the caller may read them."""
    requests = {b: _configs_request(ResourceType.BROKER, [str(b)], keys) for b in brokers}
    replies = yield from ask_brokers(core, ApiKey.DESCRIBE_CONFIGS, requests, lambda _: (0, None))
    return {
        broker: {key: value for key in keys for value in _values(form, key).values()}
        for broker, form in replies.items()
        if not isinstance(form, Missing)
    }


def _configs_request(
    kind: ResourceType, names: Collection[str], keys: Collection[str]
) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=int(kind), resource_name=name, configuration_keys=list(keys)
            )
            for name in names
        ]
    )


def _values(form: DescribeConfigsResponse, key: str) -> dict[str, str | None]:
    return {
        result.resource_name: entry.value
        for result in form.results
        if not result.error_code
        for entry in result.configs
        if entry.name == key
    }
