"""Which files of a checkpoint the sink reads on Spark Connect, and what it refuses there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.spark.engine.hosts import check_secrets
from fencepost.spark.engine.stored_batch import check_connect, read_connect_batch
from fencepost.spark.failures import SinkRefused
from fencepost.spark.settings import read_settings

HEAD = "v1\n{}\n"
PASSWORD = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="u" password="p";',
}


class Reader:
    """`spark.read`, with files in memory."""

    def __init__(self, files: dict[str, str], problem: str = "") -> None:
        self.files = files
        self.problem = problem

    def option(self, *_: str) -> Reader:
        return self

    def text(self, paths: list[str], *, wholetext: bool) -> Reader:
        assert wholetext
        return self

    def selectExpr(self, *_: str) -> Reader:  # noqa: N802
        return self

    def collect(self) -> list[dict[str, str]]:
        if self.problem:
            raise RuntimeError(self.problem)
        return [{"file": path, "value": text} for path, text in self.files.items()]


def session(reader: Reader | None = None, **settings: str) -> Any:
    conf = {name.replace("_", "."): value for name, value in settings.items()}
    return SimpleNamespace(read=reader, conf=conf)


@pytest.mark.parametrize("folder", ["file:///c", "hdfs://host/offsets", "file:/v2"])
def test_a_batch_is_read_whatever_the_folder_is_called(folder: str) -> None:
    files = {
        f"{folder}/metadata": '{"id":"q"}',
        f"{folder}/offsets/3": HEAD + "3",
        f"{folder}/offsets/2": HEAD + "2",
        f"{folder}/state/0/_metadata/metadata": "v1",
    }
    found = read_connect_batch(session(Reader(files)), 3, folder)
    assert (found.query_id, found.batch_id, found.is_stateful) == ("q", 3, True)
    assert (found.start_offsets, found.end_offsets) == (("2",), ("3",))
    assert found.run_id
    assert not found.has_engine


@pytest.mark.parametrize(
    ("reader", "words"),
    [
        (Reader({"/c/metadata": '{"id":"q"}', "/c/commits/3": "v1"}), "is not under way"),
        (Reader({}, "[PATH_NOT_FOUND] Path does not exist"), "is not under way"),
        (Reader({}, "the disk is gone"), r"could not be read \(the disk is gone"),
    ],
    ids=["a finished batch", "no such batch", "another failure"],
)
def test_a_checkpoint_that_does_not_show_the_batch_is_refused(reader: Reader, words: str) -> None:
    with pytest.raises(SinkRefused, match=words):
        read_connect_batch(session(reader), 3, "/c")


def test_what_needs_the_engine_is_refused() -> None:
    check_connect(session())
    with pytest.raises(SinkRefused, match=r"spark\.dynamicAllocation\.enabled is true"):
        check_connect(session(spark_dynamicAllocation_enabled="true"))


def test_a_password_is_not_sent_to_executors_on_hosts_that_are_not_known() -> None:
    secret = read_settings("localhost:9092", PASSWORD)
    check_secrets(session(spark_master="local[2]"), secret)
    check_secrets(session(spark_master="spark://h:1", spark_network_crypto_enabled="true"), secret)
    with pytest.raises(SinkRefused, match="hosts that Spark Connect does not show"):
        check_secrets(session(spark_master="spark://h:1"), secret)
