"""The query: its decisions, and a daily limit that survives crashes."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencepost.client.blocking import Cluster
from fencepost_examples import refunds
from fencepost_examples.refunds.spark import audit, pipeline
from fencepost_examples.refunds.spark.audit import Findings
from fencepost_examples.refunds.spark.fill import write_settlements
from fencepost_examples.refunds.spark.pipeline import start_query
from fencepost_examples.refunds.spark.settlements import (
    ABOVE_DAILY_LIMIT,
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    Topics,
)
from tests.refunds.conftest import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

SETTLEMENTS = 600


def run(spark: SparkSession, place: Place, *options: str) -> None:
    wanted = place.options("--per-batch", "200", *options)
    start_query(spark, EXACTLY_ONCE, wanted, nullcontext()).awaitTermination()


def examine(spark: SparkSession, place: Place, *options: str) -> Findings:
    arguments = ["--bootstrap-servers", place.bootstrap, "--prefix", place.prefix, "--load"]
    arguments += ["--warehouse", str(place.folder / "warehouse")]
    arguments += ["--checkpoint", str(place.folder / "checkpoint"), *options]
    return audit.audit_side(spark, EXACTLY_ONCE, audit.parser().parse_args(arguments))


def test_the_audit_of_a_run_finds_nothing(
    spark: SparkSession, cluster: Cluster, place: Place
) -> None:
    write_settlements(cluster, place.topics.settlements, SETTLEMENTS)
    run(spark, place)
    findings = examine(spark, place)
    assert findings.is_clean, findings.wrong
    assert findings.rows["settlements"] == findings.rows["decisions"] == SETTLEMENTS
    assert 0 < findings.rows["refunds"] < SETTLEMENTS


class Stumbling:
    """A sink that fails after batch 1 was committed, before Spark has logged it."""

    def __init__(self, sink: Callable[[DataFrame, int], None]) -> None:
        self._sink = sink

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self._sink(df, batch_id)
        if batch_id == 1:
            raise RuntimeError("the power went out")


def test_the_daily_limit_holds_across_a_crash_and_a_restart(
    spark: SparkSession, cluster: Cluster, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settlements(cluster, place.topics.settlements, SETTLEMENTS)
    genuine = pipeline.make_sink
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "make_sink", lambda *args: Stumbling(genuine(*args)))
        with pytest.raises(Exception, match="the power went out"):
            run(spark, place, "--daily-limit")
    run(spark, place, "--daily-limit")
    findings = examine(spark, place, "--daily-limit")
    assert findings.is_clean, findings.wrong
    assert findings.rows["decisions"] == SETTLEMENTS
    refused = spark.table("audit").where(f"decision = '{ABOVE_DAILY_LIMIT}'").count()
    assert refused > 0, "too few settlements to reach a limit"


def test_at_least_once_output_goes_to_separate_topics() -> None:
    plain, exact = Topics.of(AT_LEAST_ONCE, "p-"), Topics.of(EXACTLY_ONCE, "p-")
    assert plain.settlements == exact.settlements == "p-settlements"
    assert {plain.refunds, plain.audit}.isdisjoint({exact.refunds, exact.audit})


def test_every_command_on_the_examples_page_is_valid() -> None:
    page = (Path(refunds.__file__).parent / "README.md").read_text()
    commands = re.findall(
        r"^python -m fencepost_examples\.refunds\.(\S+) +(.*)$", page, re.MULTILINE
    )
    assert [name for name, _ in commands] == [
        "spark.fill",
        "spark.pipeline",
        "spark.loader",
        "spark.audit",
        "pipeline",
        "processor",
    ]
    for name, options in commands:
        module = f"{name}.__main__" if name in ("pipeline", "processor") else name
        program = importlib.import_module(f"fencepost_examples.refunds.{module}")
        program.parser().parse_args(shlex.split(options))
