"""Producer ids, handed out of a block that the metadata log has reserved for this node.

A block is durable before its first id is given away, and what is left of it when the node stops is
never used: after a restart the next block begins. So no two producers ever have the same id,
whatever crashes when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    Reserve = Callable[[Callable[[range | None], None]], None]
    """Asks for a block; the answer is the block, or None when it could not be reserved."""


class ProducerIds:
    """What is left of the block of this node, and who waits for the next one."""

    def __init__(self, reserve: Reserve) -> None:
        self._reserve: Final = reserve
        self._left = range(0)
        self._waiting: list[Callable[[int | None], None]] = []

    def allocate(self, done: Callable[[int | None], None]) -> None:
        """The next id, at once while there is one."""
        if self._left and not self._waiting:
            done(self._take())
            return
        self._waiting.append(done)
        if len(self._waiting) == 1:
            self._reserve(self._reserved)

    def _take(self) -> int:
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
            # More may have come than a block holds; they go back into the queue and the next block.
            self.allocate(done)
