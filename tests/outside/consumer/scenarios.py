"""Deaths and suspensions of real processes, on our broker and, in `compat`, on Apache Kafka."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from fencepost.outside.consumer.consumer import STEPS
from tests.outside.consumer.stage import DEADLINE_SECONDS, Stage, apply
from tests.outside.consumer.worker import IN_THE_BLOCK
from tools.processes import DiedEarlyError, ServerProcess

SUSPENDED_AT: Final = ("before the claim", IN_THE_BLOCK, "before the commit")


def kill_at_every_step(stage: Stage) -> None:
    """One process after the other dies at another step, and its successor continues.

    A static member is replaced at once, without a wait for the end of a session.
    """
    sent: list[str] = []
    for step in (*STEPS, IN_THE_BLOCK):
        values = [f"{len(sent)}", f"{len(sent) + 1}"]
        sent += values
        stage.send(*values)
        process = stage.worker(step=step, then="killed", **{"group.instance.id": "one"})
        process.wait_for_end(DEADLINE_SECONDS)
        assert f"killed {step}" in process.output, process.output
        assert process.status == -signal.SIGKILL
    sent.append("last")
    stage.send("last")
    apply_until(stage, lambda: "last" in stage.applied(), **{"group.instance.id": "one"})
    assert stage.applied() == sent
    assert stage.position() == len(sent)


def suspend_at(stage: Stage, step: str) -> None:
    """A process is suspended there, loses its partition, and wakes up when all is applied.

    It applies nothing twice. If it was suspended before its claim, it claims too late and fences
    the new owner, which claims again: both are at rest then, and what is sent is applied.
    """
    stage.send("a", "b")
    zombie = stage.worker(step=step, then="suspended")
    zombie.wait_for_line(saying(f"suspended {step}"), DEADLINE_SECONDS)
    assert "a" not in stage.applied()
    # Between that line and its suspension, it does nothing else.
    owner = stage.worker()
    owner.wait_for_line(saying("applied b"), DEADLINE_SECONDS)
    assert stage.applied() == ["a", "b"]
    os.kill(zombie.pid, signal.SIGCONT)
    late = "at before the seek" if step == "before the claim" else "fenced"
    zombie.wait_for_line(saying(late), DEADLINE_SECONDS)
    stage.send("c", "d")
    # The group may give the partition to either.
    wait_for(stage, "d", owner, zombie)
    assert stage.applied() == ["a", "b", "c", "d"]
    owner.kill()
    stage.send("e")
    wait_for(stage, "e", zombie)
    assert stage.applied() == ["a", "b", "c", "d", "e"]
    [(epoch,)] = stage.query("SELECT epoch FROM fencepost_offsets")
    assert epoch < 10, "they fence each other without an end"


def wait_for(stage: Stage, value: str, *workers: ServerProcess, partition: int = 0) -> None:
    """Until it is applied: each of the workers writes a line when it applies something."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while value not in stage.applied(partition):
        outputs = "\n\n".join(each.output for each in workers)
        assert time.monotonic() < deadline, f"{value!r} is not applied:\n{outputs}"
        with contextlib.suppress(DiedEarlyError):
            workers[0].wait_for_line(saying(f"applied {value}"), 0.3)


def apply_until(stage: Stage, until: Callable[[], bool], **config: object) -> None:
    with stage.consumer(config=config) as consumer:
        while not until():
            apply(next(consumer))


def saying(words: str) -> Callable[[str], str | None]:
    return lambda line: line if line.startswith(words) else None
