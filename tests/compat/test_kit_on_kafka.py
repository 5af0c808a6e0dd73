"""Goal: a team's tests with faults run on Apache Kafka as they run on fencepost.

Method: tests/testing/test_service.py runs again in a separate process, with librdkafka, through the
proxy of the test kit. What needs the inside of a broker is skipped there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.compat.conftest import Side

SELECTION = ["tests/testing/test_service.py"]
SKIPPED = 2
"""Those that let time pass, or crash the broker."""


def test_the_same_tests_with_faults_pass_on_apache_kafka(
    apache_kafka: Side, tmp_path: Path
) -> None:
    assert f"14 passed, {SKIPPED} skipped" in apache_kafka.run_tests(SELECTION, tmp_path)
