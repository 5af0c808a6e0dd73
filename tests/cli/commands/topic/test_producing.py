"""`fencepost topic produce`: lines become records, alone or in a transaction."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import confluent_kafka
import pytest

from tests.cli.commands.topic.records import IMPATIENT, produced, values
from tests.cli.processes import Processes
from tests.cli.running import Commands
from tools.fencepost_process import FencepostProcess


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


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_all_codecs_are_written_and_read(
    commands: Commands, topic: str, lines: Path, codec: str
) -> None:
    lines.write_text("same\n" * 100)
    compressed = ("--client-config", f"compression.type={codec}")
    commands.run("topic", "produce", topic, str(lines), "--partition", "0", *compressed)
    assert values(commands, topic) == ["same"] * 100


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


def send(produce: subprocess.Popen[str], line: str) -> None:
    """Writes a line to the input of a command, which stays open."""
    assert produce.stdin is not None
    produce.stdin.write(line + "\n")
    produce.stdin.flush()


def await_values(commands: Commands, topic: str, *expected: str) -> None:
    """Waits until the topic holds these values, committed or not."""
    uncommitted = ("--isolation", "read_uncommitted")
    deadline = time.monotonic() + 60
    while sorted(values(commands, topic, *uncommitted)) != sorted(expected):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_ctrl_c_aborts_the_transaction(commands: Commands, topic: str, start: Processes) -> None:
    produce = start("topic", "produce", topic, "--transaction", topic, servers=commands.servers)
    send(produce, "a")
    await_values(commands, topic, "a")
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
    send(produce, "one")
    await_values(commands, topic, "one")
    send(produce, "two")
    await_values(commands, topic, "one", "two")
    shown, _ = produce.communicate("three", timeout=60)
    assert produce.returncode == 0
    assert "acknowledged  3" in shown
    assert sorted(values(commands, topic)) == ["one", "three", "two"]


def test_a_broker_that_dies_ends_produce_with_one_sentence(
    mortal: FencepostProcess, capsys: pytest.CaptureFixture[str], start: Processes
) -> None:
    commands = Commands(mortal.bootstrap_servers, capsys)
    commands.run("topic", "create", "t")
    command = ("topic", "produce", "t", *IMPATIENT)
    plain = start(*command, servers=commands.servers)
    transaction = start(*command, "--transaction", "t", servers=commands.servers)
    for each in (plain, transaction):
        send(each, "one")
    await_values(commands, "t", "one", "one")
    mortal.kill()
    ends = [each.communicate("two\n", timeout=60)[1] for each in (plain, transaction)]
    kept = "1 record was acknowledged and is kept; later ones may have been written."
    for said, rest in zip(
        ends, (kept, "ends by its timeout, after 60 s: nothing of it is visible"), strict=True
    ):
        (line,) = said.splitlines()
        assert line.startswith("fencepost: Line 2 was not acknowledged: ")
        assert rest in line
    assert plain.returncode == transaction.returncode == 1
