"""A topic, and lines for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Commands
from tools.fencepost_process import FencepostProcess


@pytest.fixture
def topic(commands: Commands, name: str) -> str:
    commands.run("topic", "create", name, "--partitions", "3")
    return name


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "lines"


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[FencepostProcess]:
    with FencepostProcess(tmp_path / "data") as broker:
        yield broker
