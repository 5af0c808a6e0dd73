"""Settings of topics, brokers and groups: where each value comes from, and changes to some of them.

A value has a source. A topic's own value comes before the broker's dynamic one, that before the
dynamic default of all brokers, that before the broker's file, and Kafka's default is the last.
The broker lists these layers as synonyms; `below` is what a deletion of the uppermost would leave.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from fencepost.client.admin import ResourceType
from fencepost.client.calls import AnyBroker, BrokerById, Core, Place, call_one, only
from fencepost.client.steps import Steps
from fencepost.client.survey.asking import Missing, ask_brokers, chunks
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

ALL_BROKERS: Final = ""
"""The name of the resource whose values are the defaults of all brokers."""

SOURCES: Final[Mapping[int, str]] = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "file",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
"""Kafka's ConfigSource, in words."""

_KIND_OF_SOURCE: Final = {
    ResourceType.TOPIC: frozenset({1}),
    ResourceType.BROKER: frozenset({2, 3}),
    ResourceType.GROUP: frozenset({8}),
}
_MILLISECONDS_IN: Final = {".hours": 3_600_000, ".minutes": 60_000}
_SET: Final = 0
_DELETE: Final = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. A sensitive one has no value, here and in `below`."""

    name: str
    value: str | None
    source: str
    is_own: bool
    """Whether the value is set on this resource, or for brokers on all of them."""
    below: str | None
    """The value that applies if none is set on this resource; None if it is not known."""
    is_sensitive: bool
    read_only: bool


def describe_settings(
    core: Core, resource: ResourceType, name: str, keys: Collection[str] | None = None
) -> Steps[dict[str, Setting]]:
    """Returns settings of a resource by name, by default all of them."""
    request = _request(resource, [name], keys)
    request.include_synonyms = True
    reply = yield from call_one(
        core,
        _place(resource, name),
        ApiKey.DESCRIBE_CONFIGS,
        request,
        only("results"),
        about=describe_resource(resource, name),
    )
    form: DescribeConfigsResponse = reply.form
    return {entry.name: _setting(resource, entry) for entry in form.results[0].configs}


def topic_settings(core: Core, topics: Collection[str], key: str) -> Steps[dict[str, str | None]]:
    """Returns one setting of each topic; topics that may not be read, or are gone, are left out."""
    found: dict[str, str | None] = {}
    for some in chunks(topics):
        request = _request(ResourceType.TOPIC, some, [key])
        reply = yield from call_one(
            core, AnyBroker(), ApiKey.DESCRIBE_CONFIGS, request, lambda _: (0, None)
        )
        found |= _values(reply.form, key)
    return found


def broker_settings(
    core: Core, brokers: Collection[int], keys: Collection[str]
) -> Steps[dict[int, dict[str, str | None]]]:
    """Returns settings of these brokers, as far as the caller may read them."""
    requests = {b: _request(ResourceType.BROKER, [str(b)], keys) for b in brokers}
    replies = yield from ask_brokers(core, ApiKey.DESCRIBE_CONFIGS, requests, lambda _: (0, None))
    return {
        broker: {key: value for key in keys for value in _values(form, key).values()}
        for broker, form in replies.items()
        if not isinstance(form, Missing)
    }


def _request(
    kind: ResourceType, names: Collection[str], keys: Collection[str] | None
) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=int(kind),
                resource_name=name,
                configuration_keys=None if keys is None else list(keys),
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


def _setting(resource: ResourceType, entry: DescribeConfigsResourceResult) -> Setting:
    own = _KIND_OF_SOURCE[resource]
    lower = (each for each in entry.synonyms if each.source not in own)
    below = next((_in_unit_of(entry.name, each.name, each.value) for each in lower), None)
    is_own = entry.config_source in own
    return Setting(
        name=entry.name,
        value=entry.value,
        source=SOURCES.get(entry.config_source, "unknown"),
        is_own=is_own,
        below=below if is_own else entry.value,
        is_sensitive=entry.is_sensitive,
        read_only=entry.read_only,
    )


def _in_unit_of(name: str, synonym: str, value: str | None) -> str | None:
    """Returns a synonym's value in the unit of the setting: one of retention.ms is in hours."""
    for unit, milliseconds in _MILLISECONDS_IN.items():
        if name.endswith(".ms") and synonym.endswith(unit) and value is not None:
            return str(int(value) * milliseconds)
    return value


def alter_settings(
    core: Core,
    resource: ResourceType,
    name: str,
    changes: Mapping[str, str | None],
    *,
    validate_only: bool = False,
) -> Steps[None]:
    """Sets values; None deletes the resource's own value. The broker makes all changes or none."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=int(resource),
                resource_name=name,
                configs=[
                    AlterableConfig(
                        name=key, config_operation=_DELETE if value is None else _SET, value=value
                    )
                    for key, value in changes.items()
                ],
            )
        ],
        validate_only=validate_only,
    )
    yield from call_one(
        core,
        _place(resource, name),
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        request,
        only("responses"),
        about=describe_resource(resource, name),
    )


def describe_resource(resource: ResourceType, name: str) -> str:
    """Names a resource for people."""
    if resource is ResourceType.BROKER:
        return f"broker {name}" if name else "all brokers"
    return f"{resource.name.lower()} {name!r}"


def _place(resource: ResourceType, name: str) -> Place:
    is_one_broker = resource is ResourceType.BROKER and name != ALL_BROKERS
    return BrokerById(int(name)) if is_one_broker else AnyBroker()
