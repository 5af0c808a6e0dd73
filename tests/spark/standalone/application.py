"""The test's side of `driver.py`: an application that copies a topic, and a count of the copies.

A driver that is killed, or whose query fails, is started again with the same checkpoint, as a
supervisor would. `assert_exactly_once` compares what was fed with what is in the target.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.reading import LATEST
from fencepost.records.opened import Record
from tests.spark.chaos import await_truth
from tests.spark.conftest import environment, read_values
from tests.spark.standalone.cluster import Machine
from tests.spark.standalone.driver import Orders
from tools.processes import DiedEarlyError

START_SECONDS: Final = 300.0
MAX_RESTARTS: Final = 60
DRIVER: Final = (sys.executable, "-m", "tests.spark.standalone.driver")
"""The command of a driver, before its orders."""


class Application:
    """A driver process, its two topics, and what was fed."""

    def __init__(
        self,
        name: str,
        folder: Path,
        bootstrap: str,
        master: str,
        settings: Mapping[str, str],
        *,
        sink: Mapping[str, Any] | None = None,
        reader: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        program: Sequence[str] = DRIVER,
        partitions: int = 3,
        source_format: str = "fencepost",
        is_quick: bool = True,
    ) -> None:
        """`partitions` of both topics: not more than cores, or tasks cannot all run at once.

        `program` is the command of the driver, before its orders. Spark has the quick settings of
        the tests, or its own defaults.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.orders = Orders(
            master,
            bootstrap,
            f"{name}-in",
            f"{name}-out",
            name,
            str(folder / "checkpoint"),
            str(folder / "finish"),
            settings=dict(settings),
            sink=dict(sink or {}),
            source_format=source_format,
            reader=dict(reader or {}),
        )
        self.path = folder / "orders.json"
        self.path.write_text(json.dumps(asdict(self.orders)))
        self.driver = Machine(
            [*program, str(self.path)],
            folder,
            prefix,
            environment(is_quick=is_quick) | dict(variables or {}),
        )
        self.partitions = partitions
        self.fed: list[str] = []
        self.restarts = 0
        self.max_restarts = MAX_RESTARTS
        self.failures: list[str] = []
        """Why queries have failed, apart from killed drivers."""
        self.routes: Counter[str] = Counter()

    def create_topics(self, cluster: Cluster) -> None:
        """Creates the source and the target, on every broker if the cluster has several."""
        names = (self.orders.source, self.orders.target)
        cluster.create_topics([NewTopic(name, self.partitions) for name in names])

    def feed(self, cluster: Cluster, count: int) -> None:
        """Adds rows to the source."""
        rows = [f"{self.orders.source}-{len(self.fed) + n}" for n in range(count)]
        with cluster.writer(cluster.init_producer_id(None)) as writer:
            for partition in range(self.partitions):
                place = TopicPartition(self.orders.source, partition)
                mine = rows[partition :: self.partitions]
                writer.write_records(
                    place, [Record(key=v.encode(), value=v.encode()) for v in mine]
                )
            writer.flush()
        self.fed += rows

    def start(self) -> None:
        """Starts the driver; returns when its query runs."""
        self.driver.start()
        self.driver.process.wait_for_line(_starts_with("running"), START_SECONDS)

    def kill(self) -> None:
        """Kills the driver (-9)."""
        self._count_routes()
        self.driver.kill()

    def supervise(self) -> None:
        """Starts the driver again if it has ended."""
        if self.driver.is_alive:
            return
        self._note_failure()
        self.restarts += 1
        assert self.restarts <= self.max_restarts, self.failures
        self.driver.kill()
        self.start()

    def finish(self, seconds: float = 300.0) -> None:
        """Lets the driver copy the rest and end, and starts it again if it fails."""
        Path(self.orders.finish).touch()
        while True:
            self.supervise()
            try:
                self.driver.process.wait_for_line(_starts_with("finished"), seconds)
            except DiedEarlyError:
                # It may have closed its output a moment before it ends.
                self.driver.process.wait_for_end()
                continue
            self._count_routes()
            self.driver.kill()
            return

    def committed(self, cluster: Cluster) -> int:
        """How far the target's committed offsets have come; grows with every batch."""
        places = [TopicPartition(self.orders.target, n) for n in range(self.partitions)]
        found = cluster.list_offsets(dict.fromkeys(places, LATEST), isolation="read_committed")
        return sum(each.offset for each in found.values())

    def await_progress(self, cluster: Cluster, before: int, seconds: float = 300.0) -> None:
        """Returns when more is committed than before, and keeps the driver running until then."""

        def has_progressed() -> bool:
            self.supervise()
            return self.committed(cluster) > before

        # A new driver takes seconds, and each look is a request.
        await_truth(has_progressed, seconds, 0.1)

    def assert_exactly_once(self, bootstrap: str | None = None) -> None:
        """Every row that was fed is in the target once, and the source offsets are committed."""
        with connect(bootstrap or self.orders.bootstrap) as cluster:
            found = Counter(read_values(cluster, self.orders.target))
            expected = Counter(self.fed)
            missing, surplus = expected - found, found - expected
            assert not missing, f"{missing.total()} of {len(self.fed)} rows are missing"
            assert not surplus, f"{surplus.total()} rows are duplicates: {list(surplus)[:5]}"

    def _note_failure(self) -> None:
        self._count_routes()
        lines = self.driver.process.output.splitlines()
        failed = [line for line in lines if line.startswith("failed: ")]
        self.failures += failed or [line for line in lines[-1:] if "killed" not in line]

    def _count_routes(self) -> None:
        lines = self.driver.process.output.splitlines()
        self.routes.update(line.split()[1] for line in lines if line.startswith("route "))


def _starts_with(words: str) -> Callable[[str], str | None]:
    return lambda line: line if line.startswith(words) else None
