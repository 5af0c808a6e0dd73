"""Producer ids, assigned from a block that the controller has reserved for this broker.

A block is durable before its first id is assigned. The rest of a block is never used after a
restart, which starts with the next block. So no two producers ever have the same id, whenever the
broker crashes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    Reserve = Callable[[Callable[[range | None], None]], None]
    """Reserves a block; calls back with it, or with None if that failed."""


class ProducerIds:
    """The rest of the current block, and the callers that wait for the next one."""

    def __init__(self, reserve: Reserve) -> None:
        self._reserve: Final = reserve
        self._left = range(0)
        self._waiting: list[Callable[[int | None], None]] = []

    def allocate(self, done: Callable[[int | None], None]) -> None:
        """Calls back with the next id, at once if the block has one; None without a new block."""
        if self._left and not self._waiting:
            done(self._next_id())
            return
        self._waiting.append(done)
        if len(self._waiting) == 1:
            self._reserve(self._reserved)

    def _next_id(self) -> int:
        producer_id = self._left[0]
        self._left = self._left[1:]
        return producer_id

    def _reserved(self, block: range | None) -> None:
        waiting, self._waiting = self._waiting, []
        if block is None:
            for done in waiting:
                done(None)
            return
        assert not self._left, "a block is reserved when the last one is used up"
        self._left = block
        for done in waiting:
            # If more callers wait than a block has ids, the rest wait for the next block.
            self.allocate(done)
