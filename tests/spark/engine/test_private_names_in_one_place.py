"""The rule of this folder: what is private of Spark has one place, the table of names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import fencepost.spark
from fencepost.spark.engine import private_names

ROOM = Path(fencepost.spark.__file__).parent
TABLE = Path(private_names.__file__)
PUBLIC_ELSEWHERE = {"analyzed", "batchId", "children", "isStreaming", "options", "relation", "v1"}
"""Names in the table that also mean something of ours, or that public objects have, too."""


def words(path: Path) -> Iterator[str]:
    """Attributes, imported names and modules, and texts of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_private_name_of_spark_stands_outside_of_the_table() -> None:
    rows = (row for row in vars(private_names).values() if isinstance(row, private_names.Private))
    private = {name for row in rows for name in row.names.values()} - PUBLIC_ELSEWHERE
    found = {
        (str(path.relative_to(ROOM)), word)
        for path in ROOM.rglob("*.py")
        if path != TABLE
        for word in words(path)
        if word in private or (word.startswith("pyspark.") and "._" in word)
    }
    assert found == set()


def test_no_private_attribute_is_used_and_no_private_module_outside_of_the_folder() -> None:
    for path in ROOM.rglob("*.py"):
        # Without such a comment, ruff finds the attributes that begin with an underscore.
        assert "SLF001" not in path.read_text(), path
        if path.parent != TABLE.parent:
            assert not {"pyspark.util", "pyspark.sql.pandas"} & {
                word.rpartition(".")[0] for word in words(path) if word.startswith("pyspark.")
            }, path


def test_only_a_missing_name_ends_a_block_without_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    protocol = pytest.importorskip("py4j.protocol", reason="the spark extra is not installed")
    row = private_names.Private("the moon", "it is dark", face="frontSide")
    thrown = protocol.Py4JJavaError("it fails", SimpleNamespace(_target_id="o1"))
    for problem in (thrown, protocol.Py4JNetworkError("it is gone"), ValueError("no")):
        with pytest.raises(type(problem)), row.optional():
            raise problem
    assert caplog.messages == []
    for problem in (protocol.Py4JError("no such\nmethod"), AttributeError("no"), ImportError("no")):
        with row.optional():
            raise problem
    assert caplog.messages == ["fencepost: this Spark does not show the moon: it is dark (no such)"]
