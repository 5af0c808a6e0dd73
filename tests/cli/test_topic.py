"""`fencepost topic`: topics, and records as lines."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from fencepost.client.blocking import connect
from fencepost.client.failures import refusal
from tests.cli.running import Commands
from tests.cli.screen import on_terminal
from tools.fencepost_process import ROOT, FencepostProcess


@pytest.fixture
def topic(commands: Commands, name: str) -> str:
    commands.run("topic", "create", name, "--partitions", "3")
    return name


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "lines"


class Processes:
    """Commands as processes, with pipes to all three streams."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, *arguments: str, servers: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fencepost", *arguments, "--bootstrap-servers", servers]
        pipe = subprocess.PIPE
        self._started.append(
            subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment()
            )
        )
        return self._started[-1]

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.fixture
def start() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.close()


def values(commands: Commands, topic: str, *more: str) -> list[Any]:
    return [row["value"] for row in commands.lines("topic", "consume", topic, *more)]


def produced(commands: Commands, topic: str, file: str, *more: str) -> Any:
    """Writes lines of text; returns what the command reports."""
    shown = commands.run("topic", "produce", topic, file, *more)
    rows = dict(line.split(maxsplit=1) for line in shown.replace("by partition", "by").splitlines())
    report: dict[str, Any] = {name: value.strip() for name, value in rows.items()}
    report |= {"acknowledged": int(report["acknowledged"])}
    return report | {"by_partition": json.loads(report.pop("by"))}


# Topics.


def test_a_topic_is_created_described_listed_and_deleted(commands: Commands, name: str) -> None:
    created = commands.json(
        "topic", "create", name, "--partitions", "2", "--set", "cleanup.policy=compact"
    )
    assert created["created"] is True
    shown = commands.json("topic", "describe", name)
    assert shown["topic_id"] == created["topic_id"]
    assert shown["settings"] == {"cleanup.policy": "compact"}
    assert [row["partition"] for row in shown["partitions"]] == [0, 1]
    assert shown["partitions"][0] | {"leader": 0, "replicas": [0], "isr": [0]} == {
        "partition": 0,
        "leader": 0,
        "replicas": [0],
        "isr": [0],
        "log_start_offset": 0,
        "last_stable_offset": 0,
        "high_watermark": 0,
        "size_bytes": 0,
    }
    listed = {row["topic"]: row for row in commands.json("topic", "list")}
    assert listed[name]["partitions"] == 2
    assert listed[name]["leaderless"] == listed[name]["under_replicated"] == 0
    commands.run("topic", "delete", name, "--yes")
    assert name not in {row["topic"] for row in commands.json("topic", "list")}


def test_creating_twice_is_refused_unless_it_may_exist(commands: Commands, topic: str) -> None:
    assert "TOPIC_ALREADY_EXISTS" in commands.refusal("topic", "create", topic)
    again = commands.json("topic", "create", topic, "--if-not-exists")
    assert (again["created"], again["partitions"]) == (False, 3)


def test_an_unknown_topic_is_reported_with_the_nearest_name(commands: Commands, topic: str) -> None:
    for command in (
        ("topic", "describe"),
        ("topic", "delete"),
        ("topic", "consume"),
        ("topic", "produce", "{}", "/dev/null"),
        ("topic", "alter", "--set", "retention.ms=1"),
        ("config", "get", "--topic"),
    ):
        wrong = topic + "x"
        given = [wrong if word == "{}" else word for word in command]
        said = commands.refusal(*given, *([] if wrong in given else [wrong]))
        assert f"There is no topic '{topic}x'; did you mean {topic}?" in said


def test_internal_topics_are_listed_on_demand_and_never_deleted(
    commands: Commands, topic: str, lines: Path
) -> None:
    lines.write_text("v")
    commands.run("topic", "produce", topic, str(lines), "--transaction", "internal")
    assert "__transaction_state" not in commands.run("topic", "list")
    assert "__transaction_state" in commands.run("topic", "list", "--internal")
    said = commands.refusal("topic", "delete", topic, "__transaction_state", "--yes")
    assert "Nothing was changed" in said
    assert topic in commands.run("topic", "list")


def test_delete_asks_and_a_typing_error_deletes_nothing(
    commands: Commands, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "There is no topic" in commands.refusal("topic", "delete", topic, "nonsense", "--yes")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert commands.run("topic", "delete", topic, code=1).split("fencepost: ") == [
        f"This will delete topic '{topic}': 3 partitions and all records. Continue? [y/N]:",
        "Nothing was changed.\n",
    ]
    assert topic in commands.run("topic", "list")


@pytest.mark.parametrize("columns", [200, 80, 60, 40])
def test_a_narrow_terminal_shows_whole_words(commands: Commands, topic: str, columns: int) -> None:
    code, shown = on_terminal("topic", "describe", topic, "-b", commands.servers, columns=columns)
    assert code == 0
    assert max(map(len, shown.splitlines())) <= columns
    table = shown[shown.index("settings") :]
    known = {"settings", "partition", "leader", "replicas", "isr", "log", "start", "offset", "last"}
    known |= {"stable", "high", "watermark", "size", "-", "0", "1", "2", "B"}
    shown_words = set(table.partition("(Too narrow")[0].split())
    assert {"partition", "leader", "high", "watermark"} <= shown_words <= known
    assert ("(Too narrow for:" in table) == (columns < 80)


def test_alter_adds_partitions_and_changes_settings(commands: Commands, topic: str) -> None:
    rows = commands.json(
        "topic", "alter", topic, "--partitions", "5", "--set", "retention.ms=86400000"
    )
    assert rows[0] == {"name": "partitions", "old": 3, "new": 5}
    assert (rows[1]["name"], rows[1]["new"]) == ("retention.ms", "86400000")
    shown = commands.json("topic", "describe", topic)
    assert len(shown["partitions"]) == 5
    assert shown["settings"] == {"retention.ms": "86400000"}
    commands.run("topic", "alter", topic, "--unset", "retention.ms")
    assert commands.json("topic", "describe", topic)["settings"] == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Nothing to change"),
        (("--partitions", "3"), "can only grow"),
        (("--partitions", "9", "--set", "retention.msx=1"), "did you mean retention.ms?"),
        (("--partitions", "9", "--set", "retention.ms=soon"), "INVALID_CONFIG"),
        (("--set", "nonsense"), "write NAME=VALUE"),
        (("--set", "a=1", "--set", "a=2"), "names a twice"),
    ],
)
def test_a_refused_change_changes_nothing(
    commands: Commands, topic: str, arguments: tuple[str, ...], said: str
) -> None:
    assert said in commands.refusal("topic", "alter", topic, *arguments)
    shown = commands.json("topic", "describe", topic)
    assert (len(shown["partitions"]), shown["settings"]) == (3, {})


def test_settings_in_the_place_of_a_file_get_a_hint(commands: Commands, name: str) -> None:
    said = commands.refusal("topic", "create", name, "--config", "cleanup.policy=compact")
    assert "--set NAME=VALUE" in said


def test_describe_shows_what_it_may_see(
    commands: Commands, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise refusal("DescribeLogDirs", 31)

    monkeypatch.setattr("fencepost.client.topics.replica_sizes", refuse)
    monkeypatch.setattr("fencepost.client.configs.describe_settings", refuse)
    shown = commands.json("topic", "describe", topic)
    assert shown["settings"] is shown["size_bytes"] is None
    assert shown["partitions"][0]["high_watermark"] == 0


# Records.


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


def test_keys_go_to_the_partition_that_kafka_chooses(
    commands: Commands, topic: str, lines: Path
) -> None:
    lines.write_text("".join(f"{n}:{n}\n" for n in range(50)))
    commands.run("topic", "produce", topic, str(lines), "--key-separator", ":")
    ours = {row["key"]: row["partition"] for row in commands.lines("topic", "consume", topic)}
    theirs: dict[str, int] = {}
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": commands.servers, "partitioner": "murmur2_random"}
    )
    for key in ours:
        producer.produce(
            topic,
            key=key,
            on_delivery=lambda _, message: theirs.update(
                {message.key().decode(): message.partition()}
            ),
        )
    assert producer.flush(30) == 0
    assert ours == theirs


def test_an_object_is_written_by_produce_and_read_by_consume(
    commands: Commands, topic: str, lines: Path
) -> None:
    lines.write_text(
        '{"key": "k", "value": {"amount": 12.10, "items": [1, 2]}}\n{"value": {"x":1}}'
    )
    assert commands.json("produce", topic, str(lines), "-p", "1")["by_partition"] == {"1": 2}
    assert commands.run("consume", topic, "-p", "1").splitlines() == [
        '{"amount": 12.10, "items": [1, 2]}',
        '{"x":1}',
    ]


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
    assert second["headers"] == [
        {"key": "h", "value": "1"},
        {"key": "h", "value_base64": "/w=="},
    ]
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


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_all_codecs_are_written_and_read(
    commands: Commands, topic: str, lines: Path, codec: str
) -> None:
    lines.write_text("same\n" * 100)
    compressed = ("--client-config", f"compression.type={codec}")
    commands.run("topic", "produce", topic, str(lines), "--partition", "0", *compressed)
    assert values(commands, topic) == ["same"] * 100


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


def test_a_line_that_is_too_large_is_named_and_the_lines_before_it_are_kept(
    commands: Commands, topic: str, lines: Path
) -> None:
    commands.run("topic", "alter", topic, "--set", "max.message.bytes=1000")
    lines.write_text("a\nb\n" + "x" * 2_000 + "\nc\n")
    said = commands.refusal("topic", "produce", topic, str(lines), "--partition", "0")
    assert said.startswith("Line 3 was not acknowledged: ")
    assert "MESSAGE_TOO_LARGE" in said
    assert "2 records were acknowledged and are kept" in said
    assert values(commands, topic)[:2] == ["a", "b"]


def test_a_bad_line_is_named_and_the_lines_before_it_are_kept(
    commands: Commands, topic: str, lines: Path
) -> None:
    lines.write_text('{"value": "a"}\nnonsense\n{"value": "b"}\n')
    said = commands.refusal("topic", "produce", topic, str(lines), "--json")
    assert said.startswith("Line 2 was not written: it is not JSON")
    assert said.endswith("1 record was acknowledged and is kept.")
    assert values(commands, topic) == ["a"]


def test_a_partition_that_the_topic_lacks_is_refused(
    commands: Commands, topic: str, lines: Path
) -> None:
    lines.write_text('{"partition": 3}')
    said = commands.refusal("topic", "produce", topic, str(lines), "--json")
    assert "the topic has no partition 3" in said
    assert "has no partition 3" in commands.refusal("topic", "consume", topic, "--partition", "3")
    assert "partitions are 0 to 2" in commands.refusal(
        "topic", "produce", topic, str(lines), "--partition", "3"
    )


# Transactions.


def test_a_transaction_is_visible_as_a_whole(commands: Commands, topic: str, lines: Path) -> None:
    lines.write_text("a\nb\nc\n")
    done = produced(commands, topic, str(lines), "--transaction", topic)
    assert (done["acknowledged"], done["outcome"]) == (3, "committed")
    assert sorted(values(commands, topic)) == ["a", "b", "c"]
    assert commands.json("txn", "describe", topic)["state"] == "CompleteCommit"


def test_an_empty_input_commits_nothing(commands: Commands, topic: str, lines: Path) -> None:
    lines.write_text("")
    done = produced(commands, topic, str(lines), "--transaction", topic)
    assert (done["acknowledged"], done["outcome"]) == (0, "nothing to commit")
    assert produced(commands, topic, str(lines))["acknowledged"] == 0


@pytest.mark.parametrize("bad", ["nonsense", '{"partition": 7}', '{"value": "%s"}' % ("x" * 9_000)])
def test_an_error_aborts_the_transaction_and_nothing_is_visible(
    commands: Commands, topic: str, lines: Path, bad: str
) -> None:
    commands.run("topic", "alter", topic, "--set", "max.message.bytes=5000")
    lines.write_text('{"value": "a"}\n' * 100 + bad)
    said = commands.refusal("topic", "produce", topic, str(lines), "--json", "--transaction", topic)
    assert "Line 101" in said
    assert said.endswith("The transaction was aborted: nothing of it is visible.")
    assert values(commands, topic) == []
    assert commands.json("txn", "describe", topic)["state"] in ("Empty", "CompleteAbort")


def test_ctrl_c_aborts_the_transaction(commands: Commands, topic: str, start: Processes) -> None:
    produce = start("topic", "produce", topic, "--transaction", topic, servers=commands.servers)
    assert produce.stdin is not None
    produce.stdin.write("a\n")
    produce.stdin.flush()
    while not commands.lines("topic", "consume", topic, "--isolation", "read_uncommitted"):
        assert produce.poll() is None
    produce.send_signal(signal.SIGINT)
    _, said = produce.communicate(timeout=60)
    assert produce.returncode == 130
    assert "The transaction was aborted: nothing of it is visible." in said
    assert "Traceback" not in said
    assert values(commands, topic) == []


def test_a_line_is_sent_when_the_input_pauses(
    commands: Commands, topic: str, start: Processes
) -> None:
    produce = start("topic", "produce", topic, servers=commands.servers)
    assert produce.stdin is not None
    for line in ("one", "two"):
        produce.stdin.write(line + "\n")
        produce.stdin.flush()
        while line not in values(commands, topic):
            assert produce.poll() is None
    shown, _ = produce.communicate("three", timeout=60)
    assert produce.returncode == 0
    assert "acknowledged  3" in shown
    assert sorted(values(commands, topic)) == ["one", "three", "two"]


# Reading.


@pytest.fixture
def numbered(commands: Commands, topic: str, lines: Path) -> str:
    """A topic with the values 0 to 9 at these offsets of partition 0, at these milliseconds."""
    rows = (f'{{"value": "{n}", "partition": 0, "timestamp_ms": {n}}}\n' for n in range(10))
    lines.write_text("".join(rows))
    commands.run("topic", "produce", topic, str(lines), "--json")
    return topic


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
    commands: Commands, numbered: str
) -> None:
    group = ("--group", numbered)
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
    commands: Commands, numbered: str, start: Processes
) -> None:
    follow = start(
        "topic", "consume", numbered, "--follow", "--group", numbered, servers=commands.servers
    )
    assert follow.stdout is not None
    assert [follow.stdout.readline().strip() for _ in range(10)] == list("0123456789")
    follow.send_signal(signal.SIGINT)
    assert follow.communicate(timeout=60) == ("", "")
    assert follow.returncode == 130
    assert values(commands, numbered, "--group", numbered) == []


def test_an_open_transaction_is_reported_and_does_not_hold_up_the_reader(
    commands: Commands, numbered: str, start: Processes
) -> None:
    with connect(commands.servers) as cluster:
        identity = cluster.init_producer_id(f"open-{numbered}")
        with cluster.writer(identity) as writer:
            write_two(writer, numbered)
        assert values(commands, numbered) == list("0123456789")
        assert "an open transaction hides ~2 records of" in commands.noted
        assert "from offset 10 on; see `fencepost pins" in commands.noted
        seen = values(commands, numbered, "--isolation", "read_uncommitted")
        assert seen == [*"0123456789", "a", "b"]
        assert commands.noted == ""
        follow = start("topic", "consume", numbered, "--follow", servers=commands.servers)
        assert follow.stderr is not None
        assert "waiting: an open transaction hides ~2 records of" in follow.stderr.readline()
        cluster.end_txn(identity, commit=True)
    assert follow.stdout is not None
    assert [follow.stdout.readline() for _ in range(2)] == ["a\n", "b\n"]
    follow.send_signal(signal.SIGINT)
    _, said = follow.communicate(timeout=60)
    assert (follow.returncode, said) == (130, "")


def write_two(writer: Any, topic: str) -> None:
    from fencepost.base.ids import TopicPartition
    from fencepost.records.opened import Record

    writer.write_records(TopicPartition(topic, 0), [Record(value=b"a"), Record(value=b"b")])
    writer.flush()


def test_a_closed_pipe_ends_the_reader_and_commits_nothing_more(
    commands: Commands, topic: str, lines: Path
) -> None:
    lines.write_text("x" * 100 + "\n" + "y\n" * 100_000)
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
    assert all(found.offset < 100_001 for found in committed.values())


# A broker that dies.


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[FencepostProcess]:
    with FencepostProcess(tmp_path / "data") as broker:
        yield broker


IMPATIENT = (
    *("--client-config", "delivery.timeout.ms=2000"),
    *("--client-config", "default.api.timeout.ms=2000"),
)


@pytest.mark.parametrize("options", [(), ("--transaction", "t")], ids=["plain", "transaction"])
def test_a_broker_that_dies_ends_produce_with_one_sentence(
    mortal: FencepostProcess,
    capsys: pytest.CaptureFixture[str],
    start: Processes,
    options: tuple[str, ...],
) -> None:
    commands = Commands(mortal.bootstrap_servers, capsys)
    commands.run("topic", "create", "t")
    produce = start("topic", "produce", "t", *options, *IMPATIENT, servers=commands.servers)
    assert produce.stdin is not None
    produce.stdin.write("one\n")
    produce.stdin.flush()
    while not values(commands, "t", "--isolation", "read_uncommitted"):
        assert produce.poll() is None
    mortal.kill()
    _, said = produce.communicate("two\n", timeout=60)
    assert produce.returncode == 1
    (line,) = said.splitlines()
    assert line.startswith("fencepost: Line 2 was not acknowledged: ")
    if options:
        assert "ends by its timeout, after 60 s: nothing of it is visible" in line
    else:
        assert "1 record was acknowledged and is kept; later ones may have been written." in line


def test_a_broker_that_dies_ends_consume_with_one_sentence_and_a_restart_is_survived(
    mortal: FencepostProcess,
    capsys: pytest.CaptureFixture[str],
    start: Processes,
    tmp_path: Path,
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


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}
