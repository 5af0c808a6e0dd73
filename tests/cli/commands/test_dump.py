"""`fencepost dump` on files of fencepost, whole and damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.cli import main
from fencepost.client.blocking import connect
from tests.cli.kept_screens import assert_screen
from tests.forensics import situations

FIRST = "00000000000000000000"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, situations.Situation]:
    """The folder of a stopped broker: an aborted, a committed and an open transaction."""
    folder = tmp_path_factory.mktemp("dump") / "data"
    with fencepost.Broker(data=folder) as broker:
        servers = broker.bootstrap_servers
        found = situations.aborted_by_client(servers, 2)
        with connect(servers) as cluster:
            identity = cluster.init_producer_id(found.transactional_id)
            situations.write(cluster, identity, found.partition)
    return folder, found


@pytest.fixture
def partition(data: tuple[Path, situations.Situation], tmp_path: Path) -> Path:
    """A copy of the partition's folder."""
    folder, found = data
    copy = tmp_path / str(found.partition)
    copy.mkdir()
    for file in (folder / str(found.partition)).iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def dump(
    capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0
) -> list[dict[str, Any]]:
    assert main.run(["dump", "--json", *map(str, arguments)]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_screen_of_a_folder(
    partition: Path, data: tuple[Path, situations.Situation], capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = data
    assert main.run(["dump", str(partition)]) == 0
    shown = capsys.readouterr().out.replace(str(partition.parent), "/data")
    shown = "\n".join(
        "TOPIC-ID" if before == "topic id" else line
        for before, line in zip(["", *shown.splitlines()], shown.splitlines(), strict=False)
    )
    assert_screen("dump", shown + "\n", {found.partition.topic: "orders-00000000"})


def test_batches_have_fates_over_all_segments(
    partition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = partition / f"{FIRST}.log"
    whole = log.read_bytes()
    rows = dump(capsys, log)
    assert [row["fate"] for row in rows] == ["aborted", "control", "committed", "control", "open"]
    # The same bytes in two segments, cut inside the first transaction and its marker.
    cut = rows[1]["position"]
    log.write_bytes(whole[:cut])
    (partition / f"{rows[1]['base_offset']:020}.log").write_bytes(whole[cut:])
    again = [row for row in dump(capsys, partition, "--batches") if row["kind"] == "batch"]
    assert [row["fate"] for row in again] == [row["fate"] for row in rows]
    assert [row["transaction"] for row in again] == [row["transaction"] for row in rows]


def test_records_and_values_are_shown_on_request(
    partition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [row for row in dump(capsys, partition, "--values") if row["kind"] == "record"]
    assert [row.get("value") for row in records[:3]] == ["one", "two", None]
    assert records[2]["marker"] == "abort"


def test_internal_topics_are_decoded_without_asking(
    data: tuple[Path, situations.Situation], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, found = data
    rows = dump(capsys, *folder.glob("__transaction_state-*"))
    states = [row["decoded"]["state"] for row in rows if "decoded" in row]
    assert states[:4] == ["Empty", "Ongoing", "PrepareAbort", "CompleteAbort"]
    metadata = dump(capsys, folder / "__cluster_metadata-0")
    topics = [row["decoded"] for row in metadata if row.get("decoded", {}).get("name")]
    assert any(
        each["type"] == "TopicRecord" and each["name"] == found.partition.topic for each in topics
    )


def test_the_index_of_aborted_transactions_and_the_epochs(
    partition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (aborted,) = dump(capsys, partition / f"{FIRST}.txnindex")
    assert (aborted["first_offset"], aborted["last_offset"]) == (0, 2)
    (epoch,) = dump(capsys, partition / "leader-epoch-checkpoint")
    assert (epoch["epoch"], epoch["start_offset"]) == (0, 0)


# -- damage ---------------------------------------------------------------------------------------


def last(rows: list[dict[str, Any]]) -> str:
    assert rows[-1]["kind"] == "damage", rows[-1]
    return str(rows[-1]["problem"])


def test_a_torn_batch_is_shown_up_to_the_tear(
    partition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = partition / f"{FIRST}.log"
    log.write_bytes(log.read_bytes()[:-5])
    rows = dump(capsys, log, code=1)
    assert len(rows) == 5
    assert "ends after" in last(rows)


def test_a_changed_byte_is_found_by_its_crc(
    partition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = partition / f"{FIRST}.log"
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    assert "CRC of the batch at offset 0" in last(dump(capsys, log, code=1))


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        (b"\x07" * 30, "too few for a batch"),
        (b"\x07" * 200, "unknown message format"),
        (struct.pack(">qi", 8, -5) + bytes(3) + b"\0\x02" + bytes(60), "claims a length of -5"),
    ],
)
def test_bytes_that_are_no_batch_are_reported_with_their_place(
    partition: Path, tail: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = partition / f"{FIRST}.log"
    size = log.stat().st_size
    log.write_bytes(log.read_bytes() + tail)
    rows = dump(capsys, log, code=1)
    assert said in last(rows)
    assert rows[-1]["position"] == size


def test_preallocated_zeros_are_no_damage(
    partition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = partition / f"{FIRST}.log"
    before = dump(capsys, log)
    log.write_bytes(log.read_bytes() + bytes(100_000))
    assert dump(capsys, log) == before
    index = partition / f"{FIRST}.index"
    index.write_bytes(struct.pack(">4i", 5, 100, 9, 200) + bytes(8 * 1_000))
    assert [row["offset"] for row in dump(capsys, index)] == [5, 9]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("index", bytes(range(1, 12)), "bytes are left after 1 entries"),
        ("timeindex", bytes(range(1, 20)), "bytes are left after 1 entries"),
        ("txnindex", struct.pack(">hqqqq", 9, 1, 2, 3, 4), "version 9"),
        ("snapshot", b"\0\1nonsense", "CRC of a producer snapshot"),
        ("snapshot", b"", "a producer snapshot of 0 bytes"),
    ],
)
def test_damaged_indexes_and_snapshots_are_reported(
    partition: Path, name: str, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = partition / f"{FIRST}.{name}"
    file.write_bytes(content)
    assert said in last(dump(capsys, file, code=1))


def test_a_damaged_checkpoint_is_reported_and_the_other_files_are_shown(
    partition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (partition / "leader-epoch-checkpoint").write_text("0\n7\n0 0\n")
    assert main.run(["dump", str(partition)]) == 1
    shown = capsys.readouterr()
    assert "DAMAGE: a checkpoint of 7 lines has 1" in shown.out
    assert "partition.metadata" in shown.out
    (line,) = shown.err.splitlines()
    assert "leader-epoch-checkpoint is damaged" in line
    assert "fencepost check" in line


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing.log", "does not exist"),
        ("notes.txt", "is not a log file"),
        ("", "has no log files"),
    ],
)
def test_what_is_no_log_file_is_refused_in_one_sentence(
    tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert main.run(["dump", str(tmp_path / name)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_an_empty_segment_and_files_of_a_swap_are_read(
    partition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = partition / f"{FIRST}.log"
    (partition / f"{FIRST}.log.deleted").write_bytes(log.read_bytes())
    assert len(dump(capsys, partition / f"{FIRST}.log.deleted")) == 5
    # What was deleted is no part of the log: it changes no fate.
    fates = [row["fate"] for row in dump(capsys, partition) if row["file"] == str(log)]
    assert fates == ["aborted", "control", "committed", "control", "open"]
    log.write_bytes(b"")
    assert dump(capsys, log) == []
