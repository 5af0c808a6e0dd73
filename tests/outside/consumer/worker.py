"""A consumer in a process of its own, which kills or suspends itself at a step.

`python -m tests.outside.consumer.worker TASK`, where TASK is the JSON of `Stage.worker`. It says on
its output what happens to it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import psycopg

from fencepost.outside import ConsumerFenced, OutsideError, PostgresConsumer
from fencepost.outside.consumer import positions
from tests.outside.consumer.stage import insert

IN_THE_BLOCK = "in the block"


def run(task: dict[str, Any]) -> None:
    positions.ZOMBIE_MILLISECONDS = 1_000  # type: ignore[misc]
    reached: set[str] = set()

    def at(step: str) -> None:
        say(f"at {step}")
        if step == task["step"] and step not in reached:
            reached.add(step)
            say(f"{task['then']} {step}")
            os.kill(os.getpid(), signal.SIGKILL if task["then"] == "killed" else signal.SIGSTOP)

    consumer = PostgresConsumer(
        task["dsn"],
        [task["topic"]],
        task["group"],
        bootstrap_servers=task["servers"],
        config=task["config"],
        max_records=2,
    )
    consumer.on_step = at
    say("began")
    with consumer:
        for batch in consumer:
            try:
                with batch.transaction() as cursor:
                    insert(batch, cursor, str(os.getpid()))
                    at(IN_THE_BLOCK)
            except ConsumerFenced as problem:
                say(f"fenced: {problem}")
            except (OutsideError, psycopg.OperationalError) as problem:
                say(f"failed: {problem}")
            else:
                say(f"applied {batch.records[-1].value().decode()}")


def say(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
