"""The pages about Spark match the code: examples run, tables are complete."""

from __future__ import annotations

import ast
import inspect
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.client.admin import NewTopic
from fencepost.spark import failures
from fencepost.spark.doors.foreach_batch import TransactionalSink
from fencepost.spark.settings import ARGUMENTS
from tests.spark.conftest import environment, read_values, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.client.blocking import Cluster

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text()
PAGES = [PAGE, *(path.read_text() for path in sorted((ROOT / "docs" / "spark").glob("*.md")))]
WORDS = re.sub(r"[*`\s]+", " ", " ".join(PAGES))

RAISED = {"Decision", "TimeoutError", "report_loss"} | {
    name for name, _ in inspect.getmembers(failures, inspect.isclass)
}
"""Calls with a message for users. ConfigError is left out: it names the option, and all options are
listed."""

HOLE = "\0"


def sentences() -> Iterator[tuple[str, str]]:
    """Every message with which the Spark package refuses something, with gaps for its values."""
    for path in sorted((ROOT / "src" / "fencepost" / "spark").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in RAISED and not is_consent(node):
                yield from ((path.name, text) for text in map(literal, node.args) if text)


def is_consent(node: ast.Call) -> bool:
    """Whether this is a decision of the ledger that refuses nothing."""
    words = ast.unparse(node)
    return words.startswith("Decision") and "Verdict.REFUSE" not in words


def literal(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or HOLE for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def beginning(sentence: str) -> str | None:
    """The first few words, which identify the message."""
    pieces = re.split(rf"[:;] |\. |\(|{HOLE}", sentence)
    known = (piece.strip(" ,.").split() for piece in pieces)
    return next((" ".join(piece[:8]) for piece in known if len(piece) >= 3), None)


def test_every_error_message_is_in_the_table_of_remedies() -> None:
    found = [(name, words) for name, text in sentences() if (words := beginning(text))]
    assert len(found) > 30
    missing = [(name, words) for name, words in found if words not in WORDS]
    assert missing == [], "describe in docs/spark/refusals.md what to do about these"


def test_every_argument_of_the_sink_has_a_meaning_in_the_generated_table() -> None:
    parameters = inspect.signature(TransactionalSink).parameters.keys()
    assert ARGUMENTS.keys() == parameters - {"removed"}


def examples(page: str) -> list[str]:
    return [textwrap.dedent(code) for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]


def run_example(code: str, name: str) -> None:
    exec(compile(code, name, "exec"), {"__name__": "example"})


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_the_example_with_dead_letters_writes_every_row_to_exactly_one_topic(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs" / "spark" / "sink.md").read_text()
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "-dead" in block
    ]
    orders = new_topic()
    cluster.create_topics([NewTopic(f"{orders}-dead", 1, 1)])
    names: dict[str, Any] = {"sink": TransactionalSink(bootstrap, transactional_id=orders)}
    exec(code.replace('"orders', f'"{orders}'), names)
    (tmp_path / "in").mkdir()
    rows = ['{"id": "o-1", "amount": 7}', "not json", '{"id": "o-2"}', '{"amount": 7}']
    (tmp_path / "in" / "rows.txt").write_text("\n".join(rows))
    lines = spark.readStream.text(str(tmp_path / "in")).selectExpr("'k' AS key", "value")
    writer = lines.writeStream.foreachBatch(names["write_with_dead_letters"])
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert read_values(cluster, orders) == ['{"id":"o-1","amount":7}']
    assert sorted(read_values(cluster, f"{orders}-dead")) == sorted(rows[1:])


@pytest.mark.spark
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("default")
def test_the_quick_start_works_as_described(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (code,) = [code for code in examples(PAGE) if "fencepost.Broker()" in code]
    run_example(code, "docs/spark.md")
    assert capsys.readouterr().out.splitlines()[-1] == "100 refunds"


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
def test_the_job_and_the_query_in_the_guide_to_testing_refund_once(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_spark()
    # Its topics have fixed names.
    monkeypatch.delenv("FENCEPOST_TEST_BOOTSTRAP", raising=False)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dspark.ui.enabled=false", prepend=" ")
    page = (ROOT / "docs" / "guide" / "testing.md").read_text()
    programs = dict(re.findall(r'```python title="(\w+)\.py"\n(.*?)```', page, re.DOTALL))
    assert sorted(programs) == ["refund_job", "test_refund_job", "test_refund_query"]
    pytester.makepyfile(**programs)
    plugin = ("-p", "fencepost.testing.pytest_plugin", "-p", "fencepost.spark.fixtures")
    ended = pytester.runpytest_subprocess(*plugin, "-p", "no:cacheprovider")
    ended.assert_outcomes(passed=2)
