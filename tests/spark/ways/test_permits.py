"""Permits: of all tries of a task one may write. Threads act as tasks; there is no Spark."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from fencepost.base.ids import TopicPartition  # noqa: E402
from fencepost.client.blocking import Cluster  # noqa: E402
from fencepost.client.reading import LATEST  # noqa: E402
from fencepost.spark.failures import (  # noqa: E402
    AttemptFailed,
    BatchTooLarge,
    PeerLost,
    PermitRefused,
    RowRefused,
)
from fencepost.spark.sentences import find_failure, find_too_large  # noqa: E402
from fencepost.spark.ways import permits, shuffled  # noqa: E402
from fencepost.spark.ways.accounts import Report  # noqa: E402
from fencepost.spark.ways.delivery import Attempt  # noqa: E402
from fencepost.spark.ways.packing.by_record import PackingPlan  # noqa: E402
from fencepost.spark.ways.permits import (  # noqa: E402
    Asker,
    PermitBook,
    PermitCall,
    PermitServer,
    permit_to_write,
)
from fencepost.spark.ways.shuffled import DeliveryPlan, deliver  # noqa: E402

LOCAL = ("127.0.0.1", "127.0.0.1")
FIRST, SECOND = Attempt(0, 0, 12), Attempt(0, 0, 15)
"""Two tries of a task as Spark shows them after a lost shuffle file: both are attempt 0."""


@pytest.fixture
def server() -> Iterator[PermitServer]:
    with PermitServer(*LOCAL, lambda: None) as found:
        yield found


def ask(call: PermitCall, attempt: Attempt) -> None:
    with permit_to_write(call, attempt):
        pass


# The rule.


def test_the_first_try_gets_the_permit_and_gets_it_again_if_it_asks_again() -> None:
    book = PermitBook()
    assert book.ask(Asker(0, "one", 12)) == ""
    assert book.ask(Asker(1, "other task", 13)) == ""
    assert book.ask(Asker(0, "one", 12)) == ""
    book.check([{"task_attempt_id": 12}, {"task_attempt_id": 13}])


def test_a_second_try_is_refused_and_ends_the_attempt_for_everyone() -> None:
    book = PermitBook()
    book.ask(Asker(0, "one", 12))
    refusal = book.ask(Asker(0, "two", 15))
    assert "ran as Spark's task 12, which may have written, and runs again as 15" in refusal
    assert book.ask(Asker(1, "other task", 16)) == refusal
    assert book.ask(Asker(0, "one", 12)) == refusal
    with pytest.raises(AttemptFailed, match="runs again as 15"):
        book.check([{"task_attempt_id": 12}])


def test_a_second_run_of_the_same_spark_task_is_a_second_try() -> None:
    book = PermitBook()
    book.ask(Asker(0, "one", 12))
    assert book.ask(Asker(0, "two", 12)) != ""


def test_a_report_without_a_permit_is_refused() -> None:
    book = PermitBook()
    book.ask(Asker(0, "one", 12))
    with pytest.raises(PermitRefused, match=r"tasks \[15\] reported without a permit"):
        book.check([{"task_attempt_id": 12}, {"task_attempt_id": 15}])


def test_only_the_holder_of_a_permit_can_fail_the_attempt() -> None:
    book = PermitBook()
    book.ask(Asker(0, "one", 12))
    assert book.fail(Asker(0, "stranger", 15), "RuntimeError: no") == ""
    assert book.fail(Asker(1, "one", 12), "RuntimeError: no") == ""
    assert book.fail(Asker(0, "one", 12), "RuntimeError: yes") == "RuntimeError: yes"
    assert book.fail(Asker(0, "one", 12), "RuntimeError: later") == "RuntimeError: yes"
    assert book.ask(Asker(1, "other", 13)) == "RuntimeError: yes"


# Tasks and the driver.


class FullListener:
    """A listener that has no file descriptor left for its first caller, which waits meanwhile."""

    def __init__(self, genuine: socket.socket) -> None:
        self._genuine = genuine
        self.refusals = 2

    def __getattr__(self, name: str) -> Any:
        return getattr(self._genuine, name)

    def accept(self) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._genuine.accept()


def test_a_driver_that_could_not_accept_a_task_for_a_moment_still_answers() -> None:
    server = PermitServer(*LOCAL, lambda: None)
    full = FullListener(server._listener)
    server._listener = full  # type: ignore[assignment]
    with server:
        ask(server.call, FIRST)
    assert not full.refusals


def test_of_many_tries_at_once_one_gets_the_permit_and_the_job_is_cancelled_once() -> None:
    cancelled: list[bool] = []
    tries = 24
    with PermitServer(*LOCAL, lambda: cancelled.append(True)) as server:
        ready = threading.Barrier(tries)

        def is_granted(number: int) -> bool:
            ready.wait()
            try:
                ask(server.call, Attempt(0, 0, number))
            except PermitRefused:
                return False
            return True

        with ThreadPoolExecutor(tries) as pool:
            granted = list(pool.map(is_granted, range(tries)))
    assert granted.count(True) == 1
    assert cancelled == [True]


def test_the_refused_task_gets_its_answer_even_if_the_job_cannot_be_cancelled() -> None:
    def broken() -> None:
        raise RuntimeError("the JVM is gone")

    with PermitServer(*LOCAL, broken) as server:
        ask(server.call, FIRST)
        with pytest.raises(PermitRefused, match="nothing was written: task 0 of the write stage"):
            ask(server.call, SECOND)


def test_a_task_whose_answer_was_lost_asks_again_and_gets_the_same_permit(
    server: PermitServer,
) -> None:
    with _cutting(server.call, answers=1) as (call, cut):
        ask(call, FIRST)
    assert cut == [1]
    assert server.book.problem == ""
    with pytest.raises(PermitRefused):
        ask(server.call, SECOND)


def test_a_task_that_never_gets_an_answer_fails_and_its_next_try_is_refused(
    server: PermitServer,
) -> None:
    with (
        _cutting(server.call, answers=permits.CALLS) as (call, cut),
        pytest.raises(PeerLost, match="wrote nothing: make sure that executors can connect"),
    ):
        ask(call, FIRST)
    assert cut == [1] * permits.CALLS
    with pytest.raises(PermitRefused):
        ask(server.call, SECOND)


def test_a_task_of_an_earlier_attempt_gets_no_permit_at_the_port_of_the_next(
    server: PermitServer,
) -> None:
    with PermitServer(*LOCAL, lambda: None) as earlier:
        zombie = PermitCall(server.call.address, earlier.call.secret)
    with pytest.raises(PeerLost, match="another program listens there"):
        ask(zombie, FIRST)
    ask(server.call, SECOND)
    assert server.book.problem == ""


def test_a_task_gets_no_permit_after_the_attempt() -> None:
    with PermitServer(*LOCAL, lambda: None) as server:
        pass
    with pytest.raises(PeerLost, match=r"no answer of the driver at 127\.0\.0\.1:"):
        ask(server.call, FIRST)
    assert "is over" in server.book.ask(Asker(0, "late", 12))


def test_another_program_at_the_port_of_the_driver_cannot_grant_a_permit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def grant_everything() -> None:
            for _ in range(permits.CALLS):
                caller, _ = listener.accept()
                # The task hangs up before it has read everything.
                with caller, suppress(OSError):
                    caller.sendall(bytes(64) + b'""\n')
                    caller.shutdown(socket.SHUT_WR)
                    while caller.recv(1024):
                        pass

        thread = threading.Thread(target=grant_everything)
        thread.start()
        address = ("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(PeerLost, match="does not know this job"):
            ask(PermitCall(address, b"secret"), FIRST)
        thread.join()


def test_callers_that_say_nothing_do_not_keep_tasks_waiting(server: PermitServer) -> None:
    silent = [socket.create_connection(server.call.address) for _ in range(10)]
    ask(server.call, FIRST)
    server.close()
    for one in silent:
        with one:
            one.settimeout(10)
            assert one.recv(1) == b"", "the driver has hung up"


# A task that fails after it got its permit.


@pytest.mark.parametrize("problem", [RowRefused("too wide"), BatchTooLarge("t", 5, 900)])
def test_the_driver_learns_why_the_holder_of_a_permit_has_failed(
    server: PermitServer, problem: Any
) -> None:
    with pytest.raises(type(problem)), permit_to_write(server.call, FIRST):
        raise problem
    text = server.book.problem
    found = find_too_large(text) or find_failure(RowRefused, text)
    assert str(found) == str(problem)


# The task of the write stage.


class WriteStage:
    """Tries of the only task of a write stage, on a real broker."""

    def __init__(self, server: PermitServer, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._place = TopicPartition(topic, 0)
        self._packing = PackingPlan(0, 1, topic, {topic: 1}, 0, 2_000, 100_000, cluster.options)
        identity = cluster.init_producer_id(topic)
        self._plan = DeliveryPlan(identity, 1, cluster.options, server.call)

    def rows(self, *values: bytes) -> Iterator[Any]:
        """What the shuffle brings to the task."""
        columns = {name: pa.array(values, pa.binary()) for name in ("key", "value")}
        return shuffled.pack(self._packing, 0, iter([pa.RecordBatch.from_pydict(columns)]))

    def run(self, attempt: Attempt, rows: Iterator[Any]) -> Report:
        """One try; returns its report."""
        return deliver(self._plan, attempt, rows)

    def written(self) -> int:
        """How many records are in the log, committed or not."""
        return self._cluster.list_offsets({self._place: LATEST}, isolation="read_uncommitted")[
            self._place
        ].offset


@pytest.fixture
def stage(server: PermitServer, cluster: Cluster, new_topic: Callable[..., str]) -> WriteStage:
    return WriteStage(server, cluster, new_topic(1))


def test_a_second_try_writes_nothing(stage: WriteStage) -> None:
    stage.run(FIRST, stage.rows(b"a", b"b", b"c"))
    assert stage.written() == 3
    with pytest.raises(PermitRefused):
        stage.run(SECOND, stage.rows(b"other", b"rows"))
    assert stage.written() == 3


def test_a_task_without_rows_asks_too(stage: WriteStage) -> None:
    """Its first try had rows, which go elsewhere now, because the plan is not deterministic."""
    stage.run(FIRST, stage.rows(b"a"))
    with pytest.raises(PermitRefused):
        stage.run(SECOND, iter(()))


def test_a_task_that_cannot_read_its_rows_may_run_again(
    stage: WriteStage, server: PermitServer
) -> None:
    missing = map(open, ["/no/shuffle/file"])
    with pytest.raises(FileNotFoundError):
        stage.run(FIRST, missing)
    stage.run(SECOND, stage.rows(b"a"))
    assert stage.written() == 1
    assert server.book.problem == ""


# A network that loses answers.


@contextmanager
def _cutting(call: PermitCall, answers: int) -> Iterator[tuple[PermitCall, list[int]]]:
    """A network between tasks and the driver that loses the first so many answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    cut: list[int] = []

    def forward(source: socket.socket, target: socket.socket, *, lose_line: bool) -> None:
        seen = b""
        while data := source.recv(4096):
            seen += data
            # The handshake of the driver has 64 bytes; what follows is the answer.
            if lose_line and len(seen) > 64:
                cut.append(1)
                break
            target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        while True:
            try:
                task, _ = listener.accept()
            except OSError:
                return
            driver = socket.create_connection(call.address)
            lose = len(cut) < answers
            there = threading.Thread(
                target=forward, args=(task, driver), kwargs={"lose_line": False}
            )
            there.start()
            forward(driver, task, lose_line=lose)
            there.join()
            task.close()
            driver.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield PermitCall(("127.0.0.1", listener.getsockname()[1]), call.secret), cut
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
