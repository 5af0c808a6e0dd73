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
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import ZERO_TOPIC_ID
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME, TOPIC
from fencepost.broker.turns import fill, in_turns, run_in_turns, then
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fencepost.broker.context import Context
    from fencepost.broker.controller.controller import Outcome

FIRST_VERSION_WITH_DISABLED: Final = 3


def handle(request: DeleteTopicsRequest, context: Context) -> object:
    """Serves one request; see above."""
    if not context.services.config.delete_topic_enable:
        return _refuse_all(request, context)
    resolving = _Resolving(context)
    return then(
        context.services.runtime,
        resolving.steps(request.topics),
        partial(_delete, request, context, resolving),
    )


def _delete(request: DeleteTopicsRequest, context: Context, resolving: _Resolving) -> Parked:
    names, results = resolving.names(), resolving.results
    parked = Parked()

    def deleted(outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.error is ErrorCode.NONE:
                what = f"deleted topic {outcome.name}"
                context.services.audit.changed(context, "topic_deleted", what, topic=outcome.name)
        steps = fill(results, outcomes, _describe)
        response = DeleteTopicsResponse(responses=results)
        run_in_turns(context.services.runtime, steps, partial(parked.answer, response))

    # The next request of this connection may be about topics that are not deleted yet.
    parked.holds_followers = not context.services.controller.delete(
        names, deleted, timeout_ms=request.timeout_ms
    )
    return parked


def _describe(outcome: Outcome) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=outcome.name,
        topic_id=outcome.topic_id,
        error_code=outcome.error,
        error_message=outcome.message,
    )


def _refuse_all(request: DeleteTopicsRequest, context: Context) -> DeleteTopicsResponse | Parked:
    early = context.api_version < FIRST_VERSION_WITH_DISABLED
    error = ErrorCode.INVALID_REQUEST if early else ErrorCode.TOPIC_DELETION_DISABLED

    def refuse(topic: DeleteTopicState) -> DeletableTopicResult:
        return _refused(topic.name, topic.topic_id, error, "delete.topic.enable is false.")

    response = DeleteTopicsResponse()
    steps = fill(response.responses, request.topics, refuse)
    return in_turns(context.services.runtime, steps, response, holds_followers=True)


def _refused(
    name: str | None, topic_id: bytes, error: ErrorCode, message: str
) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=error, error_message=message
    )


class _Resolving:
    """Finds the names of the topics to delete; the others have an error in the reply."""

    def __init__(self, context: Context) -> None:
        self.results: Final[list[DeletableTopicResult]] = []
        self._context: Final = context
        self._times: Final[Counter[str]] = Counter()
        self._ids: Final[dict[str, bytes]] = {}

    def steps(self, topics: Sequence[DeleteTopicState]) -> Iterator[None]:
        for topic in topics:
            if refused := self._resolve(topic):
                self.results.append(refused)
            yield
        for name, times in self._times.items():
            if times > 1:
                message = f"Topic {name!r} is named {times} times."
                topic_id = self._ids.get(name, ZERO_TOPIC_ID)
                self.results.append(_refused(name, topic_id, ErrorCode.INVALID_REQUEST, message))
            yield

    def names(self) -> list[str]:
        """The topics that are listed once, by name or by id."""
        return [name for name, times in self._times.items() if times == 1]

    def _resolve(self, topic: DeleteTopicState) -> DeletableTopicResult | None:
        name = topic.name
        if (name is None) == (topic.topic_id == ZERO_TOPIC_ID):
            message = "A topic is named by its name or by its id, and not by both."
            return _refused(name, topic.topic_id, ErrorCode.INVALID_REQUEST, message)
        if name is None:
            name = self._context.services.metadata.topic_name(topic.topic_id)
        if name is None:
            message = "There is no topic of that id."
            return _refused(None, topic.topic_id, ErrorCode.UNKNOWN_TOPIC_ID, message)
        refused = _refuse_unauthorized(name, topic, self._context)
        if refused is None:
            self._times[name] += 1
            if topic.name is None:
                self._ids[name] = topic.topic_id
        return refused


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
