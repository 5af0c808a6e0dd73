"""Three hosts with several addresses each, as network namespaces of this machine. Needs root.

    driver    198.18.9.1 (its own), 198.18.1.1 (to worker 1), 198.18.2.1 (to worker 2)
    worker 1  198.18.3.1 (to worker 2), 198.18.1.2 (to the driver)
    worker 2  198.18.3.2 (to worker 1), 198.18.2.2 (to the driver)

Every link is a pair of virtual interfaces, and nothing is forwarded: each host reaches the address
in the first column of the others, but worker 1 cannot reach the address with which worker 2 calls
the driver. The namespaces have no link to anything else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final, Self

DRIVER_HOST: Final = "198.18.9.1"
WORKER_HOSTS: Final = ("198.18.3.1", "198.18.3.2")


def reason_without() -> str | None:
    """Why this machine cannot make namespaces; None if it can."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    if shutil.which("unshare") is None:
        return "unshare (util-linux) is not installed"
    probe = f"fencepost-probe-{os.getpid()}"
    found = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if found.returncode:
        return f"this machine does not allow network namespaces: {found.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", probe], check=True)
    return None


class Namespaces:
    """The three hosts; they are gone when the block ends."""

    def __init__(self) -> None:
        self.driver, *self.workers = (f"fencepost-{os.getpid()}-{name}" for name in ("d", "1", "2"))

    def __enter__(self) -> Self:
        try:
            for name in (self.driver, *self.workers):
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", self.driver, "address", "add", f"{DRIVER_HOST}/32", "dev", "lo")
            self._join_workers()
            for number, (name, host) in enumerate(zip(self.workers, WORKER_HOSTS, strict=True), 1):
                _link(self.driver, f"198.18.{number}.1", name, f"198.18.{number}.2")
                _route(self.driver, host, f"198.18.{number}.2")
                _route(name, DRIVER_HOST, f"198.18.{number}.1")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for name in (self.driver, *self.workers):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def _join_workers(self) -> None:
        (first, second), (one, two) = self.workers, WORKER_HOSTS
        _link(first, one, second, two)


def inside(name: str, host_name: str | None = None) -> list[str]:
    """What comes before a command that runs in a namespace.

    A host name of its own has to be one that this machine can resolve: Spark looks it up.
    """
    command = ["ip", "netns", "exec", name]
    if host_name is not None:
        script = f'hostname {host_name} && exec "$@"'
        command += ["unshare", "--uts", "sh", "-c", script, "sh"]
    return command


def _link(here: str, my_address: str, there: str, their_address: str) -> None:
    mine, theirs = f"v{my_address[7:]}", f"v{their_address[7:]}"
    _ip("link", "add", mine, "netns", here, "type", "veth", "peer", theirs, "netns", there)
    for name, device, address in ((here, mine, my_address), (there, theirs, their_address)):
        _ip("-n", name, "address", "add", f"{address}/30", "dev", device)
        _ip("-n", name, "link", "set", device, "up")


def _route(name: str, target: str, via: str) -> None:
    _ip("-n", name, "route", "add", f"{target}/32", "via", via)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
