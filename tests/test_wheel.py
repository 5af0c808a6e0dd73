"""The wheel in another environment: types, pytest fixtures and correct metadata."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tools.check_release import metadata_of, problems_of_wheel

ROOT = Path(__file__).resolve().parents[1]

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    hatchling = pytest.importorskip("hatchling.builders.wheel", reason="hatchling builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = hatchling.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(built)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and nothing else; its Python."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return folder / "bin" / "python"


def site_of(python: Path) -> Path:
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    return site


# -- types

USER = """
import fencepost
from fencepost.spark import TransactionalSink

with fencepost.Broker(config={"num.partitions": 3}, durability="fsync") as broker:
    servers: str = broker.bootstrap_servers
    broker.restart()

sink = TransactionalSink(servers, transactional_id="refunds", topic="refunds-emitted")
reveal_type(fencepost.Broker)
reveal_type(sink)
"""

MISUSE = """
import fencepost
from fencepost.spark import TransactionalSink

fencepost.Broker(port="9092")
fencepost.Broker().bootstrap_server
TransactionalSink("localhost:9092", transactional_id=7, topic="refunds-emitted")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_program_is_type_checked_against_the_installed_package(
    environment: Path, tmp_path: Path
) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "misuse.py").write_text(MISUSE)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(environment)]
    checked = subprocess.run(
        [*command, "--config-file=", "user.py", "misuse.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        env={key: value for key, value in os.environ.items() if key != "MYPYPATH"},
    )
    lines = checked.stdout.splitlines()
    assert [line for line in lines if line.startswith("user.py") and ": error:" in line] == []
    revealed = "\n".join(line for line in lines if "Revealed type" in line)
    assert "fencepost.testing.embedded.Broker" in revealed
    assert "fencepost.spark.doors.foreach_batch.TransactionalSink" in revealed
    found = [re.sub(r"^misuse.py:(\d+): error: .*\[(.*)\]$", r"\1 \2", line) for line in lines]
    assert [line for line in found if re.match(r"\d ", line)] == [
        "5 arg-type",
        "6 attr-defined",
        "7 arg-type",
    ]


# -- pytest

SUITE = """
import sys
import pytest

def test_without_a_broker_nothing_of_it_is_loaded():
    assert "fencepost.testing.fixtures" in sys.modules
    assert not [name for name in sys.modules if name.startswith(("fencepost.broker", "asyncio"))]

def test_a_broker(fencepost_broker):
    assert fencepost_broker.bootstrap_servers
"""


@pytest.mark.parametrize("conftest", ["", 'pytest_plugins = ["fencepost.testing.pytest_plugin"]'])
def test_the_fixtures_are_found_with_and_without_the_pytest_plugins_line(
    environment: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, conftest: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site_of(environment)))
    pytester.makeconftest(conftest)
    pytester.makepyfile(SUITE)
    options = ["-p", "no:cacheprovider", "-W", "error", "-p", "no:xdist", "-p", "no:timeout"]
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=2)


def test_the_fixtures_can_be_left_out(
    environment: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site_of(environment)))
    pytester.makepyfile("def test_a_broker(fencepost_broker): pass")
    ended = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:fencepost")
    ended.assert_outcomes(errors=1)
    ended.stdout.fnmatch_lines("*fixture 'fencepost_broker' not found*")


# -- metadata


def test_the_metadata_contains_no_author_and_no_url(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    for field in ("Author", "Author-email", "Maintainer", "Maintainer-email", "Home-page"):
        assert metadata[field] is None
    assert metadata.get_all("Project-URL") is None


def test_the_wheel_has_the_sources_the_licence_and_no_development_extras(wheel: Path) -> None:
    assert list(problems_of_wheel(wheel, compiled=False)) == []


def test_the_spark_extra_allows_only_tested_versions() -> None:
    """Other versions may break the guarantee. docs/spark.md says which were tested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["spark"]
    assert [text for text in extra if text.startswith("pyspark")] == ["pyspark>=3.5,<4.4"]
    assert "Spark 3.5 and 4.0 to 4.3" in (ROOT / "docs" / "spark.md").read_text()
