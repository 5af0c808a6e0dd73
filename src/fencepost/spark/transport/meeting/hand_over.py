"""How the writer of a task hands the identity of its transaction to the step that writes.

Theory of operation. For each task of a routed write Spark runs two Python processes: the last step
of the plan (`format/steps.py`), and then the data source's writer. Only the writer gets what was
planned for this batch. If it also wrote, every byte would pass between the JVM and Python twice
more. So it hands its identity to the step, and the step writes and passes on its report.

Both processes run at the same time on the same machine, as the same user, and either may be first.
They meet at a named pipe in the folder for temporary files. Its name has two parts:

    token     random, made by `route`: in the closure of the step, and in the columns that the
              planning process of the writer gets
    attempt   the attempt of the task, whose id no other one has in this application

So an identity reaches the one step whose report goes to the writer that handed it over. What an
earlier driver has left running has another token, and what an earlier batch has left running has
another attempt.

The writer keeps the pipe open until it has the step's report, since a pipe that nobody has open
forgets its content.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.client.transactions import ProducerIdentity
from fencepost.spark.failures import SinkRefused

if TYPE_CHECKING:
    from fencepost.spark.transport.delivery import Attempt

_PIECE_BYTES: Final = 64 * 1024


def make_token() -> str:
    """A token for one routed DataFrame."""
    return secrets.token_hex(16)


class Orders(NamedTuple):
    """What the writer tells the step."""

    identity: ProducerIdentity
    drains: bool
    """Whether the batch is in the topics already: its rows are dropped."""
    cluster_id: str = ""
    """The cluster in which the transaction is; empty if it is not known."""
    refusal: str = ""
    """Why nothing may be written: Spark notices that the step fails before it asks the writer."""


@contextmanager
def handing_over(token: str, attempt: Attempt, orders: Orders) -> Iterator[None]:
    """The writer's side: the block must last until the step has written."""
    line = json.dumps([astuple(orders.identity), *orders[1:]]).encode("ascii") + b"\n"
    with _pipe(token, attempt) as pipe:
        os.write(pipe, line)
        yield


def take_orders(token: str, attempt: Attempt, seconds: float) -> Orders:
    """The step's side; SinkRefused if no writer comes in this time."""
    deadline = time.monotonic() + seconds
    line = b""
    with _pipe(token, attempt) as pipe:
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise SinkRefused(f"no writer came within {seconds:.0f} s")
            line += os.read(pipe, _PIECE_BYTES)
    identity, *others = json.loads(line)
    return Orders(ProducerIdentity(*identity), *others)


@contextmanager
def _pipe(token: str, attempt: Attempt) -> Iterator[int]:
    """The pipe of this task, open for both directions, so that nobody waits for the other side."""
    try:
        path = Path(tempfile.gettempdir()) / f"fencepost-{token}-{attempt.task_attempt_id}"
        pipe = _open_pipe(path)
    except OSError as problem:
        raise SinkRefused(
            f"no named pipe can be made for temporary use ({problem}): set TMPDIR of the executors "
            "to a folder in which they can"
        ) from problem
    try:
        yield pipe
    finally:
        os.close(pipe)
        # The other side may have removed it, and both have it open.
        with suppress(OSError):
            path.unlink()


def _open_pipe(path: Path) -> int:
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    pipe = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    found = os.fstat(pipe)
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != os.geteuid():
        os.close(pipe)
        raise SinkRefused(f"{path} was not made by this application: delete it")
    return pipe
