"""`fencepost serve --brokers N` as a process, and the commands that its parent takes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import fencepost
from fencepost.base.failures import FencepostError
from fencepost.cluster.parent.control import send_command
from tools.processes import ServerProcess

READY: Final = re.compile(r"^fencepost is ready at (\S+:\d+)\s*$")
READY_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.02


class ClusterProcess:
    """A cluster on one data folder, which it leaves behind. Its ports stay the same."""

    def __init__(
        self,
        data: Path,
        *,
        brokers: int = 3,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        self.broker_ids = list(range(1, brokers + 1))
        self.bootstrap_servers = ""
        self._port = free_ports(brokers)
        self._options = list(options)
        self._environment = dict(environment or {})
        self._earlier = ""
        self.process: ServerProcess
        self.start()

    def start(self, *, wait: bool = True) -> None:
        """Starts all brokers; `stop` or `kill_parent` came before."""
        command = [sys.executable, "-m", "fencepost", "serve", "--brokers"]
        command += [str(len(self.broker_ids)), "--listen", f"127.0.0.1:{self._port}"]
        command += ["--data", str(self.data), *self._options]
        self.process = ServerProcess(
            command, environment=fencepost_environment(self._environment), kept_lines=None
        )
        if not wait:
            return
        try:
            self.bootstrap_servers = self.process.wait_for_line(_addresses, READY_SECONDS)
        except BaseException:
            self.kill_parent()
            raise

    @property
    def log(self) -> str:
        """Everything that the parent and the brokers have logged, of earlier starts too."""
        return self._earlier + self.process.output

    def stop(self) -> int:
        """Stops all brokers cleanly; returns the exit status of the parent."""
        status = self.process.stop()
        self._after_the_end()
        return status

    def kill_parent(self) -> list[int]:
        """Kills the parent (-9); returns the processes of its brokers, which must end by that."""
        pids = [] if not self.process.is_alive else self.pids_or_none()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait_for_end(0.0)
        self._after_the_end()
        return pids

    def _after_the_end(self) -> None:
        self._earlier += self.process.output

    def pids_or_none(self) -> list[int]:
        """The processes of the brokers as far as the parent tells."""
        with contextlib.suppress(FencepostError):
            return [each["pid"] for each in self.status() if each["pid"] is not None]
        return []

    # -- commands ---------------------------------------------------------------------------------

    def do(self, command: str, broker_id: int | None = None, **arguments: object) -> Any:
        """Sends a command to the parent."""
        about = {} if broker_id is None else {"broker": broker_id}
        return send_command(str(self.data), {"do": command, **about, **arguments})

    def status(self) -> list[dict[str, Any]]:
        """What the parent knows about its brokers."""
        brokers: list[dict[str, Any]] = self.do("status")["brokers"]
        return brokers

    def broker(self, broker_id: int) -> dict[str, Any]:
        """What the parent knows about one broker."""
        return next(each for each in self.status() if each["id"] == broker_id)

    def wait_until(
        self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Returns when a condition holds; AssertionError if it does not in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.is_alive, f"the parent has ended:\n{self.log[-4000:]}"
            assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
            time.sleep(POLL_SECONDS)

    def wait_until_all_serve(self) -> None:
        """Returns when every broker serves."""
        self.wait_until(
            lambda: all(each["state"] == "serving" for each in self.status()), "all brokers serve"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_parent()


def fencepost_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which a process finds the fencepost that is imported here."""
    root = Path(__file__).resolve().parents[3]
    paths = [str(Path(fencepost.__file__).parent.parent), str(root)]
    paths += filter(None, [os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **(more or {})}


def _addresses(line: str) -> str | None:
    found = READY.match(line)
    return found[1] if found else None


def free_ports(count: int, host: str = "127.0.0.1") -> int:
    """The first of some consecutive ports that are free at this moment.

    They are below the range from which the kernel takes the ports of outgoing connections, which
    could take one of them while its broker is dead.
    """
    first = 10_000 + (os.getpid() * 16) % 20_000
    starts: list[int] = [*range(first, 32_000, 8), *range(10_000, first, 8)]
    for start in starts:
        if _are_free(host, range(start, start + count)):
            return start
    raise AssertionError("there are no free ports")


def _are_free(host: str, ports: range) -> bool:
    with contextlib.ExitStack() as sockets:
        try:
            for port in ports:
                sockets.enter_context(socket.socket()).bind((host, port))
        except OSError:
            return False
    return True


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
