"""The disk of a broker that crashes inside a program: nothing is written once it is cut off."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from fencepost.base.seams import Disk, File
from fencepost.base.system import SystemDisk
from fencepost.testing.crashing import CrashableDisk
from fencepost.testing.embedded import Broker

ARGUMENTS: dict[str, Any] = {
    "chunks": [b"more"],
    "position": 0,
    "count": 1,
    "sync": False,
    "data": b"x",
    "size": 0,
    "create": True,
}


def arguments_of(method: Any, folder: str) -> dict[str, Any]:
    names = list(inspect.signature(method).parameters)
    return {name: ARGUMENTS.get(name, f"{folder}/file") for name in names}


def methods_of(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]


@pytest.mark.parametrize("name", methods_of(Disk))
def test_no_call_of_a_disk_that_is_cut_off_succeeds(tmp_path: Path, name: str) -> None:
    disk = CrashableDisk(SystemDisk())
    method = getattr(disk, name)
    disk.cut_off()
    with pytest.raises(OSError, match="the broker has crashed, as a test wanted"):
        method(**arguments_of(method, str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [each for each in methods_of(File) if each != "close"])
def test_no_call_of_a_file_that_was_open_succeeds_but_close(tmp_path: Path, name: str) -> None:
    disk = CrashableDisk(SystemDisk())
    file = disk.open(f"{tmp_path}/file", create=True)
    file.append([b"before"])
    disk.cut_off()
    method = getattr(file, name)
    with pytest.raises(OSError, match="the broker has crashed, as a test wanted"):
        method(**arguments_of(method, str(tmp_path)))
    disk.close_all()
    disk.close_all()
    assert (tmp_path / "file").read_bytes() == b"before"


@pytest.mark.parametrize(
    ("is_kept", "durability", "waits"),
    [(False, "os", False), (True, "os", True), (False, "fsync", True)],
)
def test_only_a_directory_that_is_deleted_with_the_broker_is_not_synced(
    is_kept: bool,
    durability: str,
    waits: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    synced: list[int] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, synced.append, raising=False)
    with Broker(data=tmp_path if is_kept else None, durability=durability) as broker:
        broker.produce("refunds", "s-1")
        broker.restart()
        assert [record.value for record in broker.committed("refunds")] == [b"s-1"]
    assert bool(synced) == waits
