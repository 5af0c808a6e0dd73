"""SystemFile where it does more than pass calls to the operating system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.base.mapping import Mapping
from fencepost.base.system import SystemDisk, SystemFile
from fencepost.log import LogConfig, open_log
from fencepost.records.batch import split_batches
from tests.log.batches import append

PAGES = os.urandom(3 * 4096)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SystemFile]:
    file = SystemDisk().open(f"{tmp_path}/file", create=True)
    file.append((PAGES,))
    yield file
    file.close()


@pytest.mark.parametrize(("position", "count"), [(0, 1), (0, 12288), (4095, 2), (5000, 7000)])
def test_a_view_may_start_at_any_position(file: SystemFile, position: int, count: int) -> None:
    assert bytes(file.view(position, count)) == PAGES[position : position + count]


def test_a_view_outlives_the_file_and_its_name(tmp_path: Path) -> None:
    disk = SystemDisk()
    file = disk.open(f"{tmp_path}/file", create=True)
    file.append((PAGES,))
    view = file.view(100, 8000)
    file.close()
    disk.remove(f"{tmp_path}/file")
    assert bytes(view) == PAGES[100:8100]


def test_a_mapping_is_released_with_its_last_view(file: SystemFile) -> None:
    before = Mapping.alive
    view = memoryview(file.view(0, 5000))
    part = view[10:20]
    del view
    assert Mapping.alive == before + 1
    del part
    assert Mapping.alive == before


def test_above_the_limit_of_mappings_a_view_is_a_copy(
    file: SystemFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mapping, "limit", Mapping.alive + 2)
    views = [file.view(start, 5000) for start in range(5)]
    assert Mapping.alive == Mapping.limit
    assert [bytes(view) for view in views] == [PAGES[start : start + 5000] for start in range(5)]


def test_views_of_the_same_bytes_share_a_mapping(file: SystemFile) -> None:
    before = Mapping.alive
    views = [memoryview(file.view(4100, 5000)) for _ in range(100)]
    assert Mapping.alive == before + 1
    assert {bytes(view) for view in views} == {PAGES[4100:9100]}
    views[1:] = []
    assert bytes(memoryview(file.view(4100, 4000))) == PAGES[4100:8100]
    assert bytes(views[0]) == PAGES[4100:9100]
    views.clear()
    assert Mapping.alive == before
    assert bytes(file.view(4100, 5000)) == PAGES[4100:9100]


def test_a_large_read_of_a_log_is_a_view_of_the_file(tmp_path: Path) -> None:
    log = open_log(SystemDisk(), f"{tmp_path}/t-0", LogConfig(), now_ms=0, clean=False)
    written = [append(log, 3, size=30_000) for _ in range(10)]
    part = log.read(2, 500_000, upper_offset=log.log_end_offset)
    found = split_batches(bytes(part.data))
    assert isinstance(part.data, memoryview)
    assert [bytes(b.data) for b in found] == [bytes(b.data) for b in written[: len(found)]]
    assert part.next_offset == found[-1].next_offset
