"""The commands that findings propose, as a shell accepts them.

Ids may hold any character, and one that begins with a dash looks like an option: it goes after
`--`, behind the options that name the cluster.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.base.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Proposal:
    """A command of `fencepost`; the caller adds the options that name the cluster."""

    words: tuple[str, ...]
    operand: str
    options: tuple[str, ...] = ()

    def text(self, arguments: Sequence[str] = ()) -> str:
        """Returns the line to type."""
        options = [*self.options, *arguments]
        if self.operand.startswith("-"):
            return shlex.join(["fencepost", *self.words, *options, "--", self.operand])
        return shlex.join(["fencepost", *self.words, self.operand, *options])

    def __str__(self) -> str:
        return self.text()


def fence_command(transactional_id: str) -> Proposal:
    """Ends an id's transaction and fences its producer."""
    return Proposal(("txn", "fence"), transactional_id)


def describe_command(transactional_id: str) -> Proposal:
    """Describes an id."""
    return Proposal(("txn", "describe"), transactional_id)


def abort_command(partition: TopicPartition, producer_id: int, start_offset: int) -> Proposal:
    """Aborts a transaction on one partition."""
    options = ("--producer-id", str(producer_id), "--start-offset", str(start_offset))
    return Proposal(("txn", "abort"), str(partition), options)
