"""Settings for all tests: of Hypothesis, and of the Java that Spark and Apache Kafka run on.

Machines differ and may be busy, so no example has a deadline. In continuous integration the
examples are the same on every run, so a failure comes from the change and not from chance; the
second half of `tests/halves.py` draws others than the first, from the seed in the Makefile.

A test's query ends before the optimising compiler of the JVM has paid for itself: without it, and
with the simplest garbage collector, Spark needs two thirds of the processor time. The archive of
`tools/spark_archive.py`, if there is one, saves another third. A JVM that it does not fit would say
so on its output, hence -Xlog:disable. JVMs that tests kill leave files behind, so they all get a
temporary folder that is deleted at the end.

Collection makes objects that live until the end, so the garbage collector is off during it and does
not look at them afterwards: collecting takes half of the processor time.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.broker.histories import seeds
from tests.halves import HALF, described

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", parent=settings.get_profile("default"), derandomize=HALF == 1, database=None
)
settings.load_profile("ci" if os.environ.get("CI") else "default")

_JAVA_OPTIONS: Final = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
_ARCHIVE: Final = Path(__file__).parents[1] / "build" / "spark.jsa"
if _ARCHIVE.exists() and _ARCHIVE.stat().st_size:
    _JAVA_OPTIONS.extend(["-Xlog:disable", f'"-XX:SharedArchiveFile={_ARCHIVE}"'])

# Every JVM reads it, also those of the programs that tests start, and of the other test processes.
if "JDK_JAVA_OPTIONS" not in os.environ:
    _temporary = tempfile.mkdtemp(prefix="fencepost-tests-")
    atexit.register(shutil.rmtree, _temporary, ignore_errors=True)
    _JAVA_OPTIONS.extend([f'"-Djava.io.tmpdir={_temporary}"', "-XX:-UsePerfData"])
    os.environ["JDK_JAVA_OPTIONS"] = " ".join(_JAVA_OPTIONS)


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Undoes the log settings of a command, such as `serve`, that a test ran in this process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)


_LONG: Final = (
    "cli/commands/test_demo.py",
    "spark/test_executors.py",
    "spark/test_driver_deaths.py",
    "cluster/chaos",
    "spark/doors/test_foreach_batch.py",
    "spark/source/test_source.py",
    "test_start.py",
    "refunds",
    "spark",
    "cluster",
    "testing/test_cluster.py",
    "broker/crashes/test_crash_matrix",
    "transactions/test_kill.py",
    "transactions/test_refunds_clients.py",
    "broker/test_process.py",
    "broker/test_process_odd_directories.py",
    "bench",
)
"""Files and folders whose tests take long, the longest first. They begin before all others, so that
no test process is left with them alone at the end."""

_NOT_FAST: Final = (
    *_LONG,
    "broker/controller/test_checkpoint_crashes.py",
    "broker/groups/test_saved_records.py",
    "broker/groups/test_partition_crashes.py",
    "broker/metrics/test_endpoint_process.py",
    "broker/storage/test_broker_layout_resizing.py",
    "broker/crashes/test_failed_steps.py",
    "broker/crashes/test_failing_disk.py",
    "broker/crashes/test_power_loss.py",
    "broker/test_handlers_every_api.py",
    "broker/histories/test_histories.py",
    "broker/crashes/test_kill.py",
    "broker/moves/test_moves.py",
    "broker/moves/test_random_moves.py",
    "broker/handlers/test_produce_unreadable_records.py",
    "broker/security/test_secrets.py",
    "cli",
    "coordinator/test_group_histories.py",
    "coordinator/test_txn_crashes.py",
    "demo/test_processes.py",
    "forensics/history/test_why_situations.py",
    "forensics/tap/test_proxy_clients.py",
    "forensics/tap/test_relay.py",
    "forensics/tap/test_run.py",
    "log/test_log_crash_points.py",
    "outside",
    "partition/test_partition_failed_steps.py",
    "test_compat_selections.py",
    "test_first_hour.py",
    "test_release.py",
    "test_wheel.py",
    "testing/test_guide.py",
    "testing/test_http_control_from_go.py",
    "transactions/test_cases.py",
    "transactions/test_state_machine.py",
    "wire/test_codec_against_kio.py",
    "wire/test_codec_hostile.py",
)
"""What `--fast` leaves out: matrices, random histories, and tests that start other processes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast",
        action="store_true",
        help="leave out what takes long: Spark, child processes, matrices (make test-fast)",
    )


def pytest_report_header() -> list[str]:
    return [line for line in (described(), seeds.described()) if line]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --fast, such files are not even imported. None lets other plugins decide."""
    return (config.getoption("--fast") and _path(collection_path).startswith(_NOT_FAST)) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.path))
    if config.getoption("--fast"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@cache
def _place(file: Path) -> int:
    path = _path(file)
    return next((place for place, long in enumerate(_LONG) if path.startswith(long)), len(_LONG))


def _path(file: Path) -> str:
    return file.relative_to(Path(__file__).parent).as_posix()
