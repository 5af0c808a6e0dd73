"""Which broker processes are alive, by the kernel's word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fencepost.base.failures import StorageError
from fencepost.cluster.broker.owners import Owners

CLAIM = """
import sys
from fencepost.cluster.broker.owners import Owners
owners = Owners(sys.argv[1])
owners.claim(int(sys.argv[2]))
print("claimed", flush=True)
input()
"""


@contextmanager
def owner(folder: Path, broker_id: int) -> Iterator[subprocess.Popen[str]]:
    """A process that has claimed a broker's byte."""
    with subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(folder), str(broker_id)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_broker_is_alive_while_its_process_lives(tmp_path: Path) -> None:
    owners = Owners(str(tmp_path))
    assert owners.holder_of(2) is None
    with owner(tmp_path, 2) as process:
        assert owners.holder_of(2) == process.pid
        assert owners.holder_of(1) is None
        assert owners.holder_of(3) is None
        process.kill()
        process.wait()
        assert owners.holder_of(2) is None
    owners.close()


def test_a_stopped_process_still_holds_its_byte(tmp_path: Path) -> None:
    owners = Owners(str(tmp_path))
    with owner(tmp_path, 1) as process:
        process.send_signal(signal.SIGSTOP)
        assert owners.holder_of(1) is not None
    owners.close()


def test_two_processes_cannot_be_the_same_broker(tmp_path: Path) -> None:
    owners = Owners(str(tmp_path))
    with owner(tmp_path, 1) as process:
        with pytest.raises(StorageError, match=f"broker 1 runs already, as process {process.pid}"):
            owners.claim(1)
        owners.claim(2)
    owners.claim(1)
    owners.close()


def test_a_child_of_a_broker_does_not_keep_its_byte(tmp_path: Path) -> None:
    script = CLAIM.replace(
        'print("claimed"', 'import subprocess; subprocess.Popen(["sleep", "60"]); print("claimed"'
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        owners = Owners(str(tmp_path))
        assert owners.holder_of(1) is not None
        process.kill()
        process.wait()
        assert owners.holder_of(1) is None
        owners.close()
        os.killpg(process.pid, signal.SIGKILL)
