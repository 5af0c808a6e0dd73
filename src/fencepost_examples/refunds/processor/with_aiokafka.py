"""The adapter for aiokafka. It runs an event loop in a thread, because the processor blocks.

Three things that users of aiokafka 0.14 must know:

- A message that was not delivered does not fail the commit, so check every delivery before it.
- After an error it forgets which partitions are in the transaction, and its abort sends nothing to
  the broker: what was written would be committed with the next transaction. So this adapter creates
  a new producer after an error, whose `init_transactions` makes the broker abort.
- After a fatal error every call fails with an assertion of its state machine.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalOperation, KafkaError, KafkaTimeoutError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from fencepost_examples.refunds.processor.ports import (
    AbortableError,
    FatalError,
    FencedError,
    KafkaFailure,
    Message,
    Place,
    RetriableError,
)

T = TypeVar("T")

MAX_MESSAGES: Final = 100


class AioKafka:
    """One shard: a transactional id and its source partitions."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        transactional_id: str,
        group: str,
        source: Sequence[Place],
        timeout_seconds: float = 10.0,
        **settings: Any,
    ) -> None:
        self._timeout = timeout_seconds
        self._group = group
        self._source = [TopicPartition(topic, index) for topic, index in source]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._sent: list[asyncio.Future[Any]] = []
        self._ending: asyncio.Task[None] | None = None
        self._has_failed = False
        self._closed = False
        self._bootstrap_servers = bootstrap_servers
        self._settings = {"transactional_id": transactional_id, **settings}
        self._consumer = self._run(self._start_consumer())
        self._producer = self._run(self._new_producer())

    async def _new_producer(self) -> AIOKafkaProducer:
        """aiokafka requires that its constructor runs in the loop."""
        return AIOKafkaProducer(bootstrap_servers=self._bootstrap_servers, **self._settings)

    async def _start_consumer(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap_servers,
            group_id=self._group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        consumer.assign(self._source)
        return consumer

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def init_transactions(self) -> None:
        with self._translated(FatalError):
            self._run(self._producer.start())

    def poll(self) -> Sequence[Message]:
        with self._translated(RetriableError):
            found = self._run(self._consumer.getmany(timeout_ms=500, max_records=MAX_MESSAGES))
        return [
            Message(record.topic, record.partition, record.offset, record.value)
            for records in found.values()
            for record in records
        ]

    def begin(self) -> None:
        self._sent.clear()
        self._has_failed = False
        with self._translated(FatalError):
            self._run(self._producer.begin_transaction())

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        with self._translated(AbortableError):
            sent = self._run(self._producer.send(topic, value, key))
        sent.add_done_callback(_seen)
        self._sent.append(sent)

    def send_offsets(self, offsets: Mapping[Place, int]) -> None:
        positions = {
            TopicPartition(*place): OffsetAndMetadata(offset, "")
            for place, offset in offsets.items()
        }
        with self._translated(AbortableError):
            self._run(self._producer.send_offsets_to_transaction(positions, self._group))

    def commit(self) -> None:
        with self._translated(AbortableError):
            self._run(self._end(self._commit()))

    async def _commit(self) -> None:
        await self._producer.flush()
        for sent in self._sent:
            await sent
        await self._producer.commit_transaction()

    def abort(self) -> None:
        failed = self._has_failed
        with self._translated(FatalError):
            self._run(self._replace_producer() if failed else self._end(self._abort()))

    async def _abort(self) -> None:
        await self._producer.abort_transaction()

    async def _replace_producer(self) -> None:
        await self._stop_producer()
        self._ending = None
        self._producer = await self._new_producer()
        await self._producer.start()

    async def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        """Waits up to the timeout; a second call continues to wait for the same ending."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(ending)
        else:
            ending.close()
        try:
            await asyncio.wait_for(asyncio.shield(self._ending), self._timeout)
        except TimeoutError:
            raise
        except BaseException:
            self._ending = None
            raise
        self._ending = None

    def rewind(self) -> None:
        with self._translated(RetriableError):
            self._run(self._rewind())

    async def _rewind(self) -> None:
        for place in self._source:
            committed = await self._consumer.committed(place)
            if committed is None:
                await self._consumer.seek_to_beginning(place)
            else:
                self._consumer.seek(place, committed)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._run(self._disconnect())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _stop_producer(self) -> None:
        """Stops the producer with a timeout: after a failure it could wait forever."""
        with suppress(KafkaError, TimeoutError):
            await asyncio.wait_for(self._producer.stop(), self._timeout)

    async def _disconnect(self) -> None:
        await self._consumer.stop()
        await self._stop_producer()
        if self._ending is not None:
            self._ending.cancel()

    @contextmanager
    def _translated(self, otherwise: type[KafkaFailure]) -> Iterator[None]:
        """Maps aiokafka's errors to the four kinds; `otherwise` depends on the call."""
        try:
            yield
        except ProducerFenced as problem:
            raise FencedError(str(problem)) from problem
        except (TimeoutError, KafkaTimeoutError) as problem:
            raise RetriableError("no answer in time") from problem
        except (IllegalOperation, AssertionError) as problem:
            raise self._run(self._reason(problem)) from problem
        except KafkaError as problem:
            self._has_failed = True
            raise otherwise(str(problem)) from problem

    async def _reason(self, problem: Exception) -> KafkaFailure:
        """Finds the earlier error that ended the transaction."""
        deliveries = [sent.exception() for sent in self._sent if sent.done()]
        if any(isinstance(told, ProducerFenced) for told in deliveries):
            return FencedError(str(problem))
        try:
            await self._producer.commit_transaction()  # Cannot succeed, but raises the error.
        except KafkaError as earlier:
            self._has_failed = True
            return AbortableError(str(earlier))
        except AssertionError:
            pass
        return FatalError(str(problem))


def _seen(sent: asyncio.Future[Any]) -> None:
    """Retrieves the exception, so that asyncio does not log it: the commit raises it."""
    if not sent.cancelled():
        sent.exception()
