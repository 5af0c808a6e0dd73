"""`fencepost outbox` with a real database and broker."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.base.ids import TopicPartition
from fencepost.cli import main
from tests.cli.running import Commands
from tests.outside.conftest import dsn, postgres
from tests.outside.outbox.conftest import kafka, mode, outbox
from tests.outside.outbox.stage import OutboxStage
from tests.outside.postgres import PostgresServer
from tests.spark.conftest import environment
from tools.processes import ServerProcess

__all__ = ["dsn", "kafka", "mode", "outbox", "postgres"]


@pytest.fixture
def commands(
    outbox: OutboxStage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Commands]:
    monkeypatch.setenv("FENCEPOST_POSTGRES_DSN", outbox.dsn)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield Commands(outbox.bootstrap_servers, capsys)
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(number, handler)


def named(outbox: OutboxStage) -> tuple[str, str]:
    return "--transactional-id", outbox.outbox.transactional_id


def test_rows_are_relayed_and_the_status_says_so(outbox: OutboxStage, commands: Commands) -> None:
    outbox.workload()
    command = ["outbox", "relay", *named(outbox), "--until-caught-up", "--chunk", "7"]
    done = commands.json(*command)
    assert done["rows"] == len(outbox.written)
    assert done["transactions"] > 3
    assert "caught up" in commands.noted
    outbox.audit()
    found = commands.json("outbox", "status", *named(outbox))
    assert found["chunk"] == found["chunk_in_database"] == done["transactions"]
    assert (found["is_running"], found["refusal"]) == (False, None)


def test_a_numbered_table_is_relayed_and_the_status_says_so(
    outbox: OutboxStage, commands: Commands
) -> None:
    name = f"{outbox.outbox.transactional_id}-table"
    options = ("--transactional-id", name, "--mode", "table")
    assert main.run(["outbox", "init", *options, "--shards", "2"]) == 0
    outbox.workload()
    done = commands.json("outbox", "relay", *options, "--until-caught-up")
    assert done["rows"] == len(outbox.written)
    outbox.audit()
    found = commands.json("outbox", "status", *options)
    assert (found["rows_left"], found["refusal"]) == (0, None)
    assert "slot" not in found
    assert main.run(["outbox", "init", *options, "--shards", "8"]) == 1


def test_options_of_the_other_mode_are_refused(outbox: OutboxStage, commands: Commands) -> None:
    in_table = (*named(outbox), "--mode", "table")
    assert "neither slot" in commands.refusal("outbox", "relay", *in_table, "--slot", "x")
    assert "in the log" in commands.refusal("outbox", "status", *in_table, "--messages", "x")
    words = commands.refusal("outbox", "relay", *in_table, "--max-held-wal", "9")
    assert "no slot" in words
    for option in ("--topic", "--key-column"):
        relay = ("outbox", "relay", *named(outbox), "--messages", "x", option, "y")
        assert "a message names its topic" in commands.refusal(*relay)
    assert main.run(["outbox", "init", *named(outbox), "--shards", "2"]) == 1


def test_a_refusal_is_one_line_and_accepted_by_its_name(
    outbox: OutboxStage, commands: Commands
) -> None:
    outbox.insert(1)
    relay = ["outbox", "relay", *named(outbox), "--until-caught-up"]
    commands.run(*relay)
    outbox.execute("UPDATE fencepost_outbox_chunk SET chunk = 0")
    assert "--accept restored" in commands.refusal(*relay)
    commands.run(*relay, "--accept", "restored")
    commands.run(*relay)


def test_init_does_not_say_ready_of_a_slot_that_is_ahead(
    outbox: OutboxStage, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(*more: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main.run(["outbox", "init", *named(outbox), *more]) == code
        return "".join(capsys.readouterr())

    outbox.insert(1)
    outbox.execute(f"SELECT pg_drop_replication_slot('{outbox.outbox.slot}')")
    for _ in range(2):
        printed = init()
        assert "Not ready" in printed
        assert "Ready" not in printed
        assert "Not ready" in init("--json")
    outbox.execute(f"ALTER PUBLICATION {outbox.outbox.publication} DROP TABLE outbox")
    relay = ["outbox", "relay", *named(outbox), "--until-caught-up"]
    assert "ADD TABLE" in init(code=1)
    outbox.execute(f"ALTER PUBLICATION {outbox.outbox.publication} ADD TABLE outbox")
    both = "--accept new-slot --accept new-publication"
    assert both in commands.refusal(*relay, "--accept", "failed-over")
    assert "--accept new-publication" in commands.refusal(*relay, "--accept", "new-slot")
    commands.run(*relay, *both.split())
    assert "Ready" in init()


def test_a_refused_row_is_named_and_put_aside_if_told(
    outbox: OutboxStage, commands: Commands
) -> None:
    outbox.execute("INSERT INTO outbox (aggregatetype, aggregateid) VALUES ('a b', 'k-17')")
    outbox.insert(1)
    relay = ("outbox", "relay", *named(outbox), "--until-caught-up")
    words = commands.refusal(*relay)
    assert "key 'k-17'" in words
    assert "--on-refused dead-letter" in words
    assert "--on-refused" in commands.refusal(*relay, "--dead-letter-topic", "aside")
    aside = ("--on-refused", "dead-letter", "--dead-letter-topic", f"{outbox.topic}-aside")
    done = commands.json(*relay, *aside, "--commit-timestamps")
    assert (done["rows"], done["dead_letters"]) == (1, 1)
    outbox.audit()
    with outbox.cluster() as cluster:
        (letter,) = cluster.records(TopicPartition(f"{outbox.topic}-aside", 0))
    assert letter.key == b"k-17"


def test_without_a_database_the_option_is_named(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FENCEPOST_POSTGRES_DSN")
    for command in ("relay", "status"):
        assert "--postgres DSN" in commands.refusal("outbox", command, "--transactional-id", "x")


def test_metrics_stay_on_this_machine_unless_told(commands: Commands) -> None:
    words = commands.refusal("outbox", "relay", "--transactional-id", "x", "--metrics", "0.0.0.0:0")
    assert "--allow-remote" in words


def test_init_prints_sql_with_its_rights_and_runs_it(
    dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        assert main.run(["outbox", "init", "--transactional-id", "x", *arguments]) == 0
        return capsys.readouterr().out

    printed = run("--print", "--relay-user", "app", "--table", "sales.outbox")
    assert re.search(r"CREATE TABLE IF NOT EXISTS sales\.outbox \(\n +id uuid", printed)
    assert 'GRANT SELECT, UPDATE ON fencepost_outbox_chunk TO "app";' in printed
    assert "-- REPLICATION" in printed
    printed = run("--print", "--mode", "table", "--relay-user", "app", "--shards", "4")
    assert "CREATE CONSTRAINT TRIGGER fencepost_number" in printed
    assert "--key-column" in printed
    for shards in ("0", "33"):
        wrong = ("--transactional-id", "x", "--print", "--mode", "table", "--shards", shards)
        assert main.run(["outbox", "init", *wrong]) == 1
        assert "choose 1 to 32" in capsys.readouterr().err
    assert "REPLICATION" not in printed
    assert 'GRANT SELECT ON SEQUENCE "outbox_fencepost" TO "app";' in printed
    assert "Ready" in run("--postgres", dsn)
    assert "Ready" in run("--postgres", dsn)
    assert '"sql"' in run("--postgres", dsn, "--json")


def test_a_relay_runs_until_sigterm_and_loses_nothing(outbox: OutboxStage) -> None:
    outbox.insert(3)
    command = [sys.executable, "-m", "fencepost", "outbox", "relay", *named(outbox)]
    command += ["--postgres", outbox.dsn, "-b", outbox.bootstrap_servers]
    command += ["--metrics", "127.0.0.1:0"]
    with ServerProcess(command, environment=environment()) as process:

        def seen(words: str) -> Any:
            return lambda line: line if words in line else None

        process.wait_for_line(seen("metrics at http://127.0.0.1:"), 30)
        process.wait_for_line(seen("caught up: 3 rows"), 30)
        outbox.insert(2)
        assert process.stop() == 0
    outbox.relay()
    outbox.audit()


def test_a_database_that_is_killed_during_a_query_is_one_sentence(kafka: str) -> None:
    with PostgresServer() as server:
        outbox = OutboxStage(server.dsn(), kafka, mode="table")
        outbox.insert(3_000, size=1_000)
        command = [sys.executable, "-m", "fencepost", "outbox", "relay", *named(outbox)]
        command += ["--mode", "table", "--chunk", "10"]
        command += ["--postgres", outbox.dsn, "-b", outbox.bootstrap_servers]
        with subprocess.Popen(
            command, env=environment(), stderr=subprocess.PIPE, text=True
        ) as process:
            while not outbox.records():
                assert process.poll() is None
            server.kill()
            assert process.stderr is not None
            said = process.stderr.read().splitlines()
        assert process.returncode == 1
        assert len(said) == 1, said
