"""`fencepost bench`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.cli.commands import bench


def test_bench_is_available_only_with_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.can_measure()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "site-packages" / "bench.py"))
    assert not bench.can_measure()
    with pytest.raises(bench.NoBenchError, match="needs the source"):
        bench.bench([])
