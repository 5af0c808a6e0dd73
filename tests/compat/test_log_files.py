"""Kafka's own DumpLogSegments reads every file of a broker and reports no problem.

One broker per side writes records of every codec into small segments, commits and aborts
transactions, commits offsets in a group, and stops. The same is asserted for fencepost's folder and
for Apache Kafka's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.compat.conftest import Side
from tools.apache_kafka import ApacheKafka
from tools.fencepost_process import FencepostProcess
from tools.java_tools import JavaTools

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
SEGMENTS = ["--config", "segment.bytes=1048576", "--config", "index.interval.bytes=1024"]
COMPLAINT = re.compile(r"isvalid: false|mismatch|Could not|Exception|Found invalid", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Folder:
    """The data folder of a stopped broker, and the tool that reads it."""

    data: Path
    tools: JavaTools

    def files(self, partition: str, suffix: str) -> list[Path]:
        """The files of a partition in the order of their offsets."""
        return sorted(self.data.rglob(f"{partition}/*.{suffix}"))

    def dump(self, files: list[Path], *options: str) -> str:
        assert files
        named = ["--files", ",".join(map(str, files))]
        result = self.tools.run("kafka-dump-log", *named, *options)
        assert result.code == 0, result.err
        assert not COMPLAINT.search(result.out), result.out
        return result.out


@pytest.fixture(scope="module", params=["apache-kafka", "fencepost"])
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tools: JavaTools
) -> Folder:
    data = tmp_path_factory.mktemp(request.param) / "data"
    broker: ApacheKafka | FencepostProcess
    broker = ApacheKafka(data) if request.param == "apache-kafka" else FencepostProcess(data)
    with broker:
        write_logs(Side(request.param, broker.bootstrap_servers, data, tools))
    return Folder(data, tools)


def write_logs(side: Side) -> None:
    load = ["--record-size", "1000", "--throughput", "-1", "--num-records"]
    for codec in CODECS:
        side.create_topic(f"codec-{codec}", 1, *SEGMENTS)
        settings = ["--command-property", f"compression.type={codec}", "batch.size=8000"]
        side.tool("kafka-producer-perf-test", "--topic", f"codec-{codec}", *load, "3000", *settings)
    steps = ["transactions: committed", "transactions: aborted", "transactions: with offsets"]
    side.tools.check("Exercise", side.bootstrap_servers, *steps, "groups: committed offsets")


@pytest.mark.parametrize("codec", CODECS)
def test_every_batch_of_a_log_is_valid_and_none_is_missing(folder: Folder, codec: str) -> None:
    files = folder.files(f"codec-{codec}-0", "log")
    assert len(files) > 1, "the topic should have several segments"
    dumped = folder.dump(files, "--deep-iteration")
    batches = re.findall(r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+).*isvalid: true", dumped)
    following = 0
    for first, last, count in batches:
        assert (int(first), int(count)) == (following, int(last) - int(first) + 1)
        following = int(last) + 1
    assert following == 3000


@pytest.mark.parametrize("codec", CODECS)
def test_the_indexes_match_the_log(folder: Folder, codec: str) -> None:
    for suffix in ("index", "timeindex"):
        files = folder.files(f"codec-{codec}-0", suffix)
        assert len(files) > 1
        assert "offset: " in folder.dump(files)
        folder.dump(files, "--verify-index-only")
        sane = folder.dump(files, "--index-sanity-check")
        assert sane.count("passed sanity check") == len(files)


def test_the_snapshots_contain_the_producers(folder: Folder) -> None:
    dumped = folder.dump(folder.files("codec-zstd-0", "snapshot")[-1:])
    assert re.search(r"producerId: \d+ producerEpoch: 0 .*lastSequence: 2999", dumped)


def test_the_transaction_index_contains_the_aborted_transaction(folder: Folder) -> None:
    dumped = folder.dump(folder.files("txn-aborted-0", "txnindex"))
    assert re.search(r"producerId: \d+ firstOffset: 0 lastOffset: 5 lastStableOffset: 6", dumped)
    for nothing in folder.files("txn-committed-0", "txnindex"):
        assert nothing.stat().st_size == 0


def test_the_end_markers_are_in_the_log(folder: Folder) -> None:
    committed = folder.dump(folder.files("txn-committed-0", "log"), "--print-data-log")
    aborted = folder.dump(folder.files("txn-aborted-0", "log"), "--print-data-log")
    assert "endTxnMarker: COMMIT coordinatorEpoch: 0" in committed
    assert "endTxnMarker: ABORT coordinatorEpoch: 0" in aborted


def test_the_leader_epochs_are_in_their_checkpoint(folder: Folder) -> None:
    (checkpoint,) = folder.data.rglob("codec-none-0/leader-epoch-checkpoint")
    assert checkpoint.read_text().split() == ["0", "1", "0", "0"]


def test_the_partition_metadata_has_the_topic_id(folder: Folder) -> None:
    (metadata,) = folder.data.rglob("codec-none-0/partition.metadata")
    assert re.fullmatch(r"version: 0\ntopic_id: [A-Za-z0-9_-]{22}\n?", metadata.read_text())


def test_a_changed_byte_in_a_log_is_reported(folder: Folder, tmp_path: Path) -> None:
    """Checks the method: DumpLogSegments must be able to find damage."""
    (source, *_) = folder.files("codec-none-0", "log")
    data = bytearray(source.read_bytes())
    data[500] ^= 1
    spoiled = tmp_path / source.name
    spoiled.write_bytes(data)
    with pytest.raises(AssertionError):
        folder.dump([spoiled], "--deep-iteration")


def test_an_index_of_another_log_is_reported(folder: Folder, tmp_path: Path) -> None:
    (log, *_) = folder.files("codec-none-0", "log")
    (index, *_) = folder.files("codec-zstd-0", "index")
    (tmp_path / log.name).write_bytes(log.read_bytes())
    (tmp_path / index.name).write_bytes(index.read_bytes())
    with pytest.raises(AssertionError):
        folder.dump([tmp_path / index.name])
