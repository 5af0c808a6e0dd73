"""Goal: a team's tests with faults run on Apache Kafka as they run on fencepost.

Method: tests/testing/test_service.py runs again in a separate process, with librdkafka, through the
proxy of the test kit. What needs the inside of a broker is skipped there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.compat.conftest import Side

ROOT = Path(__file__).resolve().parents[2]
SELECTION = ["tests/testing/test_service.py"]
SKIPPED = 2
"""Those that let time pass, or crash the broker."""


def test_the_same_tests_with_faults_pass_on_apache_kafka(
    apache_kafka: Side, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'inner'}", *SELECTION],
        cwd=ROOT,
        env=os.environ | {"FENCEPOST_TEST_BOOTSTRAP": apache_kafka.bootstrap_servers},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"14 passed, {SKIPPED} skipped" in ended.stdout
