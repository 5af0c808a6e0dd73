"""After kill -9: time until open transactions are known again, by their number and the log size.

The clock runs from the start of the process to the coordinator's correct answer about one of them,
so it includes the start of Python or of the JVM. The time of recovery itself is the difference to a
broker without open transactions.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.client import RECORD_BYTES, end_offsets
from bench.generate import generate
from bench.load import Load, Measure, Plot, Round, Scale, Values
from bench.sides import KAFKA, Broker, Side
from fencepost.base.failures import FencepostError
from fencepost.client.blocking import connect

OPEN: Final = (0, 100, 1_000, 10_000)
QUICK_OPEN: Final = (0, 100, 1_000)
LOG_MEGABYTES: Final = (100, 1_000, 2_000)
QUICK_LOG_MEGABYTES: Final = (100,)
IDS: Final = 100_000
CROWD: Final = 10_000
CONNECTIONS: Final = 32
FEW_IDS: Final = 10
PATIENCE_SECONDS: Final = 120.0
TIMEOUT_MS: Final = 200
COMMIT_SECONDS: Final = 3.0


def _open_transactions(broker: Broker, count: int) -> None:
    if count:
        generate(
            broker,
            "open",
            count=count,
            producers=min(CONNECTIONS, count),
            prefix="open",
            topic="open",
            size=RECORD_BYTES,
            seconds=3600,
        )


def _seconds_to_serve(side: Side, data: Path, opened: int) -> float:
    """Recovery with open transactions and a log: from the process start to the correct answers."""
    with side.start(data, wait=False) as broker:
        wanted = ["open-0", f"open-{opened - 1}"] if opened else []
        _wait_for_states(broker, wanted)
        end_offsets(broker, "bench")
        return broker.process.seconds_since_start()


def _wait_for_states(broker: Broker, wanted: list[str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    options = {"request.timeout.ms": TIMEOUT_MS, "default.api.timeout.ms": TIMEOUT_MS}
    while True:
        try:
            with connect(broker.bootstrap_servers, options) as cluster:
                views = cluster.describe_transactions(wanted) if wanted else {}
        except (FencepostError, OSError):
            assert time.monotonic() < deadline, "the coordinator did not come back"
            continue
        states = {name: view.state if view else "unknown" for name, view in views.items()}
        assert all(state == "Ongoing" for state in states.values()), f"recovered wrongly: {states}"
        return


def _killed_with(side: Side, data: Path, opened: int, megabytes: int) -> float:
    """Starts, fills, kills, and returns the seconds until it serves again."""
    with side.start(data) as broker:
        generate(broker, "tv2", seconds=0.2)
        if megabytes:
            room = megabytes * 1_000_000
            generate(broker, "acks1", producers=4, records=1000, seconds=3600, max_bytes=room)
        _open_transactions(broker, opened)
        broker.kill()
    seconds = _seconds_to_serve(side, data, opened)
    shutil.rmtree(data)
    return seconds


def _points(side: Side, scale: Scale) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The number of open transactions, and of megabytes in the log."""
    if scale.quick:
        return QUICK_OPEN, QUICK_LOG_MEGABYTES
    if side is KAFKA:
        # 15 s for each, whatever is in the log: the ends are enough.
        return (OPEN[0], OPEN[-1]), (LOG_MEGABYTES[0], LOG_MEGABYTES[-1])
    return OPEN, LOG_MEGABYTES


@contextmanager
def _growing(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
    def run(number: int) -> Values:
        values: dict[str, float] = {}
        counts, sizes = _points(side, scale)
        for count in counts:
            data = folder / f"{number}-open-{count}"
            values[f"open {count}"] = _killed_with(side, data, count, 0)
        for size in sizes:
            values[f"log {size}"] = _killed_with(side, folder / f"{number}-log-{size}", 0, size)
        for name in list(values):
            values[f"more, {name}"] = max(values[name] - values["open 0"], 0.001) * 1000
        return values

    yield run


@contextmanager
def _crowded(side: Side, _: Scale, folder: Path) -> Iterator[Round]:
    def run(number: int) -> Values:
        data = folder / str(number)
        with side.start(data) as broker:
            _make_known(broker, FEW_IDS)
            few = _commit_p50(broker)
            _make_known(broker, IDS - CROWD)
            _open_transactions(broker, CROWD)
            many = _commit_p50(broker)
            memory = broker.process.resident_bytes() / 1e6
            broker.kill()
        seconds = _seconds_to_serve(side, data, CROWD)
        shutil.rmtree(data)
        return {
            "recovery": seconds,
            "memory": memory,
            "p50": many,
            "p50 few": few,
            "p50 growth": many / few,
        }

    yield run


def _make_known(broker: Broker, count: int) -> None:
    generate(broker, "ids", count=count, producers=FEW_IDS, prefix="known", seconds=3600)


def _commit_p50(broker: Broker) -> float:
    figures = generate(
        broker, "tv2", producers=1, prefix="known", seconds=COMMIT_SECONDS, warmup_seconds=1
    )
    return figures["commit_p50_ms"]


def _plot(name: str, title: str, x_label: str, what: str, points: tuple[int, ...]) -> Plot:
    places = tuple((float(point), f"{what} {point}") for point in points)
    return Plot(name, title, x_label, "seconds from start to serving", places)


GROWING: Final = Load(
    "recovery",
    "recovery after kill -9",
    (
        Measure("more, open 100", "100 open: ms more than with none", "less", limit=90.0),
        *(Measure(f"open {n}", f"{n:,} open: s to serve", "less") for n in OPEN),
        *(Measure(f"log {n}", f"log of {n:,} MB: s to serve", "less") for n in LOG_MEGABYTES),
    ),
    _growing,
    rounds=2,
    quick_rounds=1,
    warmup_seconds=0,
    quick_warmup_seconds=0,
    quick_only_ours=True,
    plots=(
        _plot(
            "recovery-open",
            "Recovery after kill -9: open transactions",
            "open transactions",
            "open",
            OPEN,
        ),
        _plot(
            "recovery-log", "Recovery after kill -9: the log", "MB in the log", "log", LOG_MEGABYTES
        ),
    ),
)

CROWDED: Final = Load(
    "crowd",
    f"{IDS:,} transactional ids known, {CROWD:,} transactions open",
    (
        Measure("recovery", "s to serve after kill -9", "less", limit=3.0),
        Measure("memory", "MB resident", "less", limit=300.0),
        Measure("p50 growth", f"x commit p50 with {FEW_IDS} ids", "less", limit=1.5),
        Measure("p50", "ms commit p50", "less"),
        Measure("p50 few", f"ms commit p50 with {FEW_IDS} ids", "less"),
    ),
    _crowded,
    rounds=2,
    quick_rounds=1,
    warmup_seconds=0,
    quick_warmup_seconds=0,
    only_ours=True,
    in_quick=False,
)
LOADS: Final = (GROWING, CROWDED)
