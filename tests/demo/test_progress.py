"""How many settlements are decided."""

from __future__ import annotations

from pathlib import Path

from fencepost_examples.demo.progress import count_decided


def test_progress_counts_batches_that_the_checkpoint_logged_as_done(tmp_path: Path) -> None:
    assert count_decided(tmp_path) == 0
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    for batch, end in ((0, 10), (1, 25)):
        offsets = f'v1\n{{"batchWatermarkMs":0}}\n{{"settlements":{{"0":{end},"1":5}}}}'
        (tmp_path / "offsets" / str(batch)).write_text(offsets)
    (tmp_path / "commits" / "0").touch()
    assert count_decided(tmp_path) == 15
