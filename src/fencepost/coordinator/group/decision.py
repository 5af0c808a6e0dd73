"""The result of deciding an event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fencepost.coordinator.group.events import (
    AssignmentLost,
    AssignmentWritten,
    Join,
    JoinLost,
    JoinReply,
    StaticMemberReplaced,
    SyncReply,
)
from fencepost.records.group_log import LogRecord

Sequel = Join | AssignmentWritten | AssignmentLost | StaticMemberReplaced | JoinLost
"""Events that only a decision causes."""


class Answer(NamedTuple):
    """A reply to a request that waits under a ticket."""

    ticket: int
    reply: JoinReply | SyncReply


@dataclass(slots=True)
class Decision:
    """Records to append as one batch, and the replies to send once they are durable.

    If the append succeeds, `then` is decided next, on the state after the records; if it fails,
    nothing was applied and `otherwise` is decided. `reply` is for the caller that caused the event
    and does not wait under a ticket.
    """

    records: list[LogRecord] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    reply: object = None
    then: Sequel | None = None
    otherwise: Sequel | None = None
