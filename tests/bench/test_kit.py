"""The load `kit`: its suite passes with a broker per test, and with one that all share."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.load import Scale
from bench.loads import kit
from bench.run import taking_part
from bench.sides import FENCEPOST, KAFKA, KFAKE, SOURCE_VARIABLE
from fencepost.testing.embedded import Broker


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SOURCE_VARIABLE, raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def test_the_suite_runs_beside_apache_kafka_and_kfake() -> None:
    sides = [FENCEPOST, KAFKA, KFAKE]
    assert taking_part(kit.LOAD, sides, Scale(quick=False)) == sides


def test_each_test_has_a_broker_or_all_share_the_one_that_is_named(tmp_path: Path) -> None:
    kit.run_suite(tmp_path, {"FENCEPOST_KIT_TESTS": "2"})
    with Broker() as broker:
        shared = {"FENCEPOST_KIT_BOOTSTRAP": broker.bootstrap_servers}
        kit.run_suite(tmp_path, {"FENCEPOST_KIT_TESTS": "2", **shared})
        with broker._connect() as client:
            written = [name for name in client.metadata(None).topics if name.startswith("refunds-")]
    assert len(written) == 2


def test_a_suite_that_did_not_run_is_no_result(tmp_path: Path) -> None:
    nothing = {"FENCEPOST_KIT_TESTS": "1", "PYTEST_ADDOPTS": "--collect-only"}
    with pytest.raises(RuntimeError, match="the suite did not pass"):
        kit.run_suite(tmp_path, nothing)
