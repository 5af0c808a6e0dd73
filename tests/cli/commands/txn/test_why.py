"""`fencepost txn why`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fencepost
from tests.cli.commands.situation_names import names_of
from tests.cli.kept_screens import assert_screen
from tests.cli.running import Commands
from tests.forensics import situations
from tests.forensics.conftest import HURRY


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker(config=HURRY) as broker:
        yield broker


def test_the_screen_of_why(servers: str, commands: Commands) -> None:
    found = situations.timed_out(servers, 1)
    said = commands.run("txn", "why", found.transactional_id)
    shown = said.replace(f" {found.identity.producer_id}, epoch", " 0, epoch")
    assert_screen("txn-why", shown, names_of(found))
