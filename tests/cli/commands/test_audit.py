"""`fencepost audit`: its report, its exit codes, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.records.opened import Record
from tests.cli.kept_screens import FOLDER
from tests.cli.running import Commands
from tests.spark.auditing.topics import NOW_MS
from tests.spark.conftest import environment, on_spark, require_spark

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

pytestmark = on_spark(240)


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """Ten orders; one refund is missing, and one is there twice."""
    with fencepost.Broker() as broker, connect(broker.bootstrap_servers) as cluster:
        cluster.create_topics([NewTopic("orders", 1, 1), NewTopic("refunds", 1, 1)])
        for topic, numbers in (("orders", range(10)), ("refunds", [0, 1, 2, 4, 4, 5, 6, 7, 8, 9])):
            with cluster.writer(cluster.init_producer_id(None)) as writer:
                records = [Record(NOW_MS, key=b"%d" % number) for number in numbers]
                writer.write_records(TopicPartition(topic, 0), records)
                writer.flush()
        yield broker.bootstrap_servers


def test_an_audit_prints_its_findings_and_leaves_no_files(servers: str, tmp_path: Path) -> None:
    require_spark()
    asked = ["--input", "orders", "--output", "refunds", "--until", "now", "--master", "local[1]"]
    ended = subprocess.run(
        [sys.executable, "-m", "fencepost", "audit", *asked, "--json", "--check", *at(servers)],
        env=environment() | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 3, ended.stderr
    found = json.loads(ended.stdout)
    assert found["is_exactly_once"] is False
    assert {each["kind"]: each["count"] for each in found["findings"]} == {
        "missing": 1,
        "doubled": 1,
    }
    assert found["findings"][0]["examples"][0]["key"] == "3"
    assert "WARN" not in ended.stderr
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith("fencepost")]
    assert left == []


def at(servers: str) -> list[str]:
    return ["--bootstrap-servers", servers]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--output", "refnds"], "the cluster has no topic 'refnds'"),
        (["--output", "refunds", "--group", "nobody"], "group 'nobody' has no committed offset"),
        (["--output", "refunds", "--key", "id"], "'id' is not a key"),
        (["--output", "refunds", "--until", "noon"], "'noon' is not a position"),
        (["--output", "orders"], "orders is an input and an output"),
        (["--table", "payments"], "say with table_key which column of payments has the key"),
        (["--table", "payments", "--table-key", "id"], "say with postgres which database"),
        (
            ["--table", "t", "--table-key", "id", "--postgres", "host=127.0.0.1 port=1"],
            "start the server, or correct host and port",
        ),
    ],
)
def test_what_cannot_be_audited_is_refused_before_spark_starts(
    commands: Commands, arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr("fencepost.spark.own_session.own_session", refuse)
    assert sentence in commands.refusal("audit", "--input", "orders", *arguments)


def test_an_audit_needs_an_input_and_an_output(commands: Commands) -> None:
    assert "at least one output topic" in commands.refusal("audit", "--input", "orders")
    assert "at least one input topic" in commands.refusal("audit", "--table", "payments")


@pytest.mark.parametrize(
    ("judged", "seen", "code"), [(10, (), 0), (10, ("4 inputs share their key",), 4), (0, (), 4)]
)
def test_a_check_that_cannot_tell_has_its_own_exit_code(
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    judged: int,
    seen: tuple[str, ...],
    code: int,
) -> None:
    from fencepost.spark.auditing.result import AuditResult, SideCounts

    side = SideCounts(("t",), 1, 10, 0, 0, 0)
    result = AuditResult(side, side, judged, (), (), blind_spots=seen)
    monkeypatch.setattr("fencepost.cli.commands.audit._run", lambda *_: result)
    asked = ["audit", "--input", "orders", "--output", "refunds"]
    commands.run(*asked, "--check", code=code)
    told = commands.run(*asked)
    assert told.startswith("Cannot tell" if code else "Exactly-once by key")
    found = commands.json(*asked)
    assert found["is_exactly_once"] is (None if code else True)
    assert (found["compared"], found["not_compared"]) == ("key", "Values were not compared.")
    assert found["blind_spots"] == list(seen)


def test_tables_are_named_on_the_command_line_and_the_database_in_the_environment(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fencepost.spark.auditing.result import AuditResult, SideCounts

    asked = []

    def run(_: object, question: Any, __: object) -> AuditResult:
        asked.append(question)
        inputs, outputs = (
            SideCounts(("a",), 1, 9, 0, 0, 0),
            SideCounts((), 0, 0, 0, 0, 0, ("t",), 9),
        )
        return AuditResult(inputs, outputs, 9, (), ())

    monkeypatch.setattr("fencepost.cli.commands.audit._run", run)
    monkeypatch.setenv("FENCEPOST_POSTGRES_DSN", "dbname=shop")
    named = ["--input", "a", "--input-table", "b", "--table", "t", "--table-key", "data:id"]
    told = commands.run("audit", *named, "--compare", "amount=paid", "--compare", "day")
    assert "read 9 records of a (1 partition)" in told
    assert "and 9 rows of t" in told
    (question,) = asked
    assert (question.postgres, question.tables) == ("dbname=shop", ("b", "t"))
    assert question.compared == "key or data:id of inputs and data:id of outputs"
    assert (question.input.fields, question.output.fields) == (("amount", "day"), ("paid", "day"))


def test_the_user_can_say_that_counts_per_key_are_enough(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fencepost.spark.auditing.result import AuditResult, SideCounts

    asked = []

    def run(_: object, question: Any, __: object) -> AuditResult:
        asked.append(question.counts_per_key)
        side = SideCounts(("t",), 1, 10, 0, 0, 0)
        return AuditResult(side, side, 10, (), ())

    monkeypatch.setattr("fencepost.cli.commands.audit._run", run)
    commands.run("audit", "--input", "orders", "--output", "refunds")
    commands.run("audit", "--input", "orders", "--output", "refunds", "--counts-per-key")
    assert asked == [False, True]


def test_the_report_is_as_it_was_looked_at(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow", reason="the spark extra is not installed")
    from fencepost.cli.commands.audit import _print
    from fencepost.cli.output import Text
    from fencepost.spark.auditing.result import AuditFinding, AuditResult, Example, SideCounts

    monkeypatch.setattr("fencepost.cli.output._room", lambda: 80)
    inputs = SideCounts(("orders",), 4, 1_000_000, 0, 0, 0)
    outputs = SideCounts(("refunds", "ledger"), 8, 1_999_990, 4_000, 20, 500)
    findings = (
        AuditFinding(
            "torn",
            2,
            "proven",
            "Inputs with only some of their outputs",
            (
                Example("o-17", "orders:0:17", lacking=("ledger",)),
                Example("o-23", "orders:1:4", lacking=("ledger",)),
            ),
        ),
        AuditFinding(
            "doubled",
            1,
            "likely",
            "Outputs beyond those that their inputs explain, unless deleted inputs had the key",
            (Example("0xff00", "orders:0:99", "refunds:3:120"),),
        ),
    )
    left_out = ((35, "inputs without output beyond the offsets of refunds"),)
    result = AuditResult(inputs, outputs, 999_965, findings, left_out)
    _print(Text(), result, as_json=False)
    shown = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"
    file = FOLDER / "audit.txt"
    if os.environ.get("FENCEPOST_WRITE_SCREENS"):
        file.write_text(shown)
    assert shown == file.read_text()
