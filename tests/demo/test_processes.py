"""No process of the demo outlives it, not even orphans of a killed program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.base.failures import FencepostError
from fencepost_examples.demo.interrupt import Interruption
from fencepost_examples.demo.processes import START_ON_LINE, Supervisor, await_line, last_error_line
from fencepost_examples.demo.sessions import list_processes
from tests.demo.waiting import wait_until
from tests.spark.conftest import environment


def lives(pid: int) -> bool:
    """Whether a process is alive. A zombie has no command line."""
    return bool(list_processes().get(pid))


def test_the_orphans_of_a_killed_program_are_killed_too(tmp_path: Path) -> None:
    family = "sleep 600 & echo child $!; (sleep 600; true) & echo child $!; echo all; sleep 600"
    with (
        Interruption() as interruption,
        Supervisor(interruption, tmp_path, os.environ) as supervisor,
    ):
        program = supervisor.start("family", ["sh", "-c", family])
        await_line(program, "all", 0)
        said = supervisor.log_of("family").read_text().split()
        children = [int(word) for word in said if word.isdecimal()]
        program.kill()
        assert len(children) == 2
        assert all(lives(child) for child in children)
    wait_until(lambda: not any(lives(child) for child in children))


LEADER_OF_A_SESSION = """
import os, signal, subprocess, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
os.kill(child.pid, signal.SIGSTOP)
print("all", child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("step", ["the demo ends", "all are killed"])
def test_a_paused_process_in_a_session_of_its_own_is_killed_too(tmp_path: Path, step: str) -> None:
    """The brokers of a cluster are such processes."""
    with (
        Interruption() as interruption,
        Supervisor(interruption, tmp_path, os.environ) as supervisor,
    ):
        program = supervisor.start("program", [sys.executable, "-c", LEADER_OF_A_SESSION])
        child = int(await_line(program, "all", 0).split()[1])
        assert lives(child)
        if step == "all are killed":
            program.kill_all()
            assert not lives(child)
    assert not lives(child)


SUPERVISOR = """
import os, pathlib, sys, time
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost_examples.demo.cluster import OwnBroker
from fencepost_examples.demo.interrupt import Interruption
from fencepost_examples.demo.processes import Supervisor

folder = pathlib.Path(sys.argv[1])
with Interruption() as interruption, Supervisor(
    interruption, folder, os.environ, deletes=[folder] if sys.argv[2] == "temporary" else []
) as supervisor:
    for name in ("one", "two"):
        supervisor.start(name, ["sh", "-c", "sleep 600 & echo $$ $! > " + name + ".pids; wait"])
    files = [folder / f"{name}.pids" for name in ("one", "two")]
    # A file exists before the shell has written to it.
    while not all(file.exists() and file.read_text().endswith("\\n") for file in files):
        time.sleep(0.01)
    print(*[file.read_text() for file in files], flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("folder_is", ["temporary", "kept"])
def test_nothing_outlives_a_killed_supervisor(tmp_path: Path, folder_is: str) -> None:
    folder = tmp_path / "supervisor"
    folder.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(folder), folder_is],
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert owner.stdout is not None
    with owner.stdout as said:
        programs = [int(word) for _ in range(2) for word in said.readline().split()]
    assert len(programs) == 4
    assert all(lives(pid) for pid in programs)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_until(lambda: not any(lives(pid) for pid in programs))
    if folder_is == "temporary":
        wait_until(lambda: not folder.exists())
    else:
        assert (folder / "one.pids").exists()


def test_a_program_does_not_run_if_its_parent_dies_while_starting_it(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", START_ON_LINE, "sh", "touch", str(tmp_path / "begun")],
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode != 0
    assert not (tmp_path / "begun").exists()


def test_a_program_that_fails_to_start_is_reported_with_its_last_error_line(tmp_path: Path) -> None:
    words = "echo begin; echo 'SomeError: no room' >&2; echo end; exit 3"
    with (
        Interruption() as interruption,
        Supervisor(interruption, tmp_path, os.environ) as supervisor,
        pytest.raises(FencepostError, match="SomeError: no room"),
    ):
        await_line(supervisor.start("broken", ["sh", "-c", words]), "ready", 0)
    assert last_error_line(supervisor.log_of("broken")) == "SomeError: no room"
