"""A broker, a Spark session, and three new topics for every test."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fencepost
from fencepost.client.blocking import Cluster, connect
from fencepost.spark.installation import JavaMissing, provide_java
from fencepost_examples.refunds.spark.fill import create_topics
from fencepost_examples.refunds.spark.pipeline import parser
from fencepost_examples.refunds.spark.session import make_session
from fencepost_examples.refunds.spark.settlements import EXACTLY_ONCE, Topics
from tests.spark.conftest import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count()


def require_spark() -> None:
    """Skips the test if Spark cannot run."""
    for library in ("pyspark", "pyarrow", "pandas"):
        pytest.importorskip(library, reason="the spark extra is not installed")
    try:
        provide_java()
    except JavaMissing as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """The only session of the process, left as it was found."""
    require_spark()
    from pyspark import SparkContext

    os.environ.update(environment())
    was_there = SparkContext._active_spark_context is not None
    session = make_session("fencepost tests")
    session.sparkContext.setLogLevel("OFF")
    yield session
    if not was_there:
        session.stop()


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    given = os.environ.get("FENCEPOST_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with fencepost.Broker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def cluster(bootstrap: str) -> Iterator[Cluster]:
    with connect(bootstrap) as found:
        yield found


@dataclass(frozen=True)
class Place:
    """The topics and folders of one pipeline."""

    bootstrap: str
    prefix: str
    folder: Path

    @property
    def topics(self) -> Topics:
        return Topics.of(EXACTLY_ONCE, self.prefix)

    def options(self, *more: str) -> argparse.Namespace:
        arguments = ["--bootstrap-servers", self.bootstrap, "--prefix", self.prefix]
        arguments += ["--checkpoint", str(self.folder / "checkpoint")]
        return parser().parse_args([*arguments, *more])


@pytest.fixture
def place(bootstrap: str, cluster: Cluster, tmp_path: Path) -> Place:
    made = Place(bootstrap, f"refunds-{os.getpid()}-{next(_numbers)}-", tmp_path)
    create_topics(cluster, [made.topics])
    return made
