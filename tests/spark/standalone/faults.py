"""Faults under a query on a standalone cluster, in an order that one seed decides.

Workers are killed, started again, added and decommissioned, executors and the driver are killed,
and brokers are killed and started again. Rows are fed before each fault, so that batches are being
written. Half of the faults wait until a batch was committed since the last one; the others come
after a random pause of up to two seconds, so that faults also meet each other.

One worker always stays, and at most one broker is down: the faults are not meant to stop the query,
and if it fails nevertheless, it is started again from its checkpoint, as a supervisor would. At the
end everything runs, the query copies the rest, and every row must be in the target once.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import fencepost
from fencepost.client.blocking import connect
from tests.spark.standalone.application import Application
from tests.spark.standalone.cluster import StandaloneCluster, Worker

WORKERS: Final = 3
MAX_WORKERS: Final = 4
BROKERS: Final = 3
ROWS: Final = 1_500
"""Fed before each fault: more than the driver would write itself."""
MAX_PAUSE_SECONDS: Final = 2.0


class Report(NamedTuple):
    """What a run has shown."""

    faults: Counter[str]
    rows: int
    driver_restarts: int
    failures: list[str]
    """Why queries have failed, apart from killed drivers."""
    routes: Counter[str]
    seconds: float

    def __str__(self) -> str:
        lines = [
            f"{self.faults.total()} faults in {self.seconds:.0f} s: {dict(self.faults)}",
            f"{self.rows} rows, each in the target once; routes {dict(self.routes)}",
            f"{self.driver_restarts} starts of the driver after the first",
            *self.failures,
        ]
        return "\n".join(lines)


class Faults:
    """Carries out the faults of one seed."""

    def __init__(
        self,
        seed: int,
        spark: StandaloneCluster,
        brokers: fencepost.Cluster,
        application: Application,
        say: Callable[[str], None],
    ) -> None:
        self._random = random.Random(seed)
        self._spark = spark
        self._brokers = brokers
        self._application = application
        self._say = say
        self._client = connect(brokers.bootstrap_servers)
        self._dead_broker: int | None = None
        self._leaving: list[Worker] = []
        """Decommissioned workers, which still run."""
        self.done: Counter[str] = Counter()

    def run(self, count: int, seconds: float = math.inf) -> Report:
        """So many faults, or as many as fit into the time, then the end and the audit."""
        began, application = time.monotonic(), self._application
        try:
            application.create_topics(self._client)
            application.feed(self._client, ROWS)
            application.start()
            application.await_progress(self._client, 0)
            while self.done.total() < count and time.monotonic() - began < seconds:
                self._one_fault()
            self._repair()
            application.finish()
            application.assert_exactly_once(self._brokers.bootstrap_servers)
        finally:
            application.driver.kill()
            self._client.close()
        return Report(
            self.done,
            len(application.fed),
            application.restarts,
            application.failures,
            application.routes,
            time.monotonic() - began,
        )

    def _one_fault(self) -> None:
        application = self._application
        application.supervise()
        before = application.committed(self._client)
        application.feed(self._client, ROWS)
        if self._random.random() < 0.5:
            application.await_progress(self._client, before)
        else:
            time.sleep(self._random.uniform(0.0, MAX_PAUSE_SECONDS))
        fault = self._random.choice(self._possible())
        self._say(f"{self.done.total() + 1}: {fault.__name__.strip('_').replace('_', ' ')}")
        fault()
        self.done[fault.__name__.strip("_")] += 1

    def _possible(self) -> list[Callable[[], None]]:
        """The faults that leave a worker and two brokers.

        A new driver takes the longest to come back, so its death is half as likely as the others.
        """
        found = [self._kill_executor] * 2 + [self._kill_driver]
        found += [self._restart_broker if self._dead_broker else self._kill_broker] * 2
        if len(self._workers()) > 1:
            found += [self._kill_worker, self._decommission_worker] * 2
        if len(self._workers()) < WORKERS:
            found += [self._restart_worker] * 2
        if len(self._spark.workers) < MAX_WORKERS:
            found += [self._add_worker] * 2
        return found

    def _workers(self) -> list[Worker]:
        """Those that can run tasks."""
        return [each for each in self._spark.workers if each.is_alive and each not in self._leaving]

    def _kill_worker(self) -> None:
        self._random.choice(self._workers()).kill()

    def _decommission_worker(self) -> None:
        worker = self._random.choice(self._workers())
        self._leaving.append(worker)
        worker.decommission()

    def _restart_worker(self) -> None:
        gone = [each for each in self._spark.workers if each not in self._workers()]
        worker = self._random.choice(gone)
        if worker in self._leaving:
            self._leaving.remove(worker)
        worker.kill()
        worker.start()

    def _add_worker(self) -> None:
        self._spark.add_worker()

    def _kill_executor(self) -> None:
        self._random.choice(self._workers()).kill_executors()

    def _kill_driver(self) -> None:
        self._application.kill()

    def _kill_broker(self) -> None:
        self._dead_broker = self._random.randint(1, BROKERS)
        self._brokers.kill(self._dead_broker)

    def _restart_broker(self) -> None:
        assert self._dead_broker is not None
        self._brokers.restart(self._dead_broker)
        self._dead_broker = None

    def _repair(self) -> None:
        if self._dead_broker is not None:
            self._restart_broker()
        while len(self._workers()) < WORKERS:
            self._restart_worker()
