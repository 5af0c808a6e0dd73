"""A Java client reaches fencepost by every local address."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tools.fencepost_process import FencepostProcess
from tools.java_tools import JavaTools


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_java_client_connects_by_any_local_address(
    host: str, tmp_path: Path, tools: JavaTools
) -> None:
    if host == "[::1]" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with FencepostProcess(tmp_path / "data", listen=f"{host}:0") as broker:
        port = broker.bootstrap_servers.rpartition(":")[2]
        said = tools.check("Exercise", f"{host}:{port}", "records: codec zstd")
    assert json.loads(said)["saw"]["records"] == 200
