"""`txn why`, `txn timeline`, `records`: what a person sees, and what goes wrong."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost.base.ids import TopicPartition, coordinator_partition
from fencepost.cli import main
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.groups import CommittedOffset
from fencepost.records.opened import Record
from tests.cli.kept_screens import assert_screen
from tests.forensics import situations
from tests.forensics.conftest import HURRY


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with fencepost.Broker(config=HURRY) as broker:
        yield broker.bootstrap_servers


Run = Callable[..., str]


@pytest.fixture
def run(servers: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command, which must succeed; returns what it printed."""

    def run(*arguments: str) -> str:
        code = main.run([*arguments, "--bootstrap-servers", servers])
        said = capsys.readouterr()
        assert (code, said.err) == (0, ""), said
        return said.out

    return run


def names_of(found: situations.Situation) -> dict[str, str]:
    return {found.transactional_id: "refunds-00000000", found.partition.topic: "orders-00000000"}


def test_the_screen_of_why(servers: str, run: Run) -> None:
    found = situations.timed_out(servers, 1)
    said = run("txn", "why", found.transactional_id)
    shown = said.replace(f" {found.identity.producer_id}, epoch", " 0, epoch")
    assert_screen("txn-why", shown, names_of(found))


def test_the_screen_of_the_timeline(servers: str, run: Run) -> None:
    found = situations.timed_out(servers, 2)
    said = run("txn", "timeline", found.transactional_id)
    shown = said.replace(f"producer {found.identity.producer_id},", "producer 0,")
    assert_screen("txn-timeline", shown, names_of(found))


def test_the_screen_of_records(servers: str, run: Run) -> None:
    found = situations.aborted_by_client(servers, 2)
    with connect(servers) as cluster:
        identity = cluster.init_producer_id(None)
        situations.write(cluster, identity, found.partition)
    lines = run("records", f"{found.partition.topic}:0").splitlines()
    at = lines[0].index("producer")
    shown = "".join(f"{line[:at]}{'P':<8}{line[at + 8 :]}\n" for line in lines[1:])
    assert_screen("records", f"{lines[0]}\n{shown}", names_of(found))


def test_the_picture_of_a_timeline_is_a_whole_document(
    servers: str, run: Run, tmp_path: Path
) -> None:
    found = situations.aborted_by_client(servers, 2)
    file = tmp_path / "timeline.svg"
    run("txn", "timeline", found.transactional_id, "--svg", str(file))
    picture = ET.fromstring(file.read_text("utf-8"))
    words = "".join(picture.itertext())
    for word in ("PrepareAbort", "ABORT @2", "COMMIT @5", str(found.partition)):
        assert word in words
    assert "prefers-color-scheme: dark" in words


def test_a_picture_of_an_id_with_markup_in_its_name_is_a_whole_document(
    servers: str, run: Run, tmp_path: Path
) -> None:
    name = '<b>&"refunds"\x1b[31m'
    with connect(servers) as cluster:
        cluster.init_producer_id(name)
    file = tmp_path / "timeline.svg"
    shown = run("txn", "timeline", name, "--svg", str(file))
    assert "Empty" in shown
    assert "\x1b" not in shown
    assert "<b>&" in "".join(ET.fromstring(file.read_text("utf-8")).itertext())


# -- records --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(servers: str) -> str:
    """A topic with odd keys, a tombstone, and ten records."""
    with connect(servers) as cluster:
        cluster.create_topics([NewTopic("written", 1)])
        place = TopicPartition("written", 0)
        identity = cluster.init_producer_id(None)
        with cluster.writer(identity) as writer:
            keys = [b"plain", b"\xff\x00", b"two\nlines", None, "zażółć".encode()]
            writer.write_records(place, [Record(key=key, value=b"v") for key in keys])
            writer.write_records(place, [Record(key=b"gone", value=None)])
            writer.flush()
    return "written:0"


def rows_of(said: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in said.splitlines()]


def test_keys_are_text_or_base64_and_values_are_hidden(run: Run, written: str) -> None:
    rows = rows_of(run("records", written, "--json"))
    assert [row.get("key", row.get("key_base64")) for row in rows] == [
        "plain",
        "/wA=",
        "two\nlines",
        None,
        "zażółć",
        "gone",
    ]
    assert all("value" not in row for row in rows)
    assert [row["value_bytes"] for row in rows] == [1, 1, 1, 1, 1, None]
    assert [row["sequence"] for row in rows] == list(range(6))


def test_a_line_of_the_table_is_one_line_whatever_the_key(run: Run, written: str) -> None:
    lines = run("records", written, "--values").splitlines()
    assert len(lines) == 7
    assert lines[2].endswith("\\xff\\x00 = v")
    assert lines[3].endswith("two\\nlines = v")
    assert lines[6].endswith("gone = null")


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        (["--from", "2"], [2, 3, 4, 5]),
        (["--from", "-2"], [4, 5]),
        (["--from", "2", "--to", "4"], [2, 3]),
        (["--from", "4", "--to", "2"], []),
        (["--from", "99"], []),
        (["--from", "earliest", "--to", "latest", "--max", "1"], [0]),
        (["--from", "2001-01-01"], [0, 1, 2, 3, 4, 5]),
        (["--from", "2101-01-01T00:00:00Z"], []),
        (["--from", "@1"], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_range_is_what_was_asked_for(
    run: Run, written: str, arguments: list[str], offsets: list[int]
) -> None:
    rows = rows_of(run("records", written, "--json", *arguments))
    assert [row["offset"] for row in rows] == offsets


def test_a_range_that_begins_inside_a_transaction_says_that_it_may_have_begun_earlier(
    servers: str, run: Run
) -> None:
    found = situations.committed(servers, 1)
    with connect(servers) as cluster:
        # Two batches: the second one begins the range.
        identity = cluster.init_producer_id(found.transactional_id)
        with cluster.writer(identity) as writer:
            for _ in range(2):
                writer.write_records(found.partition, [Record(value=b"v")])
                writer.flush()
        cluster.end_txn(identity, commit=True)
    rows = rows_of(run("records", f"{found.partition.topic}:0", "--from", "4", "--json"))
    assert [(row["offset"], row["transaction"]) for row in rows] == [(4, 4), (5, 4)]
    assert rows[0]["is_transaction_start_exact"] is False
    assert "<=4" in run("records", f"{found.partition.topic}:0", "--from", "4")


def test_committed_offsets_are_decoded_with_their_fate(servers: str, run: Run) -> None:
    with connect(servers) as cluster:
        found = situations.begin(cluster, 2)
        offsets = {found.partition: CommittedOffset(42, metadata="half way")}
        cluster.txn_offset_commit(found.identity, "night-shift", offsets)
        cluster.end_txn(found.identity, commit=False)
        count = len(
            cluster.metadata(["__consumer_offsets"]).topics["__consumer_offsets"].partitions
        )
    index = coordinator_partition("night-shift", count)
    rows = rows_of(run("records", f"__consumer_offsets:{index}", "--json"))
    decoded = rows[0]["decoded"]
    assert isinstance(decoded, dict)
    assert (decoded["group"], decoded["committed_offset"]) == ("night-shift", 42)
    assert rows[0]["fate"] == "aborted"
    assert rows[1]["marker"] == "abort"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["records", "written"], 1, "write TOPIC:P"),
        (["records", "writen:0"], 1, "There is no topic 'writen'"),
        (["records", "written:7"], 1, "has no partition 7"),
        (["records", "written:0", "--from", "yesterday"], 1, "beginning, end, an offset"),
        (["records", "written:0", "--max-read", "much"], 2, "is not a size"),
        (["records", "written:0", "--max", "0"], 2, "Invalid value for '--max'"),
        (["txn", "why", "x", "--epoch", "3"], 2, "belong together"),
        (["txn", "why", "x", "--partition", "nonsense"], 1, "write TOPIC:P"),
        (["txn", "timeline", "nobody"], 1, "It was never used on this cluster"),
    ],
    ids=str,
)
def test_a_mistake_is_one_sentence(
    servers: str,
    written: str,
    arguments: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run([*arguments, "--bootstrap-servers", servers]) == code
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert line.startswith("fencepost: ")
    assert said in line


def test_a_picture_that_cannot_be_written_is_reported(
    servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = situations.committed(servers)
    place = str(tmp_path / "no" / "such" / "folder.svg")
    arguments = ["txn", "timeline", found.transactional_id, "--svg", place]
    assert main.run([*arguments, "--bootstrap-servers", servers]) == 1
    assert "cannot be written: No such file or directory." in capsys.readouterr().err


def test_a_reader_that_stops_at_its_limit_says_where_to_go_on(
    servers: str, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = situations.committed(servers)
    place = f"{found.partition.topic}:0"
    assert main.run(["records", place, "--max-read", "1B", "--bootstrap-servers", servers]) in (
        0,
        1,
    )
    # One fetch is always made, and it reached the end here.
    assert main.run(["records", place, "--max-read", "0B", "--bootstrap-servers", servers]) == 1
    assert "Go on with --from 0." in capsys.readouterr().err
