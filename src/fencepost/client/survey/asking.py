"""Requests about many partitions or brokers of which some may not answer.

Theory of operation. The calls of `calls.py` succeed as a whole or raise, and retry until their
deadline: right for a pipeline, wrong for a person who wants to see what is left of a cluster. The
calls here return an answer or a `Missing` for each item and never raise for one of them:

- an error that a retry may fix (a leader that moved, a coordinator that is loading) is retried
  until PATIENCE_MS have passed;
- a refusal, such as a missing permission, is final for its item alone;
- a broker that does not answer within REPLY_MS is not asked again; its items are missing.

Requests have at most MAX_ITEMS items, so that each is answered in time and memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fencepost.base.errors import ErrorCode, error_name
from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.client.calls import (
    UNKNOWN,
    Attempt,
    Core,
    Outcome,
    leaderless_code,
    refresh_metadata,
    refresh_stale,
)
from fencepost.client.options import Endpoint
from fencepost.client.reactions import Reaction, reaction
from fencepost.client.steps import Lost, Pause, Reply, Send, Steps, exchange_all
from fencepost.wire.apis import ApiKey

T = TypeVar("T")
R = TypeVar("R")

REPLY_MS: Final = 3_000
"""How long a broker may take for a reply: a dead one is reported within three seconds."""

PATIENCE_MS: Final = 2_000
"""How long to retry what may pass, such as a coordinator that is loading."""

MAX_ITEMS: Final = 2_000
_BACKOFF_MS: Final = 150


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no answer: the broker's error code, or 0 if it did not answer."""

    reason: str
    code: int = 0
    broker: int = NO_NODE
    """The broker that did not answer; NO_NODE if one did."""


class _Round:
    """The open items of a survey, the answers so far, and the time that is left."""

    def __init__(self, core: Core, items: Iterable[Any]) -> None:
        self._core = core
        self._end_ms = core.clock.now_ms() + PATIENCE_MS
        self._seen_unknown: set[Any] = set()
        self._items = tuple(items)
        self.open = dict.fromkeys(self._items)
        self.found: dict[Any, Any] = {}

    def note_answer(self, item: Any, value: Any) -> None:
        """Notes an answer."""
        self.found[item] = value
        self.open.pop(item, None)

    def refuse(self, api: ApiKey, item: Any, code: int, message: str | None) -> None:
        """Notes an error code; the item stays open if a retry may help."""
        words = f"{error_name(code)}: {message}" if message else error_name(code)
        self.found[item] = Missing(words, code)
        if code in UNKNOWN and item not in self._seen_unknown:
            # A new topic is not known to every broker at once.
            self._seen_unknown.add(item)
        elif code in UNKNOWN or not reaction(api, code).is_retriable:
            del self.open[item]

    def lose(self, items: Iterable[Any], broker: int, endpoint: Endpoint, answer: Lost) -> None:
        """Gives up items of a broker that did not answer."""
        self._core.routes.suspect(endpoint)
        reason = f"broker {broker} at {endpoint} did not answer: {answer.reason}"
        for item in items:
            self.note_answer(item, Missing(reason, broker=broker))

    def result(self) -> dict[Any, Any]:
        """Returns an answer or a reason for every item, in their order."""
        silent = Missing("the broker's reply leaves it out")
        return {item: self.found.get(item, silent) for item in self._items}

    def pause(self) -> Steps[bool]:
        """Waits before the next round; False if none is needed or the time is up."""
        if not self.open or self._core.clock.now_ms() + _BACKOFF_MS >= self._end_ms:
            return False
        yield Pause(_BACKOFF_MS)
        return True


def ask_leaders(
    core: Core,
    api: ApiKey,
    items: Mapping[TopicPartition, T],
    build: Callable[[Mapping[TopicPartition, T]], Any],
    read: Callable[[Reply], Iterable[Outcome[R]]],
    *,
    at_most: int | None = None,
) -> Steps[dict[TopicPartition, R | Missing]]:
    """Asks the leader of each partition; every partition is in the result."""
    state = _Round(core, items)
    while True:
        asked = yield from _by_leader(core, api, state)
        sends = [
            Send(endpoint, api, build({p: items[p] for p in group}), REPLY_MS, at_most)
            for _, endpoint, group in asked
        ]
        answers = yield from exchange_all(sends)
        for (broker, endpoint, group), answer in zip(asked, answers, strict=True):
            if isinstance(answer, Lost):
                state.lose(group, broker, endpoint, answer)
                continue
            core.routes.trust(endpoint)
            _note_outcomes(core, api, state, read(answer))
        if not (yield from state.pause()):
            return state.result()


def _note_outcomes(
    core: Core, api: ApiKey, state: _Round, outcomes: Iterable[Outcome[Any]]
) -> None:
    for outcome in outcomes:
        if outcome.partition not in state.open:
            continue
        if reaction(api, outcome.code) is Reaction.SUCCEED:
            state.note_answer(outcome.partition, outcome.value)
        else:
            state.refuse(api, outcome.partition, outcome.code, outcome.message)
            core.routes.forget_topics([outcome.partition.topic])


def _by_leader(
    core: Core, api: ApiKey, state: _Round
) -> Steps[list[tuple[int, Endpoint, list[TopicPartition]]]]:
    """Returns the open partitions by leader, in groups of at most MAX_ITEMS."""
    yield from refresh_stale(core, state.open, Attempt(core, api, ""))
    groups: dict[tuple[int, Endpoint], list[TopicPartition]] = {}
    for partition in list(state.open):
        endpoint = core.routes.leader(partition)
        if endpoint is not None:
            leaders = core.routes.topics[partition.topic].leaders
            broker = leaders[partition.partition].node_id
            groups.setdefault((broker, endpoint), []).append(partition)
            continue
        code = leaderless_code(core, partition)
        if code == ErrorCode.LEADER_NOT_AVAILABLE:
            state.refuse(api, partition, code, "it has no leader")
            core.routes.forget_topics([partition.topic])
        else:
            state.refuse(api, partition, code, None)
    return [
        (broker, endpoint, some)
        for (broker, endpoint), group in groups.items()
        for some in chunks(group)
    ]


def ask_brokers(
    core: Core,
    api: ApiKey,
    requests: Mapping[int, Any],
    code_of: Callable[[Any], tuple[int, str | None]],
) -> Steps[dict[int, Any | Missing]]:
    """Asks brokers by their id; every broker is in the result, with its reply's form."""
    state = _Round(core, requests)
    while True:
        known = {broker: core.routes.broker(broker) for broker in state.open}
        asked = [(broker, place) for broker, place in known.items() if place is not None]
        for broker in known.keys() - dict(asked).keys():
            state.note_answer(
                broker, Missing(f"broker {broker} is not in the cluster", broker=broker)
            )
        sends = [Send(place, api, requests[broker], REPLY_MS) for broker, place in asked]
        answers = yield from exchange_all(sends)
        for (broker, place), answer in zip(asked, answers, strict=True):
            if isinstance(answer, Lost):
                state.lose([broker], broker, place, answer)
                continue
            core.routes.trust(place)
            code, message = code_of(answer.form)
            if reaction(api, code) is Reaction.SUCCEED:
                state.note_answer(broker, answer.form)
            else:
                state.refuse(api, broker, code, message)
        if not (yield from state.pause()):
            return state.result()


def ask_all_brokers(
    core: Core,
    api: ApiKey,
    request: Any,
    code_of: Callable[[Any], tuple[int, str | None]],
) -> Steps[dict[int, Any | Missing]]:
    """Asks every live broker of the cluster the same."""
    yield from refresh_metadata(core, (), Attempt(core, api, ""))
    requests = dict.fromkeys(sorted(core.routes.brokers), request)
    return (yield from ask_brokers(core, api, requests, code_of))


def chunks(items: Collection[T], size: int = MAX_ITEMS) -> Iterable[list[T]]:
    """Splits items into lists of at most `size`."""
    ordered = list(items)
    return (ordered[start : start + size] for start in range(0, len(ordered), size))
