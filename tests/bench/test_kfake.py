"""The side kfake: built once with Go, started, stopped, and left out where it cannot be built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench import kfake
from bench.kfake import Kfake, build_kfake
from bench.load import Scale
from bench.loads import LOADS
from bench.run import taking_part
from bench.sides import FENCEPOST, KAFKA, KFAKE, available
from tools.apache_kafka import UnavailableError

SERVER = f"""#!{sys.executable}
import signal, sys
print("kfake is ready at 127.0.0.1:" + sys.argv[1].removeprefix("-port="), flush=True)
signal.sigwait([signal.SIGTERM])
"""

# Writes the server to the path after -o, and notes that it was called.
GO = f"""#!{sys.executable}
import os, sys
from pathlib import Path
assert os.environ["GOWORK"] == "off"
target = Path(sys.argv[sys.argv.index("-o") + 1])
target.write_text({SERVER!r})
target.chmod(0o755)
with Path(__file__).with_name("calls").open("a") as calls:
    calls.write("built\\n")
"""
BROKEN_GO = "#!/bin/sh\necho no such module\nexit 1\n"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with programs, and a source and a target that tests may change."""
    programs, source = tmp_path / "programs", tmp_path / "source"
    programs.mkdir()
    source.mkdir()
    (source / "main.go").write_text("package main\n")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(kfake, "SOURCE", source)
    monkeypatch.setattr(kfake, "TARGET", tmp_path / "build")
    return programs


def install_go(programs: Path, text: str = GO) -> None:
    (programs / "go").write_text(text)
    (programs / "go").chmod(0o755)


def times_built(programs: Path) -> int:
    return len((programs / "calls").read_text().splitlines())


def test_it_is_built_once_and_again_when_its_source_changes(tools: Path) -> None:
    install_go(tools)

    first = build_kfake()
    assert build_kfake() == first
    assert times_built(tools) == 1

    (kfake.SOURCE / "main.go").write_text("package main // changed\n")
    assert build_kfake() != first
    assert times_built(tools) == 2


def test_it_starts_at_the_given_port_and_its_process_ends_with_the_block(
    tools: Path, tmp_path: Path
) -> None:
    install_go(tools)

    with Kfake(tmp_path / "data", port=19092, partitions=4) as broker:
        assert broker.bootstrap_servers == "127.0.0.1:19092"
        pid = broker.process.pid
        assert broker.process.is_alive

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_without_go_it_is_left_out_with_one_line(tools: Path) -> None:
    said: list[str] = []

    assert available(["kfake"], said.append) == []

    assert said == ["skipped: kfake needs go, not found on this machine"]


def test_a_failed_build_leaves_it_out_with_the_reason_and_leaves_no_program(tools: Path) -> None:
    install_go(tools, BROKEN_GO)

    with pytest.raises(UnavailableError, match="no such module"):
        build_kfake()

    assert [path.name for path in kfake.TARGET.iterdir()] == ["lock"]


def test_it_takes_part_only_in_loads_that_one_broker_in_memory_can_do() -> None:
    sides = [FENCEPOST, KAFKA, KFAKE]
    scale = Scale(quick=False)

    with_it = [load.name for load in LOADS if KFAKE in taking_part(load, sides, scale)]

    assert with_it == [
        "small",
        "produce-acks-1",
        "produce-idempotent",
        "transactions-1",
        "transactions-16",
        "transactions-of-10",
        "transactions-of-1000",
        "consume",
        "kit",
    ]
