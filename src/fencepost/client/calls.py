"""Requests with retries: locate, send, judge the code, refresh, back off, retry.

Every procedure uses one of these three calls, so retries are written once:

    call_one       one request to one place (any broker, a coordinator, the controller, one broker)
    call_leaders   one item per partition, sent to its leader; each partition is judged separately
    call_all_brokers  the same request to every broker of the cluster

`Attempt` holds the retry state of one call: a deadline, a backoff that doubles with jitter, and the
last answer, which the error quotes when the deadline has passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from fencepost.base.errors import ErrorCode, error_name
from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.base.seams import Clock, Randomness
from fencepost.client.failures import ClosedByBroker, RetriesExhausted, refusal
from fencepost.client.options import ClientOptions, Endpoint
from fencepost.client.reactions import Reaction, reaction
from fencepost.client.routes import CoordinatorKey, Routes
from fencepost.client.steps import Lost, Pause, Reply, Send, Steps, exchange, exchange_all
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

UNKNOWN_TOPIC_PATIENCE_MS: Final = 1_000
"""How long to retry "unknown topic", because the broker may not have the new topic's metadata yet.
Kafka propagates it in tens of milliseconds; a mistyped name should not cost the user a minute."""

CONCURRENT_TRANSACTIONS_BACKOFF_MS: Final = 20
"""Writing the markers of the last transaction takes milliseconds. librdkafka and the Java client
wait this long too before they retry."""

FIRST_SETUP_MS: Final = 500
"""How long setting up a connection (TCP, TLS, ApiVersions, login) may take at first, if another
broker can be asked instead. A login over seven round trips of 70 ms fits; a slower one succeeds in
a later round, which waits longer."""

MAX_CLOSED: Final = 3
"""How often a broker may close the connection instead of answering an administrative request. A
broker does that with a request that it cannot read; one that dies or restarts refuses a connection
in between."""

ADMINISTRATIVE: Final = frozenset(
    {
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.CREATE_ACLS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_ACLS,
        ApiKey.DELETE_GROUPS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.LIST_GROUPS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_TRANSACTIONS,
    }
)
"""The calls that fail then. Calls that write, commit or read retry until their deadline, because a
transaction must survive any connection trouble that its deadline allows."""

UNKNOWN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""The topic does not exist, or no longer exists."""


class Core:
    """What all procedures of one client share."""

    def __init__(self, options: ClientOptions, clock: Clock, randomness: Randomness) -> None:
        self.options = options
        self.clock = clock
        self.randomness = randomness
        self.routes = Routes(options.bootstrap)
        self.transaction_version: int | None = None


class AnyBroker(NamedTuple):
    """Any broker that answers."""


class Controller(NamedTuple):
    """The controller named by Metadata; in KRaft clusters, a broker that forwards to it."""


class BrokerById(NamedTuple):
    """One broker by its id."""

    node_id: int


CodeOf = Callable[[Any], tuple[int, str | None]]
"""Returns the code of a reply that counts, and the broker's message, if any."""

Place = AnyBroker | Controller | BrokerById | CoordinatorKey


class Attempt:
    """The retry state of one call: deadline, backoff and last answer."""

    def __init__(self, core: Core, api: ApiKey, about: str, timeout_ms: int | None = None) -> None:
        self.api = api
        self.about = about
        self.timeout_ms = core.options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        self.last = "none"
        self._core = core
        self._deadline_ms = core.clock.now_ms() + self.timeout_ms
        self._tries = 0
        self._times_closed: dict[Endpoint, int] = {}
        self._times_lost: dict[Endpoint, int] = {}
        self._losses: dict[Endpoint, str] = {}
        """Why each broker that was asked since the last answer did not answer."""
        self._unknown_since_ms: int | None = None
        self._quick = False

    @property
    def what(self) -> str:
        """The call, in words for an error message."""
        name = API[self.api].name
        return f"{name} for {self.about}" if self.about else name

    @property
    def left_ms(self) -> int:
        """The time until the deadline of the call."""
        return self._deadline_ms - self._core.clock.now_ms()

    def request_timeout_ms(self, extra_ms: int = 0) -> int:
        """The timeout of the next request, limited by the deadline of the call."""
        return max(1, min(self._core.options.request_timeout_ms + extra_ms, self.left_ms))

    def send_to_any(self, api: ApiKey, request: Any, at_most: int | None = None) -> Send:
        """A request to any broker. It must be one that may be repeated.

        A broker that does not answer leaves time to ask another one: setting up a connection to it
        may take FIRST_SETUP_MS, twice as long after each failure, and its answer half of the time
        that is left. The last broker to ask may take as long as any.
        """
        routes = self._core.routes
        endpoint = routes.any_broker()
        timeout_ms, setup_ms = self.request_timeout_ms(), None
        if routes.has_other(endpoint):
            timeout_ms = max(1, min(timeout_ms, self.left_ms // 2))
            setup_ms = self._setup_ms(endpoint)
        return Send(endpoint, api, request, timeout_ms, at_most, setup_ms)

    def _setup_ms(self, endpoint: Endpoint) -> int:
        limit_ms = self._core.options.connection_setup_timeout_ms
        return min(FIRST_SETUP_MS << min(self._times_lost.get(endpoint, 0), 10), limit_ms)

    def lost(self, endpoint: Endpoint, answer: Lost) -> None:
        """Notes a lost request and marks the broker as suspect."""
        self._losses[endpoint] = answer.reason
        self._times_lost[endpoint] = self._times_lost.get(endpoint, 0) + 1
        self.last = "; ".join(f"{each}: {reason}" for each, reason in self._losses.items())
        self._quick = False
        self._core.routes.suspect(endpoint)
        times = self._times_closed.get(endpoint, 0) + 1 if answer.closed_by_broker else 0
        self._times_closed[endpoint] = times
        if times >= MAX_CLOSED and self.api in ADMINISTRATIVE:
            raise ClosedByBroker(self.what, str(endpoint), times)

    def judge(
        self,
        api: ApiKey,
        code: int,
        *,
        about: str = "",
        message: str | None = None,
        partition: TopicPartition | None = None,
    ) -> Reaction:
        """Returns the reaction to this code; raises if a retry cannot help."""
        verdict = reaction(api, code)
        if verdict is Reaction.SUCCEED:
            return verdict
        about = about or self.about
        if not verdict.is_retriable or self.is_missing_for_long(code):
            raise refusal(API[api].name, code, about=about, message=message, partition=partition)
        self._losses.clear()
        self.last = (
            f"{API[api].name} for {about}: {error_name(code)}" if about else error_name(code)
        )
        self._quick = code == ErrorCode.CONCURRENT_TRANSACTIONS
        return verdict

    def is_missing_for_long(self, code: int) -> bool:
        """Whether the cluster has answered "unknown topic" for long enough to believe it."""
        if code not in UNKNOWN:
            return False
        now_ms = self._core.clock.now_ms()
        if self._unknown_since_ms is None:
            self._unknown_since_ms = now_ms
        return now_ms - self._unknown_since_ms >= UNKNOWN_TOPIC_PATIENCE_MS

    def pause(self) -> Steps[None]:
        """Backs off; raises RetriesExhausted if the deadline would pass before the retry."""
        pause_ms = self._backoff_ms()
        self._tries += 1
        if self._core.clock.now_ms() + pause_ms >= self._deadline_ms:
            raise RetriesExhausted(self.what, self.timeout_ms, self.last)
        log.debug("%s: %s; again in %d ms", self.what, self.last, pause_ms)
        yield Pause(pause_ms)

    def _backoff_ms(self) -> int:
        if self._quick:
            return CONCURRENT_TRANSACTIONS_BACKOFF_MS
        return backoff_ms(self._core, self._tries)


def backoff_ms(core: Core, tries: int) -> int:
    """Kafka's backoff: it doubles up to a maximum, with 20 % jitter."""
    options = core.options
    full = min(options.retry_backoff_ms << min(tries, 20), options.retry_backoff_max_ms)
    jitter = core.randomness.bytes(1)[0] / 255 * 0.4 - 0.2
    return max(0, round(full * (1 + jitter)))


# One request, one place.


def call_one(
    core: Core,
    place: Place,
    api: ApiKey,
    request: Any,
    code_of: CodeOf,
    *,
    about: str = "",
    at_most: int | None = None,
    attempt: Attempt | None = None,
) -> Steps[Reply]:
    """Retries until a reply's code is success, and returns that reply."""
    attempt = attempt or Attempt(core, api, about)
    while True:
        if isinstance(place, AnyBroker):
            send = attempt.send_to_any(api, request, at_most)
        else:
            endpoint = yield from locate(core, place, attempt)
            send = Send(endpoint, api, request, attempt.request_timeout_ms(), at_most)
        answer = yield from exchange(send)
        if isinstance(answer, Lost):
            attempt.lost(send.endpoint, answer)
            if isinstance(place, BrokerById):
                # It may return at another address.
                core.routes.forget_broker(place.node_id)
        else:
            core.routes.trust(send.endpoint)
            code, message = code_of(answer.form)
            verdict = attempt.judge(api, code, message=message)
            if verdict is Reaction.SUCCEED:
                return answer
            _forget(core.routes, place, verdict)
        yield from attempt.pause()


def error_code(form: Any) -> tuple[int, str | None]:
    """Returns a reply's top-level error code, and its message if there is one."""
    return form.error_code, getattr(form, "error_message", None)


def only(results: str) -> CodeOf:
    """Makes a `code_of` for replies with one result, in the field of this name."""
    return lambda form: error_code(getattr(form, results)[0])


def _forget(routes: Routes, place: Place, verdict: Reaction) -> None:
    if verdict is Reaction.REFRESH_COORDINATOR and isinstance(place, CoordinatorKey):
        routes.forget_coordinator(place)
    if verdict is Reaction.REFRESH_METADATA and isinstance(place, Controller):
        controller = routes.broker(routes.controller_id)
        if controller is not None:
            routes.trust(controller)  # A broker that does not forward has sent us back to it.
        routes.forget_controller()


def locate(core: Core, place: Place, attempt: Attempt) -> Steps[Endpoint]:
    """Returns the endpoint of a place, and looks it up in the cluster if it is unknown."""
    match place:
        case AnyBroker():
            return core.routes.any_broker()
        case CoordinatorKey():
            return (yield from _locate_coordinator(core, place, attempt))
        case Controller():
            return (yield from _locate_controller(core, attempt))
        case BrokerById(node_id):
            return (yield from _locate_broker(core, node_id, attempt))


def _locate_controller(core: Core, attempt: Attempt) -> Steps[Endpoint]:
    if core.routes.controller_id == NO_NODE:
        yield from refresh_metadata(core, (), attempt)
    controller = core.routes.broker(core.routes.controller_id)
    if controller is None or core.routes.is_suspect(controller):
        # In KRaft clusters any broker forwards.
        return core.routes.any_broker()
    return controller


def _locate_broker(core: Core, node_id: int, attempt: Attempt) -> Steps[Endpoint]:
    while (endpoint := core.routes.broker(node_id)) is None:
        yield from refresh_metadata(core, (), attempt)
        if core.routes.broker(node_id) is None:
            attempt.last = f"the cluster has no live broker {node_id}"
            yield from attempt.pause()
    return endpoint


def _locate_coordinator(core: Core, key: CoordinatorKey, attempt: Attempt) -> Steps[Endpoint]:
    known = core.routes.coordinator(key)
    while known is None:
        request = FindCoordinatorRequest(key_type=int(key.kind), coordinator_keys=[key.name])
        send = attempt.send_to_any(ApiKey.FIND_COORDINATOR, request)
        answer = yield from exchange(send)
        if isinstance(answer, Lost):
            attempt.lost(send.endpoint, answer)
        else:
            core.routes.trust(send.endpoint)
            known = _learn_coordinator(core, key, answer.form, attempt)
        if known is None:
            yield from attempt.pause()
    return known


def _learn_coordinator(
    core: Core, key: CoordinatorKey, form: FindCoordinatorResponse, attempt: Attempt
) -> Endpoint | None:
    (found,) = form.coordinators
    verdict = attempt.judge(
        ApiKey.FIND_COORDINATOR, found.error_code, about=str(key), message=found.error_message
    )
    if verdict is not Reaction.SUCCEED:
        return None
    endpoint = Endpoint(found.host, found.port)
    core.routes.learn_coordinator(key, found.node_id, endpoint)
    return endpoint


# Metadata.


def refresh_metadata(
    core: Core, topics: Collection[str] | None, attempt: Attempt
) -> Steps[MetadataResponse]:
    """Sends Metadata for these topics: None for all topics, an empty list for brokers only."""
    request = MetadataRequest(
        topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
    )
    while True:
        send = attempt.send_to_any(ApiKey.METADATA, request)
        answer = yield from exchange(send)
        if isinstance(answer, Reply):
            core.routes.trust(send.endpoint)
            core.routes.learn_metadata(answer.form, core.clock.now_ms())
            form: MetadataResponse = answer.form
            return form
        attempt.lost(send.endpoint, answer)
        yield from attempt.pause()


def find_leaders(
    core: Core, partitions: Collection[TopicPartition], attempt: Attempt
) -> Steps[dict[Endpoint, list[TopicPartition]]]:
    """Groups partitions by the endpoint of their leader.

    Leaves out partitions without a leader, and at first also unknown ones.
    """
    yield from refresh_stale(core, partitions, attempt)
    found: dict[Endpoint, list[TopicPartition]] = {}
    for partition in partitions:
        endpoint = core.routes.leader(partition)
        if endpoint is None:
            _judge_leaderless(core, partition, attempt)
        else:
            found.setdefault(endpoint, []).append(partition)
    return found


def refresh_stale(
    core: Core, partitions: Iterable[TopicPartition], attempt: Attempt
) -> Steps[None]:
    """Sends Metadata for the topics of these partitions whose metadata is too old."""
    max_age_ms = core.options.metadata_max_age_ms
    now_ms = core.clock.now_ms()
    stale = sorted(
        {p.topic for p in partitions if not core.routes.fresh(p.topic, now_ms, max_age_ms)}
    )
    if stale:
        yield from refresh_metadata(core, stale, attempt)


def leaderless_code(core: Core, partition: TopicPartition) -> int:
    """Returns why the cached metadata has no leader for a partition."""
    route = core.routes.topics.get(partition.topic)
    if route is not None and route.error_code:
        return route.error_code
    if route is not None and partition.partition not in route.leaders:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.LEADER_NOT_AVAILABLE


def _judge_leaderless(core: Core, partition: TopicPartition, attempt: Attempt) -> None:
    """Fails the call for an unknown or unauthorised topic, but not for a missing leader."""
    code = leaderless_code(core, partition)
    core.routes.forget_topics([partition.topic])
    attempt.judge(ApiKey.METADATA, code, about=str(partition), partition=partition)


# One item per partition, by leader.


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """One partition's part of a reply."""

    partition: TopicPartition
    code: int
    value: R
    message: str | None = None


def call_leaders(
    core: Core,
    api: ApiKey,
    items: Mapping[TopicPartition, T],
    build: Callable[[Mapping[TopicPartition, T]], Any],
    read: Callable[[Reply], Iterable[Outcome[R]]],
    *,
    extra_ms: int = 0,
    partial: bool = False,
    at_most: int | None = None,
) -> Steps[dict[TopicPartition, R]]:
    """Returns a value per partition.

    With `partial`, returns as soon as there are some (a fetch must not wait for all).
    """
    attempt = Attempt(core, api, "")
    pending = dict(items)
    done: dict[TopicPartition, R] = {}
    while pending:
        leaders = yield from find_leaders(core, pending, attempt)
        sends = [
            Send(
                endpoint,
                api,
                build({p: pending[p] for p in group}),
                attempt.request_timeout_ms(extra_ms),
                at_most,
            )
            for endpoint, group in leaders.items()
        ]
        answers = yield from exchange_all(sends)
        for send, answer in zip(sends, answers, strict=True):
            if isinstance(answer, Lost):
                attempt.lost(send.endpoint, answer)
                continue
            core.routes.trust(send.endpoint)
            _judge_outcomes(core, attempt, read(answer), pending, done)
        if not pending or (partial and done):
            return done
        yield from attempt.pause()
    return done


def _judge_outcomes(
    core: Core,
    attempt: Attempt,
    outcomes: Iterable[Outcome[R]],
    pending: dict[TopicPartition, Any],
    done: dict[TopicPartition, R],
) -> None:
    for outcome in outcomes:
        partition = outcome.partition
        if partition not in pending:
            continue
        verdict = attempt.judge(
            attempt.api,
            outcome.code,
            about=str(partition),
            message=outcome.message,
            partition=partition,
        )
        if verdict is Reaction.SUCCEED:
            del pending[partition]
            done[partition] = outcome.value
        elif verdict is Reaction.REFRESH_METADATA:
            core.routes.forget_topics([partition.topic])


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns sorted partition indexes by topic, the shape of most requests."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics


# All brokers.


def call_all_brokers(
    core: Core, api: ApiKey, request: Any, code_of: CodeOf
) -> Steps[dict[int, Any]]:
    """Returns the reply of every broker, by broker id.

    If one does not answer, all that are left are asked again: another has taken over what it had.
    """
    attempt = Attempt(core, api, "")
    while True:
        yield from refresh_metadata(core, (), attempt)
        brokers = dict(sorted(core.routes.brokers.items()))
        sends = [
            Send(endpoint, api, request, attempt.request_timeout_ms())
            for endpoint in brokers.values()
        ]
        answers = yield from exchange_all(sends)
        replies = {
            node_id: answer.form
            for (node_id, endpoint), answer in zip(brokers.items(), answers, strict=True)
            if isinstance(answer, Reply) and _is_success(core, attempt, endpoint, answer, code_of)
        }
        for send, answer in zip(sends, answers, strict=True):
            if isinstance(answer, Lost):
                attempt.lost(send.endpoint, answer)
        if len(replies) == len(brokers):
            return replies
        yield from attempt.pause()


def _is_success(
    core: Core,
    attempt: Attempt,
    endpoint: Endpoint,
    answer: Reply,
    code_of: CodeOf,
) -> bool:
    core.routes.trust(endpoint)
    code, message = code_of(answer.form)
    verdict = attempt.judge(attempt.api, code, about=str(endpoint), message=message)
    return verdict is Reaction.SUCCEED
