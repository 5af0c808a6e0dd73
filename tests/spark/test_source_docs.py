"""docs/spark.md is held to the code: its example runs, its tables leave nothing out."""

from __future__ import annotations

import ast
import inspect
import re
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.spark import failures
from fencepost.spark.sink import TransactionalSink
from fencepost.spark.source_options import OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text()
WORDS = re.sub(r"[*`\s]+", " ", PAGE)

RAISED = {"Decision", "TimeoutError", "report_loss"} | {
    name for name, _ in inspect.getmembers(failures, inspect.isclass)
}
"""What carries a sentence for people. ConfigError is left out: it names the option, and the options are listed."""

HOLE = "\0"


def sentences() -> Iterator[tuple[str, str]]:
    """Every sentence with which the Spark room refuses something, with holes for what is filled in."""
    for path in sorted((ROOT / "src" / "fencepost" / "spark").glob("*.py")):
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
    """The first few words that tell this sentence from others."""
    pieces = re.split(rf"[:;] |\. |\(|{HOLE}", sentence)
    known = (piece.strip(" ,.").split() for piece in pieces)
    return next((" ".join(piece[:8]) for piece in known if len(piece) >= 3), None)


def test_every_refusal_is_in_the_table_of_remedies() -> None:
    found = [(name, words) for name, text in sentences() if (words := beginning(text))]
    assert len(found) > 30
    missing = [(name, words) for name, words in found if words not in WORDS]
    assert missing == [], "tell in docs/spark.md what to do about these"


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_of_the_source_is_in_the_table(name: str) -> None:
    assert f"`{name.removeprefix('kafka.')}`" in PAGE or f"`{name}`" in PAGE


def test_every_argument_of_the_sink_is_in_the_table() -> None:
    arguments = set(inspect.signature(TransactionalSink).parameters) - {"bootstrap_servers"}
    assert {name for name in arguments if f"| `{name}` |" not in PAGE} == set()


def examples() -> list[str]:
    return [textwrap.dedent(code) for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)]


@pytest.mark.spark
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("default")
def test_the_quick_start_does_what_it_says(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (code,) = examples()
    exec(compile(code, "docs/spark.md", "exec"), {"__name__": "quick_start"})
    assert capsys.readouterr().out.splitlines()[-1] == "100 refunds"
