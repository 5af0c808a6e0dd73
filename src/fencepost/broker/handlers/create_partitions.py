"""CreatePartitions (37): v0-3

Behaviour: adds partitions to topics; answers when they are durable and can be written to. The count
           is that of all partitions, old and new.
Versions:  v2 flexible.
Errors:    UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS (not more than before, an internal topic),
           INVALID_REPLICA_ASSIGNMENT, INVALID_REQUEST (a topic twice), POLICY_VIOLATION (too many),
           TOPIC_AUTHORIZATION_FAILED, REQUEST_TIMED_OUT, NOT_CONTROLLER, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import TOPIC
from fencepost.broker.context import Context
from fencepost.broker.controller.controller import Outcome
from fencepost.broker.turns import fill, run_in_turns, then
from fencepost.broker.waiting import Parked
from fencepost.coordinator.metadata.events import CreatePartitions
from fencepost.wire.forms.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def handle(request: CreatePartitionsRequest, context: Context) -> object:
    """Serves one request; see above."""
    outcomes: dict[str, Outcome] = {}
    events: list[CreatePartitions] = []
    steps = _sort(request.topics, context, outcomes, events)
    return then(
        context.services.runtime, steps, partial(_create, request, context, outcomes, events)
    )


def _create(
    request: CreatePartitionsRequest,
    context: Context,
    outcomes: dict[str, Outcome],
    events: Sequence[CreatePartitions],
) -> Parked:
    parked = Parked()

    def created(results: Sequence[Outcome]) -> None:
        outcomes.update((outcome.name, outcome) for outcome in results)
        names = dict.fromkeys(topic.name for topic in request.topics)
        response = CreatePartitionsResponse()
        steps = fill(response.results, names, lambda name: _describe(outcomes[name]))
        run_in_turns(context.services.runtime, steps, partial(parked.answer, response))

    # The next request of this connection may be about partitions that are not decided yet.
    parked.holds_followers = not context.services.controller.create_partitions(
        events, created, validate_only=request.validate_only, timeout_ms=request.timeout_ms
    )
    return parked


def _sort(
    topics: Sequence[CreatePartitionsTopic],
    context: Context,
    refused: dict[str, Outcome],
    events: list[CreatePartitions],
) -> Iterator[None]:
    """Refuses names that occur twice, and those that this client may not alter."""
    times = Counter(topic.name for topic in topics)
    for topic in topics:
        name = topic.name
        if times[name] > 1:
            refused[name] = Outcome(
                name, ErrorCode.INVALID_REQUEST, f"Topic {name!r} is named {times[name]} times."
            )
        elif not context.authorize("ALTER", TOPIC, name):
            refused[name] = Outcome(
                name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"Not authorized to alter {name!r}."
            )
        else:
            events.append(_read(topic))
        yield


def _read(topic: CreatePartitionsTopic) -> CreatePartitions:
    assignments = None
    if topic.assignments is not None:
        assignments = [each.broker_ids for each in topic.assignments]
    return CreatePartitions(topic.name, topic.count, assignments)


def _describe(outcome: Outcome) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(
        name=outcome.name, error_code=outcome.error, error_message=outcome.message
    )
