"""DeleteTopics (20): v1-6

Behaviour: deletes topics with their partitions and settings; answers when that is durable. Internal
           topics cannot be deleted (in Kafka they can).
Versions:  v4 flexible; v5 error messages; v6 topics by id.
Errors:    UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_REQUEST (a topic twice, a name and
           an id, neither), INVALID_TOPIC_EXCEPTION (internal), TOPIC_DELETION_DISABLED
           (INVALID_REQUEST before v3), TOPIC_AUTHORIZATION_FAILED, REQUEST_TIMED_OUT,
           NOT_CONTROLLER, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import ZERO_TOPIC_ID
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME, TOPIC
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fencepost.broker.context import Context
    from fencepost.broker.controller.controller import Outcome

FIRST_VERSION_WITH_DISABLED: Final = 3


def handle(request: DeleteTopicsRequest, context: Context) -> DeleteTopicsResponse | Parked:
    """Serves one request; see above."""
    if not context.services.config.delete_topic_enable:
        return _refuse_all(request, context)
    results: list[DeletableTopicResult] = []
    names = _resolve(request.topics, results, context)
    parked = Parked()

    def deleted(outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.error is ErrorCode.NONE:
                what = f"deleted topic {outcome.name}"
                context.services.audit.changed(context, "topic_deleted", what, topic=outcome.name)
        results.extend(
            DeletableTopicResult(
                name=outcome.name,
                topic_id=outcome.topic_id,
                error_code=outcome.error,
                error_message=outcome.message,
            )
            for outcome in outcomes
        )
        parked.answer(DeleteTopicsResponse(responses=results))

    context.services.controller.delete(names, deleted, timeout_ms=request.timeout_ms)
    return parked


def _refuse_all(request: DeleteTopicsRequest, context: Context) -> DeleteTopicsResponse:
    early = context.api_version < FIRST_VERSION_WITH_DISABLED
    error = ErrorCode.INVALID_REQUEST if early else ErrorCode.TOPIC_DELETION_DISABLED
    return DeleteTopicsResponse(
        responses=[
            _refused(topic.name, topic.topic_id, error, "delete.topic.enable is false.")
            for topic in request.topics
        ]
    )


def _refused(
    name: str | None, topic_id: bytes, error: ErrorCode, message: str
) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=error, error_message=message
    )


def _resolve(
    topics: Sequence[DeleteTopicState], results: list[DeletableTopicResult], context: Context
) -> list[str]:
    """Returns the names of the topics to delete; the others have an error in the reply."""
    state = context.services.metadata
    names: list[str] = []
    ids: dict[str, bytes] = {}
    for topic in topics:
        name = topic.name
        if (name is None) == (topic.topic_id == ZERO_TOPIC_ID):
            message = "A topic is named by its name or by its id, and not by both."
            results.append(_refused(name, topic.topic_id, ErrorCode.INVALID_REQUEST, message))
            continue
        if name is None:
            name = state.topic_name(topic.topic_id)
        if name is None:
            message = "There is no topic of that id."
            results.append(_refused(None, topic.topic_id, ErrorCode.UNKNOWN_TOPIC_ID, message))
        elif refused := _refuse_unauthorized(name, topic, context):
            results.append(refused)
        else:
            names.append(name)
            if topic.name is None:
                ids[name] = topic.topic_id
    return _without_repetitions(names, ids, results)


def _refuse_unauthorized(
    name: str, topic: DeleteTopicState, context: Context
) -> DeletableTopicResult | None:
    """Without DESCRIBE a client learns neither that a name exists nor which name an id has."""
    if context.may("DELETE", CLUSTER, CLUSTER_NAME):
        return None
    by_id = topic.name is None
    may_describe = context.authorize("DESCRIBE", TOPIC, name)
    may_delete = context.authorize("DELETE", TOPIC, name)
    if may_delete and (may_describe or by_id):
        return None
    shown = name if may_describe else topic.name
    if may_describe and context.services.metadata.topic_id(name) is None:
        error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}."
    else:
        error, message = ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Not authorized to delete it."
    return _refused(shown, topic.topic_id, error, message)


def _without_repetitions(
    names: list[str], ids: Mapping[str, bytes], results: list[DeletableTopicResult]
) -> list[str]:
    """Refuses topics that are listed twice, by name or by id."""
    counts = Counter(names)
    for name, times in counts.items():
        if times > 1:
            message = f"Topic {name!r} is named {times} times."
            results.append(
                _refused(name, ids.get(name, ZERO_TOPIC_ID), ErrorCode.INVALID_REQUEST, message)
            )
    return [name for name, times in counts.items() if times == 1]
