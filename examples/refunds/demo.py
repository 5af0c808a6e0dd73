"""The pipeline while everything is killed, and the audit afterwards.

    python -m examples.refunds.demo [--bootstrap-servers localhost:9092] [--settlements 20000] [--kills 4]

Starts a broker of its own unless it is given one (which it then does not kill), writes settlements, runs the query as
its own process and kills the query's driver, its Python workers and the broker while they write. Then it loads both
topics into Parquet and audits them. With --compare it does the same without transactions, so that the duplicates can
be seen. Exit code 1 if the exactly-once side has anything wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.refunds.settlements import AUDIT, REFUNDS, SETTLEMENTS, generate
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.reading import LATEST
from fencepost.records.opened import Record

PARTITIONS = 4


class Broker:
    """`fencepost serve` as a process that can be killed and comes back."""

    def __init__(self, data: str) -> None:
        self._data = data
        self.address = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "fencepost",
            "serve",
            "--listen",
            self.address,
            "--data",
            self._data,
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        self.address = process.stdout.readline().split()[-1]
        self._process = process

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@contextlib.contextmanager
def broker_at(address: str | None, folder: str) -> Iterator[tuple[str, Broker | None]]:
    """A broker of our own, or the given one."""
    if address is not None:
        yield address, None
        return
    broker = Broker(folder)
    broker.start()
    try:
        yield broker.address, broker
    finally:
        broker.kill()


def write_settlements(bootstrap: str, count: int) -> None:
    """Makes the topics anew and fills the first one."""
    topics = (SETTLEMENTS, REFUNDS, AUDIT)
    with connect(bootstrap) as cluster:
        cluster.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics])
        with cluster.writer(cluster.init_producer_id(None)) as writer:
            lanes: list[list[Record]] = [[] for _ in range(PARTITIONS)]
            for number, settlement in enumerate(generate(count)):
                key = settlement.refund_id.encode()
                lanes[number % PARTITIONS].append(Record(key=key, value=settlement.as_json()))
            for index, lane in enumerate(lanes):
                for start in range(0, len(lane), 1_000):
                    writer.write_records(
                        TopicPartition(SETTLEMENTS, index), lane[start : start + 1_000]
                    )
            writer.flush()


def children(pid: int) -> list[int]:
    """All descendants of a process, where the system shows them: every thread has children of its own."""
    found: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listing.read_text().split()):
                found += [child, *children(child)]
    return found


def python_workers(driver: int) -> list[int]:
    """The Python workers of a driver's executors."""
    found = []
    for pid in children(driver):
        with contextlib.suppress(OSError):
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


class Run:
    """One query that is killed until it has come to its end."""

    def __init__(
        self,
        bootstrap: str,
        broker: Broker | None,
        checkpoint: str,
        extra: list[str],
        dice: random.Random,
    ) -> None:
        self._command = [
            sys.executable, "-m", "examples.refunds.pipeline", "--bootstrap-servers", bootstrap,
            "--checkpoint", checkpoint, *extra,
        ]  # fmt: skip
        self._bootstrap = bootstrap
        self._broker = broker
        self._dice = dice
        self._commits = Path(checkpoint) / "commits"
        self.killed: dict[str, int] = {}

    def run(self, kills: int) -> None:
        """Starts the query until it has read everything; kills something so many times on the way."""
        kinds = ["driver", "worker"] + (["broker"] if self._broker else [])
        victims = [kinds[number % len(kinds)] for number in range(kills)]
        for _ in range(kills + 20):
            if self._once(victims):
                return
        raise SystemExit("the query did not come to its end")

    def _once(self, victims: list[str]) -> bool:
        """One start of the query; True when it has read everything. Takes its victims from the list."""
        with tempfile.TemporaryFile() as log:
            query = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                while victims and self._is_under_way(query):
                    self._kill(victims.pop(0), query.pid)
                code = query.wait()
            finally:
                # Whatever a driver leaves behind, killed or not, belongs to its own session.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(query.pid, signal.SIGKILL)
            if code not in (0, -signal.SIGKILL):
                log.seek(0)
                text = log.read().decode(errors="replace")
                print("   the query ended with an error:", _last_words(text), flush=True)
            return code == 0

    def _is_under_way(self, query: subprocess.Popen[bytes]) -> bool:
        """Waits for a few batches, then until the next one is being written; False when the query ended before."""
        wanted = self._batches() + self._dice.randint(1, 3)
        while query.poll() is None and self._batches() < wanted:
            time.sleep(0.02)
        with connect(self._bootstrap) as cluster:
            before = self._written(cluster)
            while query.poll() is None and self._written(cluster) == before:
                time.sleep(0.002)
        time.sleep(self._dice.uniform(0, 0.05))
        return query.poll() is None

    def _written(self, cluster: Cluster) -> int:
        """How much is in the audit topic, committed or not."""
        places = [TopicPartition(AUDIT, index) for index in range(PARTITIONS)]
        ends = cluster.list_offsets(dict.fromkeys(places, LATEST), isolation="read_uncommitted")
        return sum(end.offset for end in ends.values())

    def _batches(self) -> int:
        """How many batches Spark has logged as done."""
        with contextlib.suppress(OSError):
            return sum(name.isdecimal() for name in os.listdir(self._commits))
        return 0

    def _kill(self, victim: str, driver: int) -> None:
        print(f"   kill -9 {victim}", flush=True)
        self.killed[victim] = self.killed.get(victim, 0) + 1
        match victim:
            case "driver":
                os.kill(driver, signal.SIGKILL)
            case "worker":
                workers = python_workers(driver)
                print(f"   ({len(workers)} Python processes)", flush=True)
                for pid in workers:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            case _:
                assert self._broker is not None
                self._broker.kill()
                time.sleep(self._dice.uniform(0, 1))
                self._broker.start()


def _last_words(text: str) -> str:
    lines = [line for line in text.splitlines() if "Error" in line or "fencepost" in line]
    return (lines or text.splitlines() or [""])[-1][:300]


def examine(bootstrap: str, folder: str) -> dict[str, Any]:
    """Loads and audits, in processes of their own."""
    common = ["--bootstrap-servers", bootstrap]
    load = [sys.executable, "-m", "examples.refunds.loader", *common, "--into", folder]
    subprocess.run(load, check=True, stderr=subprocess.DEVNULL)
    audit = [sys.executable, "-m", "examples.refunds.audit", *common, "--warehouse", folder]
    done = subprocess.run(
        audit, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def one_side(options: argparse.Namespace, name: str, extra: list[str]) -> dict[str, Any]:
    print(f"== {name}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="refunds-") as folder,
        broker_at(options.bootstrap_servers, f"{folder}/broker") as (bootstrap, broker),
    ):
        write_settlements(bootstrap, options.settlements)
        started = time.monotonic()
        run = Run(bootstrap, broker, f"{folder}/checkpoint", extra, random.Random(options.seed))
        run.run(options.kills)
        seconds = time.monotonic() - started
        print(f"   everything read after {seconds:.0f} s, killed: {run.killed}", flush=True)
        report = examine(bootstrap, f"{folder}/warehouse")
    for topic, rows in report["rows"].items():
        print(f"   {rows:>9} rows in {topic}")
    for question, wrong in report["wrong"].items():
        print(f"   {wrong:>9} {question}")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--bootstrap-servers", help="an empty cluster to use instead of a broker of our own"
    )
    parser.add_argument("--settlements", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1, help="for the moments of the kills")
    parser.add_argument("--daily-limit", action="store_true", help="the stateful variant")
    parser.add_argument("--compare", action="store_true", help="also without transactions")
    options = parser.parse_args()
    variant = ["--daily-limit"] if options.daily_limit else []
    report = one_side(options, "exactly once", variant)
    if options.compare:
        one_side(options, "at least once", [*variant, "--at-least-once"])
    wrong = any(report["wrong"].values()) or report["rows"][AUDIT] != options.settlements
    print("WRONG" if wrong else "RIGHT: every settlement decided once, every refund paid once")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
