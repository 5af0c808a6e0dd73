"""What the parent can tell of a process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fencepost.cluster.parent.broker_child import BrokerChild


def child(pid: int) -> BrokerChild:
    found = object.__new__(BrokerChild)
    cast("Any", found)._process = SimpleNamespace(pid=pid)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_the_processor_time_of_a_process_is_that_of_the_system() -> None:
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    before = time.process_time() * 1000
    used_ms = child(os.getpid()).processor_ms()
    assert used_ms is not None
    # The system counts in hundredths of a second, and threads that have ended.
    assert before - 20 <= used_ms <= time.process_time() * 1000 + 20


def test_where_the_system_does_not_tell_nobody_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert child(os.getpid()).processor_ms() is None
