"""`fencepost dump` beside Kafka's DumpLogSegments: the same fields, in files of both brokers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fencepost.cli.app import app
from tests.compat.conftest import Side
from tests.compat.test_log_files import CODECS, write_logs
from tools.apache_kafka import ApacheKafka
from tools.fencepost_process import FencepostProcess
from tools.java_tools import JavaTools

FIELD = re.compile(r"(\w+): (\S+)")


@dataclass(frozen=True, slots=True)
class Folder:
    """The data folder of a stopped broker, and both tools."""

    data: Path
    tools: JavaTools

    def files(self, partition: str, suffix: str) -> list[Path]:
        return sorted(self.data.rglob(f"{partition}/*.{suffix}"))

    def ours(self, files: list[Path], *options: str) -> list[dict[str, Any]]:
        result = CliRunner().invoke(app, ["dump", "--json", *options, *map(str, files)])
        assert result.exception is None, result.exception
        return [json.loads(line) for line in result.stdout.splitlines()]

    def kafkas(self, files: list[Path], *options: str) -> list[dict[str, str]]:
        """The fields of each line that has some."""
        named = ["--files", ",".join(map(str, files))]
        out = self.tools.check("kafka-dump-log", *named, *options)
        return [dict(FIELD.findall(line)) for line in out.splitlines() if FIELD.search(line)]


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


BATCH = {
    "baseOffset": "base_offset",
    "lastOffset": "last_offset",
    "count": "record_count",
    "baseSequence": "base_sequence",
    "lastSequence": "last_sequence",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "partitionLeaderEpoch": "leader_epoch",
    "isTransactional": "is_transactional",
    "isControl": "is_control",
    "position": "position",
    "CreateTime": "max_at_ms",
    "size": "size_bytes",
    "magic": "magic",
    "compresscodec": "codec",
    "crc": "crc",
}


def in_kafkas_words(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(
    "partition", [*(f"codec-{codec}-0" for codec in CODECS), "txn-committed-0", "txn-aborted-0"]
)
def test_every_batch_has_the_fields_that_kafka_prints(folder: Folder, partition: str) -> None:
    files = folder.files(partition, "log")
    kafkas = [line for line in folder.kafkas(files) if "baseOffset" in line]
    ours = [row for row in folder.ours(files, "--batches") if row["kind"] == "batch"]
    assert len(ours) == len(kafkas) > 0
    for row, line in zip(ours, kafkas, strict=True):
        assert {theirs: in_kafkas_words(row[name]) for theirs, name in BATCH.items()} == {
            theirs: line[theirs] for theirs in BATCH
        }


@pytest.mark.parametrize("codec", CODECS)
def test_the_records_inside_are_the_same(folder: Folder, codec: str) -> None:
    files = folder.files(f"codec-{codec}-0", "log")
    kafkas = [line for line in folder.kafkas(files, "--deep-iteration") if "valueSize" in line]
    ours = [row for row in folder.ours(files, "--records") if row["kind"] == "record"]
    assert [
        (str(row["offset"]), str(row["value_bytes"]), str(row["sequence"])) for row in ours
    ] == [(line["offset"], line["valueSize"], line["sequence"]) for line in kafkas]


@pytest.mark.parametrize(
    ("suffix", "names"),
    [
        ("index", {"offset": "offset", "position": "position"}),
        ("timeindex", {"timestamp": "at_ms", "offset": "offset"}),
    ],
)
def test_the_indexes_are_the_same(folder: Folder, suffix: str, names: dict[str, str]) -> None:
    files = folder.files("codec-none-0", suffix)
    kafkas = [line for line in folder.kafkas(files) if set(names) <= set(line)]
    ours = folder.ours(files)
    assert [[str(row[name]) for name in names.values()] for row in ours] == [
        [line[name] for name in names] for line in kafkas
    ]
    assert ours


def test_the_snapshots_are_the_same(folder: Folder) -> None:
    names = {
        "producerId": "producer_id",
        "producerEpoch": "producer_epoch",
        "coordinatorEpoch": "coordinator_epoch",
        "lastTimestamp": "last_at_ms",
        "lastSequence": "last_sequence",
        "lastOffset": "last_offset",
        "offsetDelta": "offset_delta",
    }
    files = folder.files("codec-zstd-0", "snapshot")
    kafkas = [line for line in folder.kafkas(files) if "producerId" in line]
    ours = folder.ours(files)
    assert [[str(row[name]) for name in names.values()] for row in ours] == [
        [line[name] for name in names] for line in kafkas
    ]


def test_the_transaction_index_is_the_same(folder: Folder) -> None:
    names = {
        "producerId": "producer_id",
        "firstOffset": "first_offset",
        "lastOffset": "last_offset",
        "lastStableOffset": "last_stable_offset",
    }
    files = folder.files("txn-aborted-0", "txnindex")
    kafkas = folder.kafkas(files)
    ours = folder.ours(files)
    assert [[str(row[name]) for name in names.values()] for row in ours] == [
        [line[name] for name in names] for line in kafkas if "producerId" in line
    ]
    assert len(ours) == 1


def test_fates_follow_the_markers(folder: Folder) -> None:
    for outcome in ("committed", "aborted"):
        rows = folder.ours(folder.files(f"txn-{outcome}-0", "log"))
        data = {row["fate"] for row in rows if not row["is_control"]}
        assert data == {outcome}


def test_the_transaction_log_is_decoded_as_kafka_decodes_it(folder: Folder) -> None:
    files = [file for file in folder.files("__transaction_state-*", "log") if file.stat().st_size]
    out = folder.tools.check(
        "kafka-dump-log", "--files", ",".join(map(str, files)), "--transaction-log-decoder"
    )
    kafkas = [
        (key["data"]["transactionalId"], value["data"]["transactionStatus"])
        for line in out.splitlines()
        if (key := _json_after(line, "key: ")) and (value := _json_after(line, "payload: "))
    ]
    names = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]
    ours = [
        (row["decoded"]["transactional_id"], names.index(row["decoded"]["state"]))
        for row in folder.ours(files)
        if row["kind"] == "record"
    ]
    assert ours == kafkas
    assert ours


def test_the_offsets_log_is_decoded(folder: Folder) -> None:
    files = [file for file in folder.files("__consumer_offsets-*", "log") if file.stat().st_size]
    decoded = [
        row["decoded"] for row in folder.ours(files) if row["kind"] == "record" and "decoded" in row
    ]
    assert any(row.get("committed_offset") == 17 and row["metadata"] == "a word" for row in decoded)
    assert {row["group"] for row in decoded if row["type"] == "offset"} >= {"groups-offsets"}


def test_a_whole_data_folder_is_dumped_without_damage(folder: Folder) -> None:
    rows = folder.ours([folder.data], "--batches")
    kinds = {row["kind"] for row in rows}
    assert "damage" not in kinds
    assert {"batch", "index entry", "producer", "leader epoch", "partition metadata"} <= kinds


def _json_after(line: str, name: str) -> Any:
    """The JSON document that follows a name in a line."""
    start = line.find(name + "{")
    if start < 0:
        return None
    return json.JSONDecoder().raw_decode(line, start + len(name))[0]
