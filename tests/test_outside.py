"""The public names, and what importing them takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fencepost.outside
from tests.spark.conftest import environment


@pytest.mark.parametrize("name", fencepost.outside.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(fencepost.outside, name).__name__ == name
    assert name in dir(fencepost.outside)


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Outboxes'"):
        fencepost.outside.Outboxes  # noqa: B018


def test_names_can_be_imported_without_the_extra() -> None:
    """A program then gets the sentence that says what to install, when it connects."""
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from fencepost.outside import OutboxRelay, Outbox, OutsideError\n"
        "try: OutboxRelay('dbname=x', None, Outbox.of('x'))\n"
        "except OutsideError as problem: print(problem)"
    )
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert "pip install 'fencepost[postgres]'" in shown.stdout
