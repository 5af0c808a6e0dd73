"""Our own load generator as a process beside the broker, as the loads use it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from bench import client
from bench.load import Scale
from bench.sides import Broker, Side
from tools.apache_kafka import ROOT
from tools.processes import die_with_the_parent

PATIENCE_SECONDS: Final = 600.0
WARMUP_SECONDS: Final = 20
QUICK_WARMUP_SECONDS: Final = 6

_numbers = itertools.count()

Figures = Mapping[str, float]
"""The fields of `bench.generator.tally.Figures` by their names, and `broker_us`: the microseconds of a processor that the
broker used for one transaction, or for one request where there are none. Others on the machine change it far less than the time."""


def generate(broker: Broker, mode: str, **wishes: Any) -> Figures:
    """One run of the generator; AssertionError with its sentence when it failed."""
    command = [sys.executable, "-m", "bench.generator", "--json", "--mode", mode]
    command += ["--bootstrap", broker.bootstrap_servers]
    for name, value in wishes.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    before = _processor_seconds(broker)
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
    used = _processor_seconds(broker) - before
    return figures | {"broker_us": used * 1e6 / max(_all_times(figures), 1.0)}


def _processor_seconds(broker: Broker) -> float:
    """What the broker's threads have used so far; 0 where the system does not tell."""
    status = Path(f"/proc/{broker.process.pid}/stat")
    if not status.exists():
        return 0.0
    # Behind the name, which may hold anything: state is the third field, user and system time the 14th and 15th.
    fields = status.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _all_times(figures: Figures) -> float:
    """How often it was done, the warm-up and the end included."""
    return figures["all_transactions"] or figures["all_requests"]


def generate_once(broker: Broker, mode: str, **wishes: Any) -> Figures:
    """A run whose topic is deleted behind it, and whatever is left written back: the next run starts even."""
    # A name of its own: the one before may still be on its way out.
    topic = str(wishes.setdefault("topic", f"generated-{next(_numbers)}"))
    try:
        figures = generate(broker, mode, **wishes)
    except BaseException:
        # Why the run failed is what counts, and not that there was no topic to delete.
        with suppress(KafkaException):
            client.delete_topic(broker, topic)
        raise
    client.delete_topic(broker, topic)
    os.sync()
    return figures


@contextmanager
def shared_broker(side: Side, scale: Scale) -> Iterator[Broker]:
    """The broker that loads share. It stays, so there is nothing to end here."""

    def warm_up(broker: Broker) -> None:
        seconds = scale.of(WARMUP_SECONDS, QUICK_WARMUP_SECONDS)
        for mode in ("tv1", "tv2", "idempotent"):
            generate_once(broker, mode, producers=16, records=10, seconds=seconds / 3)

    yield side.shared(warm_up)
