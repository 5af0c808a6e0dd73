"""The copier that ends when librdkafka hangs in its one call without an end."""

from __future__ import annotations

import subprocess
import sys

from tests.cluster.chaos.checked_confluent import GAVE_UP
from tests.cluster.chaos.cluster_process import fencepost_environment

HANGS = """
import threading
from tests.cluster.chaos import checked_confluent
checked_confluent.OVERDUE_SECONDS = 0.0
checked_confluent.ConfluentKafka.send_offsets = lambda *_: threading.Event().wait()
copier = object.__new__(checked_confluent.CheckedConfluent)
copier._timeout = 0.0
copier.send_offsets({})
"""


def test_a_copier_whose_client_never_returns_ends_and_says_so_by_its_status() -> None:
    command = [sys.executable, "-c", HANGS]
    ended = subprocess.run(
        command, env=fencepost_environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == GAVE_UP, ended.stderr
    assert "has ignored its timeout" in ended.stderr
