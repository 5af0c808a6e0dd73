"""aiokafka, with a check that its consumer needs when coordinators move.

aiokafka 0.14 ignores the error of a whole OffsetFetch reply (NOT_COORDINATOR, or a coordinator that
is loading), and says that nothing was committed. A program that believes it starts again from the
first record, and copies everything twice; and it never looks for the new coordinator. In a run
every group has committed offsets from the start, so "nothing" is always this error.
"""

from __future__ import annotations

from fencepost_examples.refunds.processor.ports import FatalError
from fencepost_examples.refunds.processor.with_aiokafka import AioKafka


class CheckedAioKafka(AioKafka):
    """One shard, whose group has committed offsets."""

    async def _rewind(self) -> None:
        for place in self._source:
            committed = await self._consumer.committed(place)
            if committed is None:
                raise FatalError(f"aiokafka ignored an error of OffsetFetch for {place}")
            self._consumer.seek(place, committed)
