"""Goal: the audit finds on Apache Kafka what it finds on fencepost, and nothing else.

Method: the main tests of tests/spark/auditing run again on Apache Kafka, in a separate process: a
process has one Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.compat.conftest import Side

AUDITS = "tests/spark/auditing/test_run.py::test_"
SELECTION = [
    f"{AUDITS}every_kind_of_finding_is_counted_and_named",
    f"{AUDITS}outputs_in_an_open_transaction_are_neither_missing_nor_there",
    f"{AUDITS}what_retention_has_deleted_is_not_judged",
    f"{AUDITS}offsets_that_a_partition_cannot_have_are_found",
    f"{AUDITS}a_live_pipeline_of_our_sink_has_no_findings",
]


@pytest.mark.timeout(300)
def test_an_audit_finds_the_same_on_apache_kafka(apache_kafka: Side, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    assert f"{len(SELECTION)} passed" in apache_kafka.run_tests(SELECTION, tmp_path)
