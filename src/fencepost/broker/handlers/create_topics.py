"""CreateTopics (19): v2-7

Behaviour: creates or refuses each topic as a whole; answers when all of them are durable and can be
           written to. -1 stands for the broker's num.partitions and default.replication.factor. A
           manual assignment names the brokers that may lead each partition.
Versions:  v5 flexible, the reply has the counts and the settings of the topic; v7 its id.
Errors:    TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS,
           INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST
           (a topic twice, numbers beside an assignment), POLICY_VIOLATION (too many partitions),
           TOPIC_AUTHORIZATION_FAILED, REQUEST_TIMED_OUT, NOT_CONTROLLER, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import TOPIC, may_create_topic
from fencepost.broker.context import Context
from fencepost.broker.controller.controller import Outcome
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.broker.settings.views import describe_topic
from fencepost.broker.turns import fill, run_in_turns, then
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


def handle(request: CreateTopicsRequest, context: Context) -> object:
    """Serves one request; see above."""
    outcomes: dict[str, Outcome] = {}
    wanted: dict[str, NewTopic] = {}
    steps = _sort(request.topics, context, outcomes, wanted)
    return then(
        context.services.runtime, steps, partial(_create, request, context, outcomes, wanted)
    )


def _create(
    request: CreateTopicsRequest,
    context: Context,
    outcomes: dict[str, Outcome],
    wanted: Mapping[str, NewTopic],
) -> Parked:
    parked = Parked()

    def created(results: Sequence[Outcome]) -> None:
        outcomes.update((outcome.name, outcome) for outcome in results)
        # One entry per name, in the order of the request. Each lists about thirty settings.
        names = dict.fromkeys(topic.name for topic in request.topics)
        response = CreateTopicsResponse()
        steps = fill(
            response.topics,
            names,
            lambda name: _describe(outcomes[name], wanted.get(name), context),
        )
        run_in_turns(context.services.runtime, steps, partial(parked.answer, response))

    # The next request of this connection may be about topics that are not decided yet.
    parked.holds_followers = not context.services.controller.create(
        list(wanted.values()),
        created,
        validate_only=request.validate_only,
        timeout_ms=request.timeout_ms,
    )
    return parked


def _sort(
    topics: Sequence[CreatableTopic],
    context: Context,
    refused: dict[str, Outcome],
    wanted: dict[str, NewTopic],
) -> Iterator[None]:
    """Refuses names that occur twice, and those that this client may not create."""
    times = Counter(topic.name for topic in topics)
    for topic in topics:
        name = topic.name
        if times[name] > 1:
            refused[name] = Outcome(
                name, ErrorCode.INVALID_REQUEST, f"Topic {name!r} is named {times[name]} times."
            )
        elif not may_create_topic(context, name):
            refused[name] = Outcome(
                name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"Not authorized to create {name!r}."
            )
        else:
            wanted[name] = _read(topic)
        yield


def _read(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(each.partition_index, each.broker_ids) for each in topic.assignments],
        [(each.name, each.value) for each in topic.configs],
    )


def _describe(outcome: Outcome, asked: NewTopic | None, context: Context) -> CreatableTopicResult:
    if outcome.error is not ErrorCode.NONE or asked is None:
        return CreatableTopicResult(
            name=outcome.name, error_code=outcome.error, error_message=_tell(outcome, context)
        )
    result = CreatableTopicResult(
        name=outcome.name,
        topic_id=outcome.topic_id,
        error_message=None,
        num_partitions=outcome.partition_count,
        replication_factor=outcome.replication_factor,
    )
    if context.may("DESCRIBE_CONFIGS", TOPIC, outcome.name):
        result.configs = _describe_settings(asked, context)
    else:
        result.configs = None
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        result.num_partitions = result.replication_factor = -1
    return result


def _tell(outcome: Outcome, context: Context) -> str | None:
    """The message, without the name of a colliding topic that the client may not describe."""
    other = context.services.metadata.colliding_name(outcome.name)
    if other is None or context.may("DESCRIBE", TOPIC, other):
        return outcome.message
    return f"Topic {outcome.name!r} was refused."


def _describe_settings(asked: NewTopic, context: Context) -> list[CreatableTopicConfigs]:
    """Describes the settings of the request, so that a validated topic has settings too."""
    overrides = {name: value for name, value in asked.settings if value is not None}
    return [
        CreatableTopicConfigs(
            name=row.name, value=row.value, read_only=row.read_only, config_source=row.source
        )
        for row in describe_topic(context.services.config, overrides)
    ]
