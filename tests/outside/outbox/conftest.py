"""A broker process for the tests of a module, and an outbox with a topic for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.outside.outbox.stage import OutboxStage
from tools.fencepost_process import FencepostProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FencepostProcess]:
    """One broker for all tests of a module."""
    folder: Path = tmp_path_factory.mktemp("broker")
    with FencepostProcess(folder) as process:
        yield process


@pytest.fixture
def outbox(dsn: str, broker: FencepostProcess) -> OutboxStage:
    """An outbox that `init` has prepared, and its topic."""
    return OutboxStage(dsn, broker.bootstrap_servers)
