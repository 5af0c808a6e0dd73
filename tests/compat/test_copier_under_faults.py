"""The Java client's copier (TV2) beside others under faults; see docs/chaos.md."""

from __future__ import annotations

import pytest

from tests.cluster.chaos.run import run_chaos

SEED = 16


@pytest.mark.timeout(300)
def test_the_java_client_copies_every_record_once_while_brokers_fail() -> None:
    lines: list[str] = []
    report = run_chaos(SEED, 20, say=lines.append, clients=("java", "confluent"))
    assert report.problems == [], "\n".join([*lines, str(report)])
