"""`fencepost records`: what a person sees, and what goes wrong."""

from __future__ import annotations

import json

import pytest

from fencepost.base.ids import TopicPartition, coordinator_partition
from fencepost.cli import main
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.groups import CommittedOffset
from fencepost.records.opened import Record
from tests.cli.commands.situation_names import names_of
from tests.cli.kept_screens import assert_screen
from tests.cli.running import Commands
from tests.forensics import situations


def test_the_screen_of_records(servers: str, commands: Commands) -> None:
    found = situations.aborted_by_client(servers, 2)
    with connect(servers) as cluster:
        identity = cluster.init_producer_id(None)
        situations.write(cluster, identity, found.partition)
    lines = commands.run("records", f"{found.partition.topic}:0").splitlines()
    at = lines[0].index("producer")
    shown = "".join(f"{line[:at]}{'P':<8}{line[at + 8 :]}\n" for line in lines[1:])
    assert_screen("records", f"{lines[0]}\n{shown}", names_of(found))


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


def test_keys_are_text_or_base64_and_values_are_hidden(commands: Commands, written: str) -> None:
    rows = rows_of(commands.run("records", written, "--json"))
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


def test_a_line_of_the_table_is_one_line_whatever_the_key(commands: Commands, written: str) -> None:
    lines = commands.run("records", written, "--values").splitlines()
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
    commands: Commands, written: str, arguments: list[str], offsets: list[int]
) -> None:
    rows = rows_of(commands.run("records", written, "--json", *arguments))
    assert [row["offset"] for row in rows] == offsets


def test_a_range_that_begins_inside_a_transaction_says_that_it_may_have_begun_earlier(
    servers: str, commands: Commands
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
    rows = rows_of(commands.run("records", f"{found.partition.topic}:0", "--from", "4", "--json"))
    assert [(row["offset"], row["transaction"]) for row in rows] == [(4, 4), (5, 4)]
    assert rows[0]["is_transaction_start_exact"] is False
    assert "<=4" in commands.run("records", f"{found.partition.topic}:0", "--from", "4")


def test_committed_offsets_are_decoded_with_their_fate(servers: str, commands: Commands) -> None:
    with connect(servers) as cluster:
        found = situations.begin(cluster, 2)
        offsets = {found.partition: CommittedOffset(42, metadata="half way")}
        cluster.txn_offset_commit(found.identity, "night-shift", offsets)
        cluster.end_txn(found.identity, commit=False)
        count = len(
            cluster.metadata(["__consumer_offsets"]).topics["__consumer_offsets"].partitions
        )
    index = coordinator_partition("night-shift", count)
    rows = rows_of(commands.run("records", f"__consumer_offsets:{index}", "--json"))
    decoded = rows[0]["decoded"]
    assert isinstance(decoded, dict)
    assert (decoded["group"], decoded["committed_offset"]) == ("night-shift", 42)
    assert rows[0]["fate"] == "aborted"
    assert rows[1]["marker"] == "abort"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["records", "nowhere"], 1, "There is no topic 'nowhere'"),
        (["records", "writen:0"], 1, "There is no topic 'writen'"),
        (["records", "written:7"], 1, "has no partition 7"),
        (["records", "written:0", "--from", "yesterday"], 1, "beginning, end, an offset"),
        (["records", "written:0", "--max-read", "much"], 2, "is not a size"),
        (["records", "written:0", "--max", "0"], 2, "Invalid value for '--max'"),
        (["txn", "why", "x", "--epoch", "3"], 2, "belong together"),
        (["txn", "why", "x", "--partition", "nonsense"], 1, "write TOPIC-P"),
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
    assert "-0 --from 0`." in capsys.readouterr().err
