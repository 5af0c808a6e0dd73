"""`fencepost topic consume`: records become lines."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.records.opened import Record
from tests.cli.commands.topic.records import IMPATIENT, produced, values
from tests.cli.processes import Processes, environment
from tests.cli.running import Commands
from tools.fencepost_process import FencepostProcess


def test_lines_become_values_and_values_become_lines(
    commands: Commands, topic: str, lines: Path
) -> None:
    lines.write_bytes(b"first\n\nz\xc3\xbcrich\n\xff\nlast")
    done = produced(commands, topic, str(lines), "--partition", "1")
    assert done == {"topic": topic, "acknowledged": 5, "by_partition": {"1": 5}}
    shown = commands.run("topic", "consume", topic)
    assert shown.splitlines() == ["first", "", "zürich", "\\xff", "last"]
    everything = commands.lines("topic", "consume", topic, "--partition", "1")
    assert [row["offset"] for row in everything] == [0, 1, 2, 3, 4]
    assert everything[3]["value_base64"] == base64.b64encode(b"\xff").decode()
    assert everything[0] | {"timestamp_ms": 0} == {
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestamp_ms": 0,
        "key": None,
        "value": "first",
        "headers": [],
    }


def test_json_has_keys_headers_tombstones_and_times(
    commands: Commands, topic: str, lines: Path
) -> None:
    written = (
        '{"key": "k", "value": null, "partition": 2, "timestamp_ms": 5}\n'
        '{"key_base64": "/w==", "value": "v", "headers": [{"key": "h", "value": "1"}, '
        '{"key": "h", "value_base64": "/w=="}], "partition": 2, "timestamp_ms": 6}'
    )
    lines.write_text(written)
    commands.run("topic", "produce", topic, str(lines), "--json")
    first, second = commands.lines("topic", "consume", topic)
    assert (first["key"], first["value"], first["timestamp_ms"]) == ("k", None, 5)
    assert second["key_base64"] == "/w=="
    assert second["headers"] == [{"key": "h", "value": "1"}, {"key": "h", "value_base64": "/w=="}]
    fields = "partition,offset,key,headers,value"
    shown = commands.run("topic", "consume", topic, "--fields", fields)
    assert shown == "2\t0\tk\t-\t\\N\n2\t1\t\\xff\th=1,h=\\xff\tv\n"


def test_what_consume_prints_produce_reads(commands: Commands, topic: str, lines: Path) -> None:
    lines.write_text('{"key": "k", "value_base64": "AP8=", "headers": {"h": null}}\n')
    commands.run("topic", "produce", topic, str(lines), "--json")
    printed = commands.run("topic", "consume", topic, "--json")
    lines.write_text(printed)
    commands.run("topic", "produce", topic, str(lines), "--json")
    first, second = commands.lines("topic", "consume", topic)
    assert second | {"offset": 0} == first


def test_a_record_larger_than_a_fetch_is_read_behind_others(
    commands: Commands, topic: str, lines: Path
) -> None:
    commands.run("topic", "alter", topic, "--set", "max.message.bytes=5000000")
    lines.write_text("a\n" + "b" * 2_500_000 + "\nc\n")
    commands.run("topic", "produce", topic, str(lines))
    small = [
        *("--client-config", "max.partition.fetch.bytes=1000"),
        *("--client-config", "fetch.max.bytes=1000"),
    ]
    assert sorted(map(len, values(commands, topic, *small))) == [1, 1, 2_500_000]


@pytest.fixture(scope="module")
def numbered(servers: str) -> str:
    """A topic with the values 0 to 9 at these offsets of partition 0, at these milliseconds."""
    with connect(servers) as cluster:
        cluster.create_topics([NewTopic("numbered", 3)])
        with cluster.writer(cluster.init_producer_id(None)) as writer:
            records = [Record(timestamp_ms=n, value=b"%d" % n) for n in range(10)]
            writer.write_records(TopicPartition("numbered", 0), records)
            writer.flush()
    return "numbered"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "0123456789"),
        (("--from", "beginning"), "0123456789"),
        (("--from", "end"), ""),
        (("--from", "-2"), "89"),
        (("--from", "-99"), "0123456789"),
        (("--from", "7", "--partition", "0"), "789"),
        (("--from", "10", "--partition", "0"), ""),
        (("--from", "@4"), "456789"),
        (("--from", "1970-01-01T00:00:00.006"), "6789"),
        (("--from", "1970-01-01T01:00:00.006+01:00"), "6789"),
        (("--from", "2099-01-01"), ""),
        (("--max", "3"), "012"),
        (("--max", "0"), ""),
        (("--partition", "1"), ""),
        (("--partition", "0", "--partition", "2"), "0123456789"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_reading_begins_and_ends_where_it_is_told(
    commands: Commands, numbered: str, arguments: tuple[str, ...], expected: str
) -> None:
    assert "".join(values(commands, numbered, *arguments)) == expected


def test_times_before_1970_are_the_beginning(commands: Commands, numbered: str) -> None:
    # On the wire -1 is the end of the log.
    assert len(values(commands, numbered, "--from", "1969-12-31T23:59:59.999Z")) == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--from", "@" + "9" * 30), "give beginning, end, an offset"),
        (("--from", "9" * 30), "give beginning, end, an offset"),
        (("--from", "11", "--partition", "0"), "starts at 0 and ends at 10"),
        (("--from", "noon"), "give beginning, end, an offset"),
        (("--fields", "vlaue"), "--fields has 'vlaue'"),
    ],
)
def test_a_start_that_cannot_be_is_refused(
    commands: Commands, numbered: str, arguments: tuple[str, ...], said: str
) -> None:
    assert said in commands.refusal("topic", "consume", numbered, *arguments)


def test_a_group_commits_what_was_printed_and_goes_on_there(
    commands: Commands, numbered: str, name: str
) -> None:
    group = ("--group", name)
    assert values(commands, numbered, *group, "--max", "4") == list("0123")
    assert values(commands, numbered, *group, "--max", "4") == list("4567")
    assert values(commands, numbered, *group) == list("89")
    assert values(commands, numbered, *group) == []
    assert values(commands, numbered, *group, "--from", "-1") == ["9"]


def test_without_a_buffer_large_records_are_printed_whole(
    commands: Commands, topic: str, lines: Path
) -> None:
    lines.write_text(("z" * 900_000 + "\n") * 3)
    commands.run("topic", "produce", topic, str(lines), "--partition", "0")
    command = f"{sys.executable} -u -m fencepost topic consume {topic}"
    ended = subprocess.run(
        ["bash", "-c", f"{command} --bootstrap-servers {commands.servers} | wc -c"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert (int(ended.stdout), ended.stderr) == (3 * 900_001, "")


def test_ctrl_c_commits_what_was_printed(
    commands: Commands, numbered: str, name: str, start: Processes
) -> None:
    follow = start(
        "topic", "consume", numbered, "--follow", "--group", name, servers=commands.servers
    )
    assert follow.stdout is not None
    assert [follow.stdout.readline().strip() for _ in range(10)] == list("0123456789")
    follow.send_signal(signal.SIGINT)
    assert follow.communicate(timeout=60) == ("", "")
    assert follow.returncode == 130
    assert values(commands, numbered, "--group", name) == []


def test_an_open_transaction_is_reported_and_does_not_hold_up_the_reader(
    commands: Commands, topic: str, start: Processes
) -> None:
    with connect(commands.servers) as cluster:
        with cluster.writer(cluster.init_producer_id(None)) as writer:
            write_values(writer, topic, b"0", b"1")
        identity = cluster.init_producer_id(f"open-{topic}")
        with cluster.writer(identity) as writer:
            write_values(writer, topic, b"a", b"b")
        assert values(commands, topic) == ["0", "1"]
        assert "an open transaction hides ~2 records of" in commands.noted
        assert "from offset 2 on; see `fencepost pins" in commands.noted
        seen = values(commands, topic, "--isolation", "read_uncommitted")
        assert seen == ["0", "1", "a", "b"]
        assert commands.noted == ""
        follow = start("topic", "consume", topic, "--follow", servers=commands.servers)
        assert follow.stderr is not None
        assert "waiting: an open transaction hides ~2 records of" in follow.stderr.readline()
        cluster.end_txn(identity, commit=True)
    assert follow.stdout is not None
    assert [follow.stdout.readline() for _ in range(2)] == ["a\n", "b\n"]
    follow.send_signal(signal.SIGINT)
    _, said = follow.communicate(timeout=60)
    assert (follow.returncode, said) == (130, "")


def write_values(writer: Any, topic: str, *values: bytes) -> None:
    writer.write_records(TopicPartition(topic, 0), [Record(value=value) for value in values])
    writer.flush()


def test_a_closed_pipe_ends_the_reader_and_commits_nothing_more(
    commands: Commands, topic: str, lines: Path
) -> None:
    lines.write_text("x" * 100 + "\n" + ("y" * 200 + "\n") * 2_000)
    commands.run("topic", "produce", topic, str(lines), "--partition", "0")
    command = f"{sys.executable} -m fencepost topic consume {topic} --group {topic}"
    ended = subprocess.run(
        ["bash", "-c", f"{command} --bootstrap-servers {commands.servers} | head -1"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert (ended.stdout, ended.stderr) == ("x" * 100 + "\n", "")
    with connect(commands.servers) as cluster:
        committed = cluster.offset_fetch(topic)
    assert all(found.offset < 2_001 for found in committed.values())


def test_a_broker_that_dies_ends_consume_with_one_sentence_and_a_restart_is_survived(
    mortal: FencepostProcess, capsys: pytest.CaptureFixture[str], start: Processes, tmp_path: Path
) -> None:
    commands = Commands(mortal.bootstrap_servers, capsys)
    commands.run("topic", "create", "t")
    follow = ("topic", "consume", "t", "--follow", "--from", "beginning")
    patient = start(*follow, servers=commands.servers)
    waiting = start(*follow, servers=commands.servers)
    impatient = start(*follow, *IMPATIENT, servers=commands.servers)
    produce(commands, tmp_path, "before")
    for each in (patient, waiting, impatient):
        assert each.stdout is not None
        assert each.stdout.readline() == "before\n"
    mortal.kill()
    _, said = impatient.communicate(timeout=60)
    # Ctrl-C ends a reader of a dead broker, too.
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=60) == ("", "")
    assert waiting.returncode == 130
    assert impatient.returncode == 1
    (line,) = said.splitlines()
    assert "did not succeed within 2000 ms" in line
    with FencepostProcess(mortal.data, listen=mortal.bootstrap_servers):
        produce(commands, tmp_path, "after")
        assert patient.stdout is not None
        assert patient.stdout.readline() == "after\n"
        patient.send_signal(signal.SIGINT)
        assert patient.communicate(timeout=60) == ("", "")


def produce(commands: Commands, folder: Path, line: str) -> None:
    (folder / "line").write_text(line)
    commands.run("topic", "produce", "t", str(folder / "line"))
