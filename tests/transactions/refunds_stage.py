"""A broker with settlements to refund, three client libraries, and their faults."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable
from typing import Any, Final

import fencepost
from fencepost.base.seams import Clock
from fencepost_examples.refunds.processor.__main__ import connect
from fencepost_examples.refunds.processor.ports import Kafka
from fencepost_examples.refunds.processor.processor import RefundsProcessor
from fencepost_examples.refunds.processor.rows import REFUND_AUDIT, REFUNDS_EMITTED, SETTLEMENTS
from tests.broker.raw import RawClient
from tests.broker.requests import batch_of, create_topic, produce
from tests.transactions.wire import (
    GROUP,
    await_coordinator,
    committed_offset,
    committed_offsets,
    values,
)

GROUP_NAME: Final = "refunds-processor"
SHARD: Final = "refunds-processor-0"


def settlement(number: int) -> bytes:
    fields = {
        "refund_id": f"RFD-{number}",
        "amount_paise": 250_000 + number,
        "merchant": f"merchant-{number % 3}",
    }
    return json.dumps(fields).encode()


class RefundsBroker:
    """A broker with the three topics, and helpers to read them back."""

    def __init__(self, broker: fencepost.Broker, client_name: str) -> None:
        self.broker = broker
        self._client_name = client_name
        self.raw = RawClient(broker.bootstrap_servers)
        self._made: list[Kafka] = []
        self.settled = 0
        for topic in (SETTLEMENTS, REFUNDS_EMITTED, REFUND_AUDIT):
            create_topic(self.raw, topic)
        await_coordinator(self.raw, GROUP_NAME, GROUP)
        await_coordinator(self.raw, SHARD)

    def settle(self, count: int) -> None:
        """Writes this many new settlements."""
        numbers = range(self.settled, self.settled + count)
        produce(self.raw, SETTLEMENTS, batch_of(*map(settlement, numbers)))
        self.settled += count

    def connect(self, **options: Any) -> Kafka:
        kafka = connect(
            self._client_name,
            self.broker.bootstrap_servers,
            transactional_id=SHARD,
            group=GROUP_NAME,
            source=[(SETTLEMENTS, 0)],
            **options,
        )
        self._made.append(kafka)
        return kafka

    def work(self, kafka: Kafka | None = None) -> None:
        """A new instance processes all settlements."""
        shard = RefundsProcessor(kafka or self.connect())
        shard.start()
        self.finish(shard)

    def finish(self, shard: RefundsProcessor) -> None:
        for _ in range(50):
            if self.offset() == self.settled:
                return
            shard.process_some()
        raise AssertionError(f"only {self.offset()} of {self.settled} settlements are settled")

    def offset(self) -> int:
        """The stable committed offset of the group."""
        (told,) = committed_offsets(self.raw, GROUP_NAME, SETTLEMENTS)
        return max(0, int(told.committed_offset))

    def rows(self, topic: str, *, committed: bool = True) -> list[str]:
        return [
            json.loads(value)["refund_id"]
            for value in values(self.raw, topic, committed=committed)
            if value is not None
        ]

    def assert_exactly_once(self) -> None:
        expected = [f"RFD-{number}" for number in range(self.settled)]
        assert self.rows(REFUNDS_EMITTED) == expected
        assert self.rows(REFUND_AUDIT) == expected
        assert committed_offset(self.raw, GROUP_NAME, SETTLEMENTS) == self.settled

    def close(self) -> None:
        self.raw.close()
        while self._made:
            self._made.pop().close()
        with warnings.catch_warnings():
            # kafka-python leaves sockets that the broker has closed to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


class Watched:
    """A client that records its calls."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._kafka, name)


class Ahead:
    """A clock that is ahead of another one."""

    def __init__(self, clock: Clock, milliseconds: int) -> None:
        self._clock = clock
        self._milliseconds = milliseconds

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._milliseconds


class Died(BaseException):
    """The process of the processor has died."""


class DyingKafka:
    """A client whose process dies at its n-th call, before the call or right after its effect."""

    def __init__(self, kafka: Kafka, lives_for: int, *, after: bool = False) -> None:
        self._kafka = kafka
        self._left = lives_for
        self._after = after

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "close":  # A dead process does not close anything.
            return lambda: None
        real = getattr(self._kafka, name)

        def call(*arguments: Any) -> Any:
            if self._left == 0 and not self._after:
                raise Died
            result = real(*arguments)
            if self._left == 0:
                raise Died
            self._left -= name != "poll" or bool(result)  # An empty poll does not count.
            return result

        return call
