"""What the sink reads from the files of a checkpoint, and the path that it is given."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.failures import ConfigError
from fencepost.base.ids import TopicPartition
from fencepost.spark.engine.stored_batch import StoredBatch, checked_path, read_offsets
from fencepost.spark.failures import SinkRefused

HEAD = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'
METADATA = '{"id":"8e6c7e3f-7f0f-4f5b-9e0a-0f6c5a1d2b3c"}'


def test_a_batch_has_the_querys_id_its_end_and_the_end_of_the_batch_before_as_its_start() -> None:
    texts = {"metadata": METADATA, "offsets/6": HEAD + "60", "offsets/7": HEAD + "70"}
    found = StoredBatch(7, texts)
    assert found.query_id == "8e6c7e3f-7f0f-4f5b-9e0a-0f6c5a1d2b3c"
    assert (found.start_offsets, found.end_offsets) == (("60",), ("70",))


@pytest.mark.parametrize("name", ["_metadata/metadata", "v2/0"])
def test_a_query_with_files_of_its_state_keeps_state(name: str) -> None:
    assert StoredBatch(0, {"metadata": METADATA, name: "v1"}).is_stateful
    assert not StoredBatch(0, {"metadata": METADATA}).is_stateful


def test_a_first_batch_has_no_start() -> None:
    assert StoredBatch(0, {"metadata": METADATA, "offsets/0": HEAD + "5"}).start_offsets == ()


INITIAL = '\0v1\n{"in":{"0":4}}'
OURS = '{"@start":{"other":{"0":7}},"other":{"0":9}}'


@pytest.mark.parametrize(
    ("ends", "files", "start"),
    [
        (['{"in":{"0":9}}'], {"0/0": INITIAL}, {TopicPartition("in", 0): 4}),
        (
            ['{"in":{"0":9}}', OURS],
            {"1/0": INITIAL},
            {TopicPartition("in", 0): 4, TopicPartition("other", 0): 7},
        ),
        (['{"in":{"0":9}}'], {}, None),
        (['{"in":{"0":9}}'], {"0/0": ""}, None),
        (['{"in":{"0":9}}'], {"0/0": INITIAL.replace("v1", "v2")}, None),
        # Another source, which keeps something else in such a file.
        (['{"in":{"0":9}}', "5"], {"0/0": INITIAL, "1/0": "v1\n5"}, None),
        (['{"in":{"0":9}}', '{"logOffset":0}'], {"0/0": INITIAL, "1/0": 'v1\n{"path":"a"}'}, None),
        (['{"logOffset":0}'], {"0/0": 'v1\n{"path":"a"}\n{"path":"b"}'}, None),
        # Two sources that read the same partition.
        (['{"in":{"0":9}}'] * 2, {"0/0": INITIAL, "1/0": INITIAL}, None),
    ],
)
def test_the_start_of_sparks_own_source_is_in_a_file(
    ends: list[str], files: dict[str, str], start: dict[TopicPartition, int] | None
) -> None:
    texts = {"metadata": METADATA, "offsets/0": HEAD + "\n".join(ends), **files}
    assert StoredBatch(0, texts).start == start


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        (HEAD + '{"b":{"0":1}}\n{"a":{"0":2}}', ('{"a":{"0":2}}', '{"b":{"0":1}}')),
        (HEAD + '-\n{"a":{"0":2}}\n', ('{"a":{"0":2}}',)),
        (HEAD, ()),
        ("v2\n{}\n{}", ()),
        ("", ()),
    ],
    ids=["in a fixed order", "a source without offsets", "no source", "another version", "empty"],
)
def test_offsets_are_read_or_unknown(text: str, offsets: tuple[str, ...]) -> None:
    assert read_offsets(text) == offsets


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json"])
def test_a_checkpoint_without_a_query_id_is_refused(text: str) -> None:
    with pytest.raises(SinkRefused, match="does not have the query's id"):
        StoredBatch(0, {"metadata": text})


@pytest.mark.parametrize("path", ["", 7, "/data/[1]", "/data/*"])
def test_a_path_that_spark_cannot_read_file_by_file_is_refused(path: Any) -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        checked_path(path)


def test_a_path_may_end_with_a_slash() -> None:
    assert checked_path("hdfs://host/a/") == "hdfs://host/a"
    assert checked_path(None) is None
