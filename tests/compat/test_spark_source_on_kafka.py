"""Goal: the source works on Apache Kafka as it does on fencepost.

Method: its tests, which use only the wire protocol, run again on Apache Kafka, in another process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.compat.conftest import Side

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["test_columns", "test_source"])
def test_the_source_works_on_apache_kafka(apache_kafka: Side, tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'inner'}", f"tests/spark/source/{name}.py"],
        cwd=ROOT,
        env=os.environ | {"FENCEPOST_TEST_BOOTSTRAP": apache_kafka.bootstrap_servers},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
