"""Goal: the source works on Apache Kafka as it does on fencepost.

Method: its tests, which use only the wire protocol, run again on Apache Kafka, in another process.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.compat.conftest import Side


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["test_columns", "test_source"])
def test_the_source_works_on_apache_kafka(apache_kafka: Side, tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    apache_kafka.run_tests([f"tests/spark/source/{name}.py"], tmp_path)
