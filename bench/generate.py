"""Our load generator as a process beside the broker, as the loads use it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from confluent_kafka import KafkaException

from bench import client
from bench.even import most_bytes, write_back
from bench.generator.engine import WARMUP_SHARE
from bench.load import Scale
from bench.sides import Broker, Side
from tools.apache_kafka import ROOT
from tools.processes import die_with_the_parent

PATIENCE_SECONDS: Final = 600.0
WARMUP_SECONDS: Final = 15
QUICK_WARMUP_SECONDS: Final = 6

_numbers = itertools.count()

Figures = Mapping[str, float]
"""The fields of `bench.generator.tally.Figures` by name."""


def generate(broker: client.Server, mode: str, **wishes: Any) -> Figures:
    """Runs the generator once; AssertionError with its message if it failed."""
    who = {"bootstrap": broker.bootstrap_servers, "broker-pids": ",".join(map(str, _pids(broker)))}
    return run_generator("bench.generator", {"mode": mode, **who, **wishes}, "--json")


def run_generator(module: str, wishes: Mapping[str, Any], *flags: str) -> Figures:
    """Runs one of the generators as a process; AssertionError with its message if it failed."""
    command = [sys.executable, "-m", module, *flags]
    for name, value in wishes.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths))),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        preexec_fn=die_with_the_parent,
    )
    assert done.returncode == 0, done.stderr.strip()
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _pids(broker: client.Server) -> list[int]:
    # The parent of a cluster takes no part in a transaction, but its cost is a cost of the cluster.
    brokers = broker.pids().values() if hasattr(broker, "pids") else ()
    return [broker.process.pid, *brokers]


def generate_once(broker: client.Server, mode: str, **wishes: Any) -> Figures:
    """Runs the generator from an even start, and deletes its topic afterwards."""
    if wanted := wishes.get("max_bytes"):
        wishes["max_bytes"] = most_bytes(wanted)
        # The warm-up writes as well.
        wishes["room_bytes"] = int(wishes["max_bytes"] * (1 + WARMUP_SHARE))
    write_back()
    # A fresh name: the previous topic may still be in deletion.
    topic = str(wishes.setdefault("topic", f"generated-{next(_numbers)}"))
    try:
        figures = generate(broker, mode, **wishes)
    except BaseException:
        # The reason of the failed run matters, not that there was no topic to delete.
        with suppress(KafkaException):
            client.delete_topic(broker, topic)
        raise
    client.delete_topic(broker, topic)
    return figures


@contextmanager
def shared_broker(side: Side, scale: Scale) -> Iterator[Broker]:
    """The shared broker of several loads; there is nothing to stop at the end."""

    def warm_up(broker: Broker) -> None:
        seconds = scale.of(WARMUP_SECONDS, QUICK_WARMUP_SECONDS)
        for mode in ("tv1", "tv2", "idempotent"):
            generate_once(broker, mode, producers=16, records=10, seconds=seconds / 3)

    yield side.shared(warm_up)
