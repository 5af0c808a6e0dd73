"""Rounds start even: they write too little for the system to begin write-back by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import even

GIGABYTE = 1024 * 1024  # In the kilobytes of /proc/meminfo.


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 20 GB free that writes back from 10 % on, and 3 GB waiting for the disk."""
    lines = {"MemAvailable": 20 * GIGABYTE, "Dirty": 2 * GIGABYTE, "Writeback": GIGABYTE}
    (tmp_path / "meminfo").write_text("".join(f"{n}: {v} kB\n" for n, v in lines.items()))
    (tmp_path / "ratio").write_text("10\n")
    monkeypatch.setattr(even, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(even, "_BACKGROUND_RATIO", tmp_path / "ratio")
    return tmp_path


@pytest.mark.usefixtures("system")
def test_a_round_writes_at_most_half_the_write_back_threshold_and_no_more_than_requested() -> None:
    assert even.most_bytes(10**12) == 1024**3
    assert even.most_bytes(5) == 5


def test_a_round_waits_for_write_back(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def look_again(_: float) -> None:
        looks.append(1)
        if len(looks) == 3:
            (system / "meminfo").write_text("Dirty: 0 kB\nWriteback: 0 kB\n")

    monkeypatch.setattr("time.sleep", look_again)
    even.write_back()

    assert len(looks) == 3


def test_without_write_back_figures_there_is_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(even, "_MEMINFO", tmp_path / "nothing")

    even.write_back()
    even.touch(10**12)

    assert even.most_bytes(7) == 7
