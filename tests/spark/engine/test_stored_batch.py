"""Goal: the checkpoint's files are read as Spark writes them, and anything else is "unknown"."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.spark.engine.stored_batch import local_folder, read_checkpoint

QUERY = "4c703f83-be57-4f25-8a4a-d922249dbf9e"


def write_checkpoint(folder: Path, *batches: tuple[str, ...], version: str = "v1") -> None:
    (folder / "offsets").mkdir()
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    for number, offsets in enumerate(batches):
        lines = [version, json.dumps({"batchWatermarkMs": 0}), *offsets]
        (folder / "offsets" / str(number)).write_text("\n".join(lines))
        (folder / "offsets" / f".{number}.crc").touch()


def test_the_newest_batch_with_its_start_and_end_is_found(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, ('{"t":{"0":5}}', "-"), ('{"t":{"0":9}}', '{"s":{"1":2}}'))
    found = read_checkpoint(f"file://{tmp_path}")
    assert found is not None
    assert (found.query_id, found.batch_id, found.run_id) == (QUERY, 1, "")
    assert found.start_offsets == ('{"t":{"0":5}}',)
    assert found.end_offsets == ('{"s":{"1":2}}', '{"t":{"0":9}}')
    assert found.as_batch().start == {TopicPartition("t", 0): 5}
    assert found.is_stateful is None
    (tmp_path / "state").mkdir()
    again = read_checkpoint(str(tmp_path))
    assert again is not None
    assert again.is_stateful
    assert again.fingerprint == found.fingerprint


def test_a_deleted_older_file_leaves_the_start_unknown(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, ('{"t":{"0":5}}',), ('{"t":{"0":9}}',))
    (tmp_path / "offsets" / "0").unlink()
    found = read_checkpoint(str(tmp_path))
    assert found is not None
    assert found.as_batch().start is None


def test_offsets_of_another_version_are_unknown_but_the_batch_is_not(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, ('{"t":{"0":5}}',), version="v2")
    found = read_checkpoint(str(tmp_path))
    assert found is not None
    assert (found.batch_id, found.fingerprint) == (0, "")


@pytest.mark.parametrize("broken", ["metadata", "offsets", "empty"])
def test_a_checkpoint_that_cannot_be_read_is_unknown(tmp_path: Path, broken: str) -> None:
    write_checkpoint(tmp_path, ('{"t":{"0":5}}',))
    if broken == "metadata":
        (tmp_path / "metadata").write_text("{")
    elif broken == "offsets":
        (tmp_path / "offsets").rename(tmp_path / "elsewhere")
    else:
        (tmp_path / "offsets" / "0").write_text("")
    assert read_checkpoint(str(tmp_path)) is None


def test_only_the_drivers_own_file_system_is_read() -> None:
    assert local_folder("file:/a%20b/c") == Path("/a b/c")
    assert local_folder("/a/c") == Path("/a/c")
    assert local_folder("s3a://bucket/c") is None
    assert read_checkpoint("hdfs://host/c") is None
    assert read_checkpoint(None) is None
