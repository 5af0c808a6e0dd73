"""What metrics cost: processor time per transaction without and with `--metrics`, and a scrape.

Two brokers run side by side and take turns, so that a busy machine slows both. The one with metrics
is scraped once a second, more often than any Prometheus does. The scrape itself is measured on a
broker with many partitions: its processor time, and how long it keeps the loop from other clients,
by the pings of `stalls.py`.
"""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.generate import generate_once
from bench.load import Load, Measure, Round, Scale, Values
from bench.loads.stalls import Talk
from bench.pinger import pinging, processor_seconds
from bench.sides import Broker, Side, fencepost_python
from tools.fencepost_process import FencepostProcess
from tools.processes import free_port

PRODUCERS: Final = 16
SECONDS: Final = 2.0
QUICK_SECONDS: Final = 0.7
TOPICS: Final = 200
QUICK_TOPICS: Final = 20
PARTITIONS_PER_TOPIC: Final = 100
SCRAPE_SECONDS: Final = 1.0
SCRAPES: Final = 5
LONGEST_MS: Final = 10.0


@contextmanager
def _session(_: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    ports = [free_port(), free_port()]
    options = [("--metrics", f"127.0.0.1:{port}") for port in ports]
    with (
        _started(folder / "without") as without,
        _started(folder / "measured", *options[0]) as measured,
        _started(folder / "large", *options[1]) as large,
    ):
        with Talk(large) as talk:
            for number in range(scale.of(TOPICS, QUICK_TOPICS)):
                talk.create(f"many-{number:03d}", partitions=PARTITIONS_PER_TOPIC)
        yield lambda number: {
            **_transactions(without, measured, ports[0], scale, number),
            **_scrape(large, ports[1]),
        }
        large.kill()


def _started(data: Path, *options: str) -> FencepostProcess:
    listen = f"127.0.0.1:{free_port()}"
    return FencepostProcess(data, listen=listen, python=fencepost_python(), options=options)


def _transactions(
    without: Broker, measured: Broker, port: int, scale: Scale, number: int
) -> Values:
    values: dict[str, float] = {}
    wishes = {
        "producers": PRODUCERS,
        "seconds": QUICK_SECONDS if scale.quick else SECONDS,
        "warmup_seconds": 0.3,
    }

    def run_off() -> None:
        values["off"] = generate_once(without, "tv2", **wishes)["broker_us"]

    def run_on() -> None:
        with _scraping(port):
            values["on"] = generate_once(measured, "tv2", **wishes)["broker_us"]

    for run in (run_off, run_on) if number % 2 == 0 else (run_on, run_off):
        run()
    values["cost"] = values["on"] - values["off"]
    return values


@contextmanager
def _scraping(port: int) -> Iterator[None]:
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.wait(SCRAPE_SECONDS):
            _read(port)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _read(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        text: bytes = reply.read()
    return text


def _scrape(broker: Broker, port: int) -> Values:
    before = processor_seconds(broker.process.pid)
    for _ in range(SCRAPES):
        text = _read(port)
    used = processor_seconds(broker.process.pid) - before
    with pinging(broker.bootstrap_servers, broker.process.pid) as pings:
        for _ in range(SCRAPES):
            _read(port)
    return {
        "scrape": used / SCRAPES * 1e3,
        "bytes": float(len(text)) / 1e3,
        "busiest": pings.busiest,
        "worst": pings.worst,
    }


LOAD: Final = Load(
    "metrics",
    "What metrics cost",
    (
        Measure("off", "µs of broker CPU per transaction, without --metrics", "less"),
        Measure("on", "µs with --metrics, scraped once a second", "less"),
        Measure("cost", "µs more", "less"),
        Measure(
            "scrape",
            f"ms of CPU, scrape of {TOPICS * PARTITIONS_PER_TOPIC:,} partitions",
            "less",
        ),
        Measure("bytes", "KB of text", "less"),
        Measure(
            "busiest",
            "ms of CPU before a ping is answered",
            "less",
            limit=LONGEST_MS,
        ),
        Measure("worst", "ms until a ping is answered", "less"),
    ),
    _session,
    rounds=6,
    quick_rounds=4,
    warmup_seconds=1,
    quick_warmup_seconds=1,
    quick_note=f"{QUICK_TOPICS * PARTITIONS_PER_TOPIC:,} partitions",
    only_ours=True,
)
