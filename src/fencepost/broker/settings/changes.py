"""AlterConfigs and IncrementalAlterConfigs: the changes of a resource are all made, or refused.

IncrementalAlterConfigs has an operation for each setting; the older AlterConfigs lists all settings
that the resource has afterwards. Both become one `AlterSettings` event per resource. Logger levels
are not settings of the cluster: they change at once in this process, and are not stored.

In a cluster of several brokers the controller changes settings, in a process of its own, and each
broker its own loggers. So a request is about one or the other (`alters_loggers`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError
from fencepost.base.refusal import Refusal
from fencepost.base.topic_names import refuse_name
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME, GROUP, TOPIC
from fencepost.broker.settings.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    check_dynamic,
    check_topic_overrides,
)
from fencepost.broker.settings.kinds import Kind, Setting
from fencepost.broker.settings.loggers import LEVELS, ROOT, level_of, logger_names, set_level
from fencepost.broker.turns import fill, run_in_turns
from fencepost.broker.waiting import Parked
from fencepost.coordinator.metadata.events import AlterSettings
from fencepost.records.metadata_log import (
    BROKER_RESOURCE,
    CLUSTER_DEFAULT,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)

if TYPE_CHECKING:
    from fencepost.broker.context import Context
    from fencepost.coordinator.metadata.state import MetadataState
    from fencepost.wire.forms.alter_configs import AlterConfigsRequest
    from fencepost.wire.forms.incremental_alter_configs import IncrementalAlterConfigsRequest

log = logging.getLogger(__name__)

LOGGER_RESOURCE: Final = 8
"""The resource type BROKER_LOGGER."""

_TABLES: Final[Mapping[int, Mapping[str, Setting[Any]]]] = {
    TOPIC_RESOURCE: TOPIC_SETTINGS,
    BROKER_RESOURCE: BROKER_SETTINGS,
}
"""The settings by resource type, to find out which ones are lists."""


class Operation(IntEnum):
    """An operation on a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """The requested change of one setting."""

    name: str
    operation: int
    value: str | None


class Resource(NamedTuple):
    """The owner of settings: a topic or a broker, or of loggers."""

    kind: int
    name: str


class AlterLoggers(NamedTuple):
    """New levels for loggers of this process; None to inherit the level."""

    levels: Mapping[str, str | None]


Checked = AlterSettings | AlterLoggers | Refusal


def check_changes(
    metadata: MetadataState, config: BrokerConfig, resource: Resource, changes: Sequence[Change]
) -> Checked:
    """The event for these changes, or the refusal."""
    if refused := _refuse_form(changes):
        return refused
    if resource.kind == LOGGER_RESOURCE:
        return refuse_logger_owner(config, resource.name) or _check_loggers(changes)
    if refused := _refuse_resource(metadata, resource):
        return refused
    present = metadata.settings_of(*resource)
    try:
        wanted = {
            change.name: _new_value(resource, change, present.get(change.name))
            for change in changes
        }
    except ConfigError as problem:
        return Refusal(ErrorCode.INVALID_CONFIG, str(problem))
    return _check_values(config, resource, present, wanted)


def check_replacement(
    metadata: MetadataState,
    config: BrokerConfig,
    resource: Resource,
    settings: Sequence[tuple[str, str | None]],
) -> Checked:
    """The event that replaces all settings of the resource, or the refusal."""
    changes = [Change(name, Operation.SET, value) for name, value in settings]
    if refused := _refuse_form(changes) or _refuse_resource(metadata, resource):
        return refused
    present = metadata.settings_of(*resource)
    wanted: dict[str, str | None] = dict.fromkeys(present)
    wanted.update(settings)
    return _check_values(config, resource, present, wanted)


def _refuse_form(changes: Sequence[Change]) -> Refusal | None:
    if len({change.name for change in changes}) != len(changes):
        return Refusal(ErrorCode.INVALID_REQUEST, "A setting occurs twice.")
    for change in changes:
        if change.operation not in Operation.__members__.values():
            return Refusal(ErrorCode.INVALID_REQUEST, f"There is no operation {change.operation}.")
        if change.value is None and change.operation != Operation.DELETE:
            return Refusal(ErrorCode.INVALID_REQUEST, f"{change.name} needs a value.")
    return None


def _refuse_resource(metadata: MetadataState, resource: Resource) -> Refusal | None:
    if resource.kind == TOPIC_RESOURCE:
        return _refuse_topic(metadata, resource.name)
    if resource.kind == BROKER_RESOURCE:
        return _refuse_unregistered(metadata, resource.name)
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"Settings of resource type {resource.kind} cannot be altered.",
    )


def _refuse_topic(metadata: MetadataState, name: str) -> Refusal | None:
    if not name:
        return Refusal(ErrorCode.INVALID_REQUEST, "There are no settings for all topics at once.")
    if problem := refuse_name(name):
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name not in metadata.topics:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}.")
    return None


def _refuse_unregistered(metadata: MetadataState, name: str) -> Refusal | None:
    """Refuses a name that is neither the id of a broker nor empty (all brokers)."""
    if name == CLUSTER_DEFAULT or name in map(str, metadata.brokers):
        return None
    what = f"There is no broker {name}" if name.isdigit() else "The name must be a broker id"
    return Refusal(
        ErrorCode.INVALID_REQUEST, f"{what}; the brokers are {sorted(metadata.brokers)}."
    )


def refuse_broker(config: BrokerConfig, name: str) -> Refusal | None:
    """Refuses a name that is neither this broker's id nor empty (all brokers)."""
    if name in (CLUSTER_DEFAULT, str(config.node_id)):
        return None
    what = f"This is broker {config.node_id}" if name.isdigit() else "The name must be a broker id"
    return Refusal(ErrorCode.INVALID_REQUEST, f"{what}, not {name!r}.")


def refuse_logger_owner(config: BrokerConfig, name: str) -> Refusal | None:
    """Refuses all brokers at once: loggers belong to one broker."""
    if name == CLUSTER_DEFAULT:
        return Refusal(ErrorCode.INVALID_REQUEST, "Loggers belong to one broker: send its id.")
    return refuse_broker(config, name)


def _check_loggers(changes: Sequence[Change]) -> Checked:
    known = set(logger_names())
    for change in changes:
        if refused := _refuse_level(change, known):
            return refused
    # DELETE ignores the value that the client sent.
    return AlterLoggers(
        {each.name: each.value if each.operation == Operation.SET else None for each in changes}
    )


def _refuse_level(change: Change, known: set[str]) -> Refusal | None:
    if change.operation not in (Operation.SET, Operation.DELETE):
        return Refusal(ErrorCode.INVALID_REQUEST, "A level is not a list: use SET or DELETE.")
    if change.name not in known:
        return Refusal(ErrorCode.INVALID_CONFIG, f"There is no logger {change.name!r}.")
    if change.operation == Operation.DELETE:
        if change.name == ROOT:
            return Refusal(ErrorCode.INVALID_REQUEST, "The root logger must keep a level.")
        return None
    if change.value not in LEVELS:
        return Refusal(
            ErrorCode.INVALID_CONFIG,
            f"{change.value!r} is not a level; the levels are {', '.join(sorted(LEVELS))}.",
        )
    return None


def _new_value(resource: Resource, change: Change, present: str | None) -> str | None:
    """The text of a setting after the change; None if it is deleted."""
    if change.operation == Operation.DELETE:
        return None
    assert change.value is not None, "only DELETE has no value"
    if change.operation == Operation.SET:
        return change.value
    setting = _TABLES[resource.kind].get(change.name)
    if setting is None or setting.kind is not Kind.LIST:
        raise ConfigError(f"{change.name} is not a list: use SET or DELETE")
    before = setting.default if present is None else setting.parse(present)
    return ",".join(_combine(change.operation, list(before or ()), change.value.split(",")))


def _combine(operation: int, before: list[str], words: list[str]) -> list[str]:
    if operation == Operation.APPEND:
        return before + [word for word in words if word not in before]
    return [word for word in before if word not in words]


def _check_values(
    config: BrokerConfig,
    resource: Resource,
    present: Mapping[str, str],
    wanted: Mapping[str, str | None],
) -> Checked:
    merged = {**present, **wanted}
    settings = {name: value for name, value in merged.items() if value is not None}
    try:
        if resource.kind == TOPIC_RESOURCE:
            check_topic_overrides(config, settings)
        else:
            _check_broker(resource, present, wanted)
    except ConfigError as problem:
        # Kafka answers an invalid broker setting with INVALID_REQUEST (KAFKA-13609).
        is_broker = resource.kind == BROKER_RESOURCE
        error = ErrorCode.INVALID_REQUEST if is_broker else ErrorCode.INVALID_CONFIG
        return Refusal(error, str(problem))
    return AlterSettings(resource.kind, resource.name, wanted)


def _check_broker(
    resource: Resource, present: Mapping[str, str], wanted: Mapping[str, str | None]
) -> None:
    for name, value in wanted.items():
        if present.get(name) != value:
            check_dynamic(name, value, for_cluster=resource.name == CLUSTER_DEFAULT)


Check = Callable[["MetadataState", "BrokerConfig", Resource, Any], Checked]


def alters_loggers(request: AlterConfigsRequest | IncrementalAlterConfigsRequest) -> bool:
    """Whether the broker that receives a request serves it, rather than the controller."""
    return bool(request.resources) and all(
        resource.resource_type == LOGGER_RESOURCE for resource in request.resources
    )


def alter(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    context: Context,
    check: Check,
    respond: Callable[..., object],
    result: Callable[..., object],
) -> Parked:
    """Makes the changes that `check` accepts.

    `respond` builds the reply, and `result` its part for one resource.
    """

    def report(decided: tuple[Resource, Refusal | None]) -> object:
        resource, refused = decided
        return result(
            error_code=ErrorCode.NONE if refused is None else refused.error,
            error_message=None if refused is None else refused.message,
            resource_type=resource.kind,
            resource_name=resource.name,
        )

    alteration = _Alteration(request, context, check)

    def answer(results: Iterable[tuple[Resource, Refusal | None]]) -> None:
        responses: list[object] = []
        run_in_turns(
            context.services.runtime,
            fill(responses, results, report),
            lambda: alteration.parked.answer(respond(responses=responses)),
        )

    alteration.start(answer)
    return alteration.parked


class _Alteration:
    """One request, processed resource by resource.

    Each resource is decided and appended in one turn of the loop; many resources take several
    turns. Later requests of the connection wait until all changes are in the log. The reply waits
    until they are durable.
    """

    def __init__(
        self,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
        context: Context,
        check: Check,
    ) -> None:
        self.parked: Final = Parked()
        self._context: Final = context
        self._check: Final = check
        self._validate_only: Final = request.validate_only
        self._named: Final[Sequence[Any]] = request.resources
        self._resources: Final = [Resource(r.resource_type, r.resource_name) for r in self._named]
        self._counts: Final = Counter(self._resources)
        self._has_loggers_alone: Final = alters_loggers(request)
        self._refusals: list[Refusal | None] = [None] * len(self._resources)
        self._unfinished = 1
        """Changes that are not durable yet, plus one for the loop over the resources."""

    def start(self, answer: Callable[[Iterable[tuple[Resource, Refusal | None]]], None]) -> None:
        self._answer = answer
        is_over = run_in_turns(self._context.services.runtime, self._steps(), self._all_decided)
        self.parked.holds_followers = not is_over

    def _steps(self) -> Iterator[None]:
        for index in range(len(self._resources)):
            if index:
                yield  # Between two resources, so that a single one takes effect in this turn.
            outcome = self._decide(index)
            if isinstance(outcome, Refusal):
                self._refusals[index] = outcome
            elif not self._validate_only:
                self._perform(index, outcome)

    def _decide(self, index: int) -> Checked:
        resource = self._resources[index]
        services = self._context.services
        return (
            _refuse_repeated(self._counts[resource])
            or self._refuse_mixed(resource)
            or _refuse_unauthorized(resource, self._context)
            or self._check(services.metadata, services.config, resource, self._named[index].configs)
        )

    def _refuse_mixed(self, resource: Resource) -> Refusal | None:
        """Refuses loggers in a request that the controller of several brokers serves."""
        if (
            resource.kind != LOGGER_RESOURCE
            or self._context.services.config.broker_count == 1
            or self._has_loggers_alone
        ):
            return None
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            "With several brokers, levels of loggers need a request without other resources.",
        )

    def _perform(self, index: int, event: AlterSettings | AlterLoggers) -> None:
        if isinstance(event, AlterLoggers):
            _set_levels(event, self._context)
            return
        self._unfinished += 1
        self._context.services.controller.alter_settings(
            [event], partial(self._altered, index, event)
        )

    def _altered(self, index: int, event: AlterSettings, errors: Sequence[ErrorCode]) -> None:
        self._refusals[index] = _refuse_disk(errors[0])
        if errors[0] is ErrorCode.NONE:
            _note_change(event, self._context)
        self._finish_one()

    def _all_decided(self) -> None:
        self.parked.release()
        self._finish_one()

    def _finish_one(self) -> None:
        self._unfinished -= 1
        if self._unfinished == 0:
            self._answer(zip(self._resources, self._refusals, strict=True))


def _set_levels(event: AlterLoggers, context: Context) -> None:
    for name, level in event.levels.items():
        set_level(name, level)
        log.warning("%s set the level of logger %s to %s", context.principal, name, level_of(name))


def _note_change(event: AlterSettings, context: Context) -> None:
    """Without the values: some of Kafka's settings are secrets."""
    kind = "TOPIC" if event.resource_type == TOPIC_RESOURCE else "BROKER"
    names = ", ".join(event.changes)
    what = f"changed settings of {kind}:{event.resource_name}: {names}"
    context.services.audit.changed(
        context,
        "settings_changed",
        what,
        resource_type=kind,
        resource_name=event.resource_name,
        settings=list(event.changes),
    )


def _refuse_disk(error: ErrorCode) -> Refusal | None:
    if error is ErrorCode.NONE:
        return None
    return Refusal(error, "The metadata log could not be written; nothing was changed.")


def _refuse_repeated(count: int) -> Refusal | None:
    if count == 1:
        return None
    return Refusal(ErrorCode.INVALID_REQUEST, "A resource occurs twice.")


def _refuse_unauthorized(resource: Resource, context: Context) -> Refusal | None:
    if resource.kind == TOPIC_RESOURCE:
        if context.authorize("ALTER_CONFIGS", TOPIC, resource.name):
            return None
        return Refusal(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"Not authorized to alter {resource.name!r}."
        )
    if resource.kind == GROUP_RESOURCE:
        if context.authorize("ALTER_CONFIGS", GROUP, resource.name):
            return None
        return Refusal(
            ErrorCode.GROUP_AUTHORIZATION_FAILED, f"Not authorized to alter {resource.name!r}."
        )
    if context.authorize("ALTER_CONFIGS", CLUSTER, CLUSTER_NAME):
        return None
    return Refusal(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        "Not authorized to alter the settings of the cluster.",
    )
