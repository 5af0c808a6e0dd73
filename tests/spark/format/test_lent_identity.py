"""Goal: an identity is found by the processes of its own query, and by no others."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark import SparkFiles

from fencepost.client.transactions import ProducerIdentity
from fencepost.spark.format.lent_identity import (
    forget_identity,
    recall_identity,
    remember_identity,
)
from fencepost.spark.format.options import WriteOptions, read_write_options

IDENTITY = ProducerIdentity("t", 7, 3, 2)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))


def options(**changes: str) -> WriteOptions:
    given = {"kafka.bootstrap.servers": "localhost:9092", "transactionalId": "t"}
    return read_write_options(given | changes, streaming=True)


def test_an_identity_is_found_until_it_is_forgotten(tmp_path: Path) -> None:
    assert recall_identity(options()) is None
    remember_identity(options(), ProducerIdentity("t", 7, 2, 2))
    remember_identity(options(), IDENTITY)
    assert recall_identity(options()) == IDENTITY
    assert recall_identity(options(checkpointLocation="/other")) is None
    forget_identity(options())
    forget_identity(options())
    assert recall_identity(options()) is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    tmp_path.rmdir()
    remember_identity(options(), IDENTITY)
    assert recall_identity(options()) is None
    forget_identity(options())


def test_a_damaged_file_is_no_identity(tmp_path: Path) -> None:
    remember_identity(options(), IDENTITY)
    [path] = tmp_path.iterdir()
    path.write_text("[1")
    assert recall_identity(options()) is None
