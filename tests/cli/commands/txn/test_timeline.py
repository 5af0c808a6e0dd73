"""`fencepost txn timeline`: the screen, the picture, and what goes wrong."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost.cli import main
from fencepost.client.blocking import connect
from tests.cli.commands.situation_names import names_of
from tests.cli.kept_screens import assert_screen
from tests.cli.running import Commands
from tests.forensics import situations
from tests.forensics.conftest import HURRY


@pytest.fixture(scope="module")
def broker() -> Iterator[fencepost.Broker]:
    with fencepost.Broker(config=HURRY) as broker:
        yield broker


def test_the_screen_of_the_timeline(servers: str, commands: Commands) -> None:
    found = situations.timed_out(servers, 2)
    said = commands.run("txn", "timeline", found.transactional_id)
    shown = said.replace(f"producer {found.identity.producer_id},", "producer 0,")
    assert_screen("txn-timeline", shown, names_of(found))


def test_the_picture_of_a_timeline_is_a_whole_document(
    servers: str, commands: Commands, tmp_path: Path
) -> None:
    found = situations.aborted_by_client(servers, 2)
    file = tmp_path / "timeline.svg"
    commands.run("txn", "timeline", found.transactional_id, "--svg", str(file))
    picture = ET.fromstring(file.read_text("utf-8"))
    words = "".join(picture.itertext())
    for word in ("PrepareAbort", "ABORT @2", "COMMIT @5", str(found.partition)):
        assert word in words
    assert "prefers-color-scheme: dark" in words


def test_a_picture_of_an_id_with_markup_in_its_name_is_a_whole_document(
    servers: str, commands: Commands, tmp_path: Path
) -> None:
    name = '<b>&"refunds"\x1b[31m'
    with connect(servers) as cluster:
        cluster.init_producer_id(name)
    file = tmp_path / "timeline.svg"
    shown = commands.run("txn", "timeline", name, "--svg", str(file))
    assert "Empty" in shown
    assert "\x1b" not in shown
    assert "<b>&" in "".join(ET.fromstring(file.read_text("utf-8")).itertext())


def test_a_picture_that_cannot_be_written_is_reported(
    servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = situations.committed(servers)
    place = str(tmp_path / "no" / "such" / "folder.svg")
    arguments = ["txn", "timeline", found.transactional_id, "--svg", place]
    assert main.run([*arguments, "--bootstrap-servers", servers]) == 1
    assert "cannot be written: No such file or directory." in capsys.readouterr().err
