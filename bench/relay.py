"""A relay in a process of its own: ours, from the same source as the broker, or a polling one.

`python -m bench.relay WAY DSN BOOTSTRAP_SERVERS NAME` says when it is ready, reads what to do from
its standard input, and says when it is done: `all` sends what there is, and `start` goes on until
the input ends.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Final, Self

import psycopg
from confluent_kafka import Producer

from bench.sides import fencepost_python
from fencepost.client.blocking import connect
from fencepost.outside.outbox.database import Outbox
from fencepost.outside.outbox.relay import OutboxRelay
from tools.apache_kafka import ROOT
from tools.processes import die_with_the_parent

TABLES: Final = {"relay": "outbox", "table": "numbered", "polling": "outbox"}
"""The table that each relay reads."""
ROWS_PER_POLL: Final = 1_000
POLL_SECONDS: Final = 0.005
READY: Final = "ready"
DONE: Final = "done"


def outboxes_of(name: str) -> dict[str, Outbox]:
    """What our relays read: the database's log, and a numbered table."""
    return {
        "relay": Outbox.of(name),
        "table": Outbox.of(f"{name}-table", table=TABLES["table"], mode="table"),
    }


class RelayProcess:
    """Starts the process; at the end of the block it has ended."""

    def __init__(self, way: str, dsn: str, bootstrap_servers: str, name: str) -> None:
        command = [*fencepost_python(), "-m", "bench.relay", way, dsn, bootstrap_servers, name]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_the_parent,  # noqa: PLW1509 - nothing in it but one system call.
        )
        self._expect(READY)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.read()
        self._process.wait()

    def run_until_caught_up(self) -> None:
        """Returns when all rows are in Kafka."""
        self._ask("all")
        self._expect(DONE)

    def start(self) -> None:
        """Relays until the block ends."""
        self._ask("start")

    def _ask(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if said != word:
            raise OSError(f"the relay said {said!r}, not {word}")


def main() -> None:
    """Runs the relay that the arguments name."""
    way, dsn, bootstrap_servers, name = sys.argv[1:]
    print(READY, flush=True)
    stop = None if sys.stdin.readline().strip() == "all" else threading.Event()
    if stop is not None:
        threading.Thread(target=_wait_for_the_end, args=[stop], daemon=True).start()
    if way == "polling":
        _poll(dsn, bootstrap_servers, stop)
    else:
        with connect(bootstrap_servers) as cluster:
            relay = OutboxRelay(dsn, cluster, outboxes_of(name)[way])
            relay.run(stop, until_caught_up=stop is None)
    print(DONE, flush=True)


def _wait_for_the_end(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def _poll(dsn: str, bootstrap_servers: str, stop: threading.Event | None) -> None:
    """Until `stop` is set; without it, until there are no rows."""
    settings = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 0}
    producer = Producer({**settings, "queue.buffering.max.messages": 500_000})
    query = "SELECT id, aggregatetype, aggregateid, payload FROM outbox LIMIT %s "
    with psycopg.connect(dsn) as db:
        while stop is None or not stop.is_set():
            found = db.execute(query + "FOR UPDATE SKIP LOCKED", [ROWS_PER_POLL]).fetchall()
            if not found and stop is None:
                return
            for _, topic, key, value in found:
                producer.produce(topic, key=key, value=value)
            producer.flush()
            db.execute("DELETE FROM outbox WHERE id = ANY(%s)", [[row[0] for row in found]])
            db.commit()
            if not found:
                time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
