"""`fencepost repair` and `fencepost check` on the directory of a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fencepost
from fencepost.cli import main
from tests.broker.raw import RawClient
from tests.broker.requests import batch_of, create_topic, fetch, produce, records_in


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of three records; the second is damaged."""
    folder = tmp_path / "data"
    with fencepost.Broker(data=folder) as broker:
        client = RawClient(broker.bootstrap_servers)
        create_topic(client, "t")
        for value in (b"first", b"second", b"third"):
            assert produce(client, "t", batch_of(value)).error_code == 0
        client.close()
    path = folder / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[data.index(b"second")] ^= 1
    path.write_bytes(data)
    return folder


def run(*arguments: str) -> int:
    return main.run(list(arguments))


def test_repair_removes_the_damaged_batch_and_the_rest_is_readable(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check", str(directory)) == 1
    assert "fencepost repair" in capsys.readouterr().out
    assert run("repair", str(directory), "t-0", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["outcome"], row["first_offset"], row["last_offset"]) == ("lost", 1, 1)
    assert (directory / "t-0" / f"{0:020d}.log.damaged").exists()
    assert run("repair", str(directory), "t-0") == 0
    assert "Nothing is damaged in t-0." in capsys.readouterr().out
    assert run("check", str(directory)) == 0
    with fencepost.Broker(data=directory) as broker:
        client = RawClient(broker.bootstrap_servers)
        got = fetch(client, "t", 0)
        assert [record.value for record in records_in(got.records)] == [b"first", b"third"]
        assert produce(client, "t", batch_of(b"fourth")).base_offset == 3
        client.close()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("t", "is not a partition"),
        ("t-x", "is not a partition"),
        ("t-1", "has no partition t-1"),
        ("../t-0", "is not a partition"),
        ("__cluster_metadata-0", "cannot be repaired"),
    ],
)
def test_if_one_name_cannot_be_repaired_nothing_is_changed(
    directory: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert run("repair", str(directory), "t-0", name) == 1
    assert said in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_data_directory_in_use_is_not_repaired(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fencepost.Broker(data=directory):
        assert run("repair", str(directory), "t-0") == 1
    assert "in use" in capsys.readouterr().err
