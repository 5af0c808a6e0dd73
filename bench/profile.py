"""Where a megabyte and where a commit go in the broker: by function, and by system call where strace is found.

The broker runs under cProfile, which makes everything slower and small functions most of all: read the shares, and take the
times from `make bench`.
"""

from __future__ import annotations

import argparse
import io
import os
import pstats
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench import client
from bench.sides import Broker
from tools.fencepost_process import FencepostProcess
from tools.processes import free_port

MEGABYTES: Final = 200
TRANSACTIONS: Final = 2000
SHOWN: Final = 30


def megabytes(broker: Broker) -> int:
    """Produces records of 1 KB with acks=1; returns the megabytes."""
    client.create_topic(broker, "profile")
    count = MEGABYTES * 1_000_000 // client.RECORD_BYTES
    client.send(
        client.producer(broker, acks="1"), "profile", os.urandom(client.RECORD_BYTES), count
    )
    return MEGABYTES


def commits(broker: Broker) -> int:
    """Commits transactions of one record; returns how many."""
    client.create_topic(broker, "profile")
    producer = client.producer(broker, transactional_id="profile")
    producer.init_transactions()
    for _ in range(TRANSACTIONS):
        producer.begin_transaction()
        producer.produce("profile", b"x" * client.RECORD_BYTES)
        producer.commit_transaction()
    return TRANSACTIONS


WORK: Final[dict[str, tuple[str, Callable[[Broker], int]]]] = {
    "megabyte": ("megabyte produced", megabytes),
    "commit": ("transaction of one record committed", commits),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("work", nargs="*", choices=[*WORK, []], help="default: both")
    for name in parser.parse_args().work or list(WORK):
        what, work = WORK[name]
        print(f"\n=== Where one {what} goes ===\n")
        _by_function(what, work)
        _by_system_call(what, work)
    return 0


def _by_function(what: str, work: Callable[[Broker], int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "profile"
        python = (sys.executable, "-m", "cProfile", "-o", str(output))
        count = _run(Path(folder), python, work)
        text = io.StringIO()
        stats = pstats.Stats(str(output), stream=text)
    own = {place: entry[2] for place, entry in stats.stats.items()}  # type: ignore[attr-defined]
    # The loop is native code: its own time is waiting for clients and moving bytes through sockets.
    loop = sum(seconds for (_, _, name), seconds in own.items() if name == "run")
    each = (sum(own.values()) - loop) / count * 1e6
    stats.strip_dirs().sort_stats("tottime").print_stats(SHOWN)
    print(
        f"{each:,.0f} us of Python per {what}, slowed by the profiler, start of the broker included;"
    )
    print(f"beside it {loop:.1f} s in the loop itself (`run`), most of it waiting for the client")
    print("\n".join(line for line in text.getvalue().splitlines()[6:] if line.strip()))


def _by_system_call(what: str, work: Callable[[Broker], int]) -> None:
    if shutil.which("strace") is None:
        print("\nsystem calls: left out, strace is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "calls"
        tracer = ("strace", "-f", "-c", "-S", "time", "-o", str(output), sys.executable)
        count = _run(Path(folder), tracer, work)
        table = output.read_text().splitlines()
    print(f"\nsystem calls of {count} times one {what}, start and stop of the broker included")
    print("(futex and epoll are mostly waiting)")
    print("\n".join(table[:15]))


def _run(folder: Path, python: Sequence[str], work: Callable[[Broker], int]) -> int:
    listen = f"127.0.0.1:{free_port()}"
    with FencepostProcess(folder / "data", listen=listen, python=python) as broker:
        count = work(broker)
        # Stopped here and cleanly: the profiler writes its file on the way out.
        _interrupt(broker)
    return count


def _interrupt(broker: FencepostProcess) -> None:
    """Stops the broker itself, which is a child where a tracer stands in front of it."""
    children = Path(f"/proc/{broker.process.pid}/task/{broker.process.pid}/children")
    pids = children.read_text().split() if children.exists() else []
    if pids:
        subprocess.run(["kill", "-TERM", pids[0]], check=True)
        broker.process.wait_for_end()
    else:
        broker.stop()


if __name__ == "__main__":
    sys.exit(main())
