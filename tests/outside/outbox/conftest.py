"""A broker for the tests of a module, and an outbox with a topic for each test.

The broker is fencepost unless FENCEPOST_TEST_BOOTSTRAP names another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.outside.outbox.stage import Mode, OutboxStage
from tools.fencepost_process import FencepostProcess


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one broker for all tests of a module."""
    if named := os.environ.get("FENCEPOST_TEST_BOOTSTRAP"):
        yield named
        return
    with FencepostProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process.bootstrap_servers


@pytest.fixture
def mode() -> Mode:
    """Tests of mode table have another one."""
    return "wal"


@pytest.fixture
def outbox(dsn: str, kafka: str, mode: Mode) -> OutboxStage:
    """An outbox that `init` has prepared, and its topic."""
    return OutboxStage(dsn, kafka, mode=mode)
