"""Permits: one writer per task of a write stage that Spark may run more than once.

Where Spark refuses barrier stages (dynamic allocation), it may run any task again: after a
failure, after the loss of an executor, and after the loss of shuffle files, where it starts the
whole stage again while tasks of the first try go on. Python sees all of these tries as attempt 0.
So the driver grants one permit per task and attempt of the job:

- A task asks when it has its rows, before its first write. A task without rows asks too, before it
  reports: if the rows of its first try went elsewhere in the second, that must be noticed.
- The first to ask gets the permit. A second one is another try of the same task, and the first may
  have written. It is refused, no further permit is granted, and the driver cancels the job, aborts
  the transaction, and begins a new attempt with a fresh epoch and a fresh secret.
- A task that gets no permit writes nothing and fails.
- A task that fails with a permit says so, and the driver cancels the job at once, with the reason.

A try is known by a random token, so a task that asks again because the answer was lost gets the
same answer. If it died instead, the next try is refused.

Spark may run a task again as long as none of its tries has the permit. Rows arrive sorted, so a
task has read all of its shuffle files before it asks: files that are lost before cost no attempt.

    task   -> driver   one line: [task, token, task attempt id, failure or ""]
    driver -> task     one line: "" for granted, or why not

A task of an earlier attempt of the job has another secret. It gets no permit of this attempt even
if the driver's port is the same, and without an answer it writes nothing.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.spark.failures import AttemptFailed, PeerLost, PermitRefused
from fencepost.spark.sentences import sentence_in
from fencepost.spark.ways.meeting import Listener, greet, make_secret, read_line, send_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.spark.ways.delivery import Attempt

log = logging.getLogger(__name__)

CALL_SECONDS: Final = 10.0
"""How long to wait for a connection or an answer: both sides answer at once."""
CALLS: Final = 3
"""How often a task asks if its connections break. One that cannot connect fails at once, because
Spark runs a failed task several times itself."""
MAX_FAILURE_CHARACTERS: Final = 4_000


class Asker(NamedTuple):
    """One try of a task."""

    task: int
    token: str
    task_attempt_id: int


class PermitBook:
    """Which try of each task may write: the rule, without sockets. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[int, Asker] = {}
        self.problem = ""
        """Why this attempt of the job has failed; empty if it has not."""

    def ask(self, asker: Asker) -> str:
        """Grants the permit and returns an empty text, or returns why not."""
        with self._lock:
            if not self.problem:
                holder = self._holders.setdefault(asker.task, asker)
                if holder.token != asker.token:
                    refusal = PermitRefused(
                        f"task {asker.task} of the write stage ran as Spark's task "
                        f"{holder.task_attempt_id}, which may have written, and runs again as "
                        f"{asker.task_attempt_id}: this attempt is aborted"
                    )
                    self.problem = _shown(refusal)
            return self.problem

    def fail(self, asker: Asker, failure: str) -> str:
        """Ends the attempt because the holder of a permit has failed; returns why it ends."""
        with self._lock:
            holder = self._holders.get(asker.task)
            if holder is not None and holder.token == asker.token:
                self.problem = self.problem or failure
            return self.problem

    def end(self) -> None:
        """Grants nothing from now on."""
        with self._lock:
            self.problem = self.problem or _shown(PermitRefused("this attempt of the job is over"))

    def check(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """PermitRefused unless every report comes from a holder; AttemptFailed if it has failed."""
        with self._lock:
            self.raise_problem()
            holders = {holder.task_attempt_id for holder in self._holders.values()}
        reported = {int(report["task_attempt_id"]) for report in reports}
        if strangers := reported - holders:
            raise PermitRefused(f"Spark's tasks {sorted(strangers)} reported without a permit")

    def raise_problem(self) -> None:
        """AttemptFailed if this attempt has failed."""
        if self.problem:
            raise AttemptFailed(self.problem)


def _shown(problem: Exception) -> str:
    """An exception as the last line of a traceback."""
    return "".join(traceback.format_exception_only(problem)).strip()[:MAX_FAILURE_CHARACTERS]


# A task's side.


@dataclass(frozen=True, slots=True)
class PermitCall:
    """What a task needs to ask."""

    address: tuple[str, int]
    """Where the driver listens."""
    secret: bytes
    """Only the tasks of this attempt of the job have it."""

    def __call__(self, asker: Asker, failure: str = "") -> str:
        """The driver's answer; asks again if the connection breaks. PeerLost if there is none."""
        for _ in range(CALLS):
            try:
                connection = socket.create_connection(self.address, CALL_SECONDS)
            except OSError as problem:
                raise self._lost(problem) from None
            try:
                with connection:
                    greet(connection, self.secret)
                    send_line(connection, [*asker, failure])
                    return str(read_line(connection))
            except (OSError, PeerLost) as problem:
                broken = problem
        raise self._lost(broken)

    def _lost(self, problem: Exception) -> PeerLost:
        host, port = self.address
        return PeerLost(
            f"no answer of the driver at {host}:{port} ({problem}). A task needs its permit, and "
            "wrote nothing: make sure that executors can connect to any port of the driver at this "
            "address (spark.driver.host)"
        )


@contextmanager
def permit_to_write(call: PermitCall, attempt: Attempt) -> Iterator[None]:
    """Asks whether this try may write; PermitRefused, or PeerLost without an answer.

    Tells the driver if the block fails, since this try has the permit.
    """
    asker = Asker(attempt.partition_id, secrets.token_hex(16), attempt.task_attempt_id)
    if refusal := call(asker):
        raise PermitRefused(f"no permit, nothing was written: {sentence_in(refusal)}")
    try:
        yield
    except Exception as problem:
        # Without an answer, the driver learns of it from the next try of this task.
        with suppress(PeerLost):
            call(asker, _shown(problem))
        raise


# The driver's side.


class PermitServer(Listener):
    """The driver's side, for the duration of one attempt of the job."""

    def __init__(self, host: str, bind_host: str, on_problem: Callable[[], None]) -> None:
        """`on_problem` is called once, in another thread, when the attempt has failed."""
        secret = make_secret()
        super().__init__(host, bind_host, secret)
        self.book = PermitBook()
        self.call = PermitCall(self.address, secret)
        self._on_problem = on_problem
        self._is_told = False

    def close(self) -> None:
        """Grants nothing from now on, and disconnects callers."""
        self.book.end()
        super().close()

    def handle(self, caller: socket.socket) -> None:
        """Answers one task."""
        *asker, failure = read_line(caller)
        who = Asker(*asker)
        problem = self.book.fail(who, failure) if failure else self.book.ask(who)
        if problem:
            self._tell()
        send_line(caller, problem)

    def _tell(self) -> None:
        with self._lock:
            is_first, self._is_told = not self._is_told, True
        if is_first:
            try:
                self._on_problem()
            except Exception:
                # The refused task fails the job, too, after as many tries as Spark makes.
                log.warning("the job of a failed attempt could not be cancelled", exc_info=True)


@contextmanager
def granting_permits(session: SparkSession, host: str, bind_host: str) -> Iterator[PermitServer]:
    """Grants permits to the tasks of the block's job, and cancels it when the attempt has failed.

    The jobs of an attempt have their own tag, so that nothing else is cancelled with them. Then
    AttemptFailed is raised with the reason, and not Spark's exception about a cancelled job.
    """
    context = session.sparkContext
    tag = f"fencepost-{secrets.token_hex(8)}"
    with PermitServer(host, bind_host, lambda: context.cancelJobsWithTag(tag)) as permits:
        context.addJobTag(tag)
        try:
            yield permits
        except Exception:
            permits.book.raise_problem()
            raise
        finally:
            context.removeJobTag(tag)
