"""Faults in a running job: in the writers of its rows, and in its protocol.

`in_tasks` wraps a function around every writer of rows. Most writers are tasks in Python workers,
so this module is shipped to them by value; one is the driver. Such a function acts in one writer
only: the first that creates the marker file.
"""

from __future__ import annotations

import glob
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.blocking import Cluster, connect
from fencepost.client.reading import LATEST
from fencepost.client.transactions import ProducerIdentity
from fencepost.records.opened import Record
from fencepost.spark.failures import PeerLost
from tests.spark.ways.watching import close_ways

OLD_PROTOCOL = "-tv1"
"""A transactional id with this suffix uses transaction version 1, on any cluster."""

Batches = Iterator[Any]
Deliver = Callable[[Batches], Batches]


def speak_by_name(patch: pytest.MonkeyPatch) -> None:
    """Makes the name of a transactional id choose its protocol. Brokers accept both."""
    genuine = Cluster.init_producer_id

    def init_producer_id(self: Cluster, transactional_id: str | None, *more: int) -> Any:
        found = genuine(self, transactional_id, *more)
        is_old = (transactional_id or "").endswith(OLD_PROTOCOL)
        return replace(found, transaction_version=1) if is_old else found

    patch.setattr(Cluster, "init_producer_id", init_producer_id)


def through_the_shuffle(patch: pytest.MonkeyPatch) -> None:
    """Sends rows through Spark's shuffle, which tests can stop between its stages."""
    close_ways(patch.setattr, "collected", "direct")


def in_tasks(
    patch: pytest.MonkeyPatch,
    around: Callable[[Deliver, Batches], Batches],
    applies: Callable[[ProducerIdentity], bool] = lambda identity: True,
) -> None:
    """Makes `around` wrap every writer of rows, on each of the three routes."""
    from pyspark import cloudpickle

    from fencepost.spark.ways import direct, shuffled
    from fencepost.spark.ways.collected import RowCollector

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    for module, name in ((direct, "_task"), (shuffled, "_delivering_task")):
        patch.setattr(module, name, _around_task(getattr(module, name), around, applies))
    # The current one, so that wrappers can be nested.
    send = RowCollector._send

    def send_rows(collector: RowCollector, job: Any, rows: Any) -> Any:
        if not applies(job.identity):
            return send(collector, job, rows)
        sent = []

        def deliver(_: Batches) -> Batches:
            sent.append(send(collector, job, rows))
            return iter(())

        for _ in around(deliver, iter(())):
            pass
        return sent[-1]

    patch.setattr(RowCollector, "_send", send_rows)


def _around_task(
    genuine: Callable[[Any], Deliver],
    around: Callable[[Deliver, Batches], Batches],
    applies: Callable[[ProducerIdentity], bool],
) -> Callable[[Any], Deliver]:
    def task(plan: Any) -> Deliver:
        deliver = genuine(plan)
        return (lambda batches: around(deliver, batches)) if applies(plan.identity) else deliver

    return task


def await_file(path: str | Path, seconds: float = 120.0) -> None:
    await_truth(Path(path).exists, seconds)


def await_truth(is_true: Callable[[], bool], seconds: float = 60.0, pause: float = 0.01) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)


def claim(marker: str) -> bool:
    """Whether this is the first caller."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True)
class AfterFirstWrite:
    """Acts in one writer, when its first batch is in the log and the rest is not sent."""

    bootstrap: str
    marker: str
    act: Callable[[str, Any, TopicPartition], None]

    def __call__(self, deliver: Deliver, batches: Batches) -> Batches:
        from fencepost.spark.ways.delivery import Delivery

        put = Delivery.put

        def put_and_act(delivery: Delivery, place: TopicPartition, *more: Any) -> None:
            put(delivery, place, *more)
            if os.path.exists(self.marker):
                return
            # Batches would share a request; here the first one is sent alone.
            delivery._writer.poll()
            if claim(self.marker):
                self._await_write(place)
                self.act(self.marker, delivery, place)

        Delivery.put = put_and_act  # type: ignore[method-assign, assignment]
        try:
            yield from deliver(batches)
        finally:
            Delivery.put = put  # type: ignore[method-assign]

    def _await_write(self, place: TopicPartition) -> None:
        with connect(self.bootstrap) as cluster:

            def end(isolation: str) -> int:
                return cluster.list_offsets({place: LATEST}, isolation=isolation)[place].offset

            await_truth(lambda: end("read_uncommitted") > end("read_committed"))


@dataclass(frozen=True)
class FailOnce:
    """One task fails after it has written everything."""

    marker: str

    def __call__(self, deliver: Deliver, batches: Batches) -> Batches:
        reports = list(deliver(batches))
        if claim(self.marker):
            raise PeerLost("the executor fails with everything written")
        return iter(reports)


def kill_worker(marker: str, *_: Any) -> None:
    """Kills the Python worker of a task."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_executor(marker: str, *_: Any) -> None:
    """Kills the executor, the Java process above the Python daemon; we outlive it briefly."""
    os.kill(parent_of(os.getppid()), signal.SIGKILL)


def fall_asleep(marker: str, delivery: Any, place: TopicPartition) -> None:
    """Cuts a machine off: Spark considers its executor dead.

    Its worker continues to write when it wakes up, and reports the outcome.
    """
    # The kernel wakes up stopped processes of a group that loses its parents, and Spark's daemon
    # kills its workers. On a machine that is cut off neither happens.
    os.setsid()
    _write_whole(f"{marker}.pids", f"{os.getpid()} {parent_of(os.getppid())}")
    # To this thread: another thread may handle a signal to the process while this one continues to
    # write.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    try:
        delivery._writer.write_records(place, [Record(value=b"zombie")])
        delivery._writer.flush()
        words = "it could write"
    except FencepostError as problem:
        words = f"{type(problem).__name__}: {problem}"
    _write_whole(f"{marker}.words", words)


def _write_whole(path: str, text: str) -> None:
    """Writes a file that a test waits for: it appears with its content."""
    Path(f"{path}.part").write_text(text)
    os.rename(f"{path}.part", path)


def wait_to_be_released(marker: str, *_: Any) -> None:
    """Creates the marker, and continues when the test releases it."""
    Path(f"{marker}.reached").touch()
    await_file(f"{marker}.released", 3600)


@dataclass(frozen=True)
class WaitForState:
    """A slow writer: it continues when the coordinator reports this state of its transaction."""

    bootstrap: str
    transactional_id: str
    state: str

    def __call__(self, *_: Any) -> None:
        with connect(self.bootstrap) as cluster:
            await_truth(lambda: self._state(cluster) == self.state)

    def _state(self, cluster: Cluster) -> str:
        view = cluster.describe_transactions([self.transactional_id])[self.transactional_id]
        return "" if view is None else view.state


def parent_of(pid: int) -> int:
    """The parent of a process."""
    return int(_status(pid)["PPid"])


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has taken effect."""
    return _status(pid)["State"].startswith("T")


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def executors_folder(spark: Any) -> Path:
    """Where all executors keep their shuffle files; needs a free slot.

    Only they know: those of a JVM use the folder of its first session, which may be another test's.
    """
    places = spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ["SPARK_LOCAL_DIRS"])
    return Path(places.first().split(",")[0]).parent.parent


def delete_shuffle_files(folder: Path) -> int:
    """Deletes every shuffle file of the executors; returns their number."""
    found = [p for p in glob.glob(f"{folder}/**/shuffle_*", recursive=True) if os.path.isfile(p)]
    for path in found:
        # Spark's own cleaner deletes those of earlier queries meanwhile.
        Path(path).unlink(missing_ok=True)
    return len(found)
