"""The queue of batches that are opened beside the loop's other work."""

from __future__ import annotations

import asyncio

from fencepost.broker.partitions.batch_opener import Opener
from fencepost.log.config import LogConfig
from fencepost.partition.opening import Opening
from fencepost.records.batch import read_header
from tests.broker.requests import batch_of


def opening() -> Opening:
    return Opening(read_header(memoryview(batch_of(b"value"))), LogConfig())


def test_a_request_that_goes_on_may_queue_the_batches_of_the_next_one() -> None:
    """The replies that it sends may let another request in, within the same call."""
    fatal: list[str] = []
    opened: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: fatal.append(str(context)))
        opener = Opener(fatal.append)
        opener.attach(loop)
        done = asyncio.Event()

        def go_on(number: int) -> None:
            opened.append(number)
            if number < 20:
                opener.open([opening(), opening()], lambda: go_on(number + 1))
            else:
                done.set()

        opener.open([opening()], lambda: go_on(0))
        await asyncio.wait_for(done.wait(), 30)

    asyncio.run(run())
    assert fatal == []
    assert opened == list(range(21))
