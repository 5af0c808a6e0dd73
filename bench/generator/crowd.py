"""Many transactional ids on few connections: idle, or each with an open transaction."""

from __future__ import annotations

from typing import Final

from bench.generator import answers
from bench.generator.answers import CONCURRENT_TRANSACTIONS, COORDINATOR_COMES
from bench.generator.engine import Connection, Engine, Script
from bench.generator.frames import ProduceFrame, init_producer_id
from bench.generator.job import Job
from bench.generator.scripts import PRODUCE_TV2, Asker

INIT_VERSION: Final = 5
LONGEST_TIMEOUT_MS: Final = 900_000
"""Kafka's transaction.max.timeout.ms: no open transaction may time out during the measurement."""
_RETRIED: Final = (CONCURRENT_TRANSACTIONS, *COORDINATOR_COMES)


class Crowd(Asker):
    """The share of one connection: every n-th id."""

    def __init__(self, job: Job, engine: Engine, connection: Connection, number: int) -> None:
        super().__init__(job, engine, connection)
        self._number = number
        self._initialised = answers.initialised(INIT_VERSION)
        self._produced = answers.produced(job.topic, PRODUCE_TV2)

    def script(self, batch: bytes) -> Script:
        for number in range(self._number, self._job.count, self._job.producers):
            name = self._job.transactional_id(number)
            request = init_producer_id(name, INIT_VERSION, LONGEST_TIMEOUT_MS)
            reply = yield from self._ask(request, self._initialised, _RETRIED)
            if self._job.mode == "open":
                identity = self._initialised.identity_in(reply)
                frame = ProduceFrame(
                    self._job.topic, batch, version=PRODUCE_TV2, acks=-1, transactional_id=name
                )
                frame.address(number % self._job.partitions, self._job.partitions)
                frame.seal(*identity, 0)
                yield from self._ask(frame.data, self._produced, _RETRIED)
                self._engine.tally.transactions += 1
