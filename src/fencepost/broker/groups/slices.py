"""A commit of very many offsets, served as several smaller commits, one per turn of the loop.

Each partition of a commit has its own error in the reply, so the partitions of one request need not
be committed together. Every slice is checked again: if the group rebalances or the transaction ends
in between, the remaining partitions get the error of that moment.

A slice may not do what the whole request could not have done when it arrived:

- The topics are those that existed then. The offsets of a topic that is deleted in between do not
  go to a new topic of the same name.
- When the client leaves, the remaining slices are dropped. It may have committed newer offsets on
  another connection, and older ones must not follow them.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final

from fencepost.broker.turns import then
from fencepost.broker.waiting import Parked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fencepost.broker.context import Context

    TopicIds = Mapping[str, bytes | None]
    Serve = Callable[[Any, Context, TopicIds | None], object]

COMMITTED_PER_TURN: Final = 1_000
"""Offsets that are committed in one turn of the loop, at about 7 microseconds each."""


def serve_in_slices(request: Any, context: Context, serve: Serve) -> object:
    """Serves a commit, in slices if it is large; the reply lists everything as in one piece.

    `serve` gets the ids that the topics had when a sliced request arrived, by name.
    """
    items = len(request.topics) + sum(len(topic.partitions) for topic in request.topics)
    if items <= COMMITTED_PER_TURN:
        return serve(request, context, None)
    slices = _Slices(request, context, serve)
    return then(context.services.runtime, slices.find_ids(), slices.start)


class _Slices:
    """One large commit."""

    __slots__ = (
        "_context",
        "_is_abandoned",
        "_left",
        "_reply",
        "_request",
        "_serve",
        "_topic_ids",
        "parked",
    )

    def __init__(self, request: Any, context: Context, serve: Serve) -> None:
        self._request: Final = request
        self._context: Final = context
        self._serve: Final = serve
        self._left: Final = _divide(request.topics)
        self._topic_ids: Final[dict[str, bytes | None]] = {}
        self._reply: Any = None
        self._is_abandoned = False
        # The next request of this connection may depend on offsets of a later slice.
        self.parked: Final = Parked(holds_followers=True)
        self.parked.when_abandoned(self._abandon)

    def find_ids(self) -> Iterator[None]:
        """Finds the topics that exist now."""
        metadata = self._context.services.metadata
        for topic in self._request.topics:
            self._topic_ids[topic.name] = metadata.topic_id(topic.name)
            yield

    def start(self) -> Parked:
        """Serves the first slice."""
        self.serve_next()
        return self.parked

    def _abandon(self) -> None:
        self._is_abandoned = True

    def serve_next(self) -> None:
        """Serves the next slice; the one after it follows when its offsets are durable."""
        if self._is_abandoned:
            return
        found = next(self._left, None)
        if found is None:
            self.parked.answer(self._reply)
            return
        topics, continues = found
        request = copy(self._request)
        request.topics = topics
        reply = self._serve(request, self._context, self._topic_ids)
        if isinstance(reply, Parked):
            reply.when_answered(lambda answer: self._served(answer, continues))
        else:
            self._served(reply, continues)

    def _served(self, reply: Any, continues: bool) -> None:
        if self._reply is None:
            self._reply = reply
        else:
            topics = reply.topics
            if continues:
                self._reply.topics[-1].partitions += topics[0].partitions
                topics = topics[1:]
            self._reply.topics += topics
        self._context.services.runtime.call_later(0, self.serve_next)


def _divide(topics: list[Any]) -> Iterator[tuple[list[Any], bool]]:
    """The topics of each slice, and whether its first topic began in the slice before."""
    part: list[Any] = []
    room = COMMITTED_PER_TURN
    continues = False
    for topic in topics:
        start = 0
        while start < len(topic.partitions) or start == 0:
            part.append(copy(topic))
            taken = part[-1].partitions = topic.partitions[start : start + room]
            start += max(1, len(taken))
            room -= max(1, len(taken))
            if room == 0:
                yield part, continues
                part, room = [], COMMITTED_PER_TURN
                continues = start < len(topic.partitions)
    if part:
        yield part, continues
