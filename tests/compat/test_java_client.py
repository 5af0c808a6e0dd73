"""The Java client takes the same steps on both brokers and sees the same results.

The steps are in tests/compat/java. Each reports what it saw, without anything that differs between
two healthy brokers. They run once per side and subject; here each step is a separate test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.compat.conftest import Side
from tools.apache_kafka import ROOT
from tools.fencepost_process import FencepostProcess
from tools.java_tools import JavaTools

STEPS = [
    "admin: the cluster",
    "admin: the features",
    "admin: topics are created",
    "admin: topics are refused",
    "admin: topics are described",
    "admin: topics are listed",
    "admin: partitions are added",
    "admin: topic configs are described",
    "admin: topic configs are altered",
    "admin: broker configs are described",
    "admin: log dirs are described",
    "admin: topics are deleted",
    "admin: a thousand partitions",
    "records: codec none",
    "records: codec gzip",
    "records: codec snappy",
    "records: codec lz4",
    "records: codec zstd",
    "records: acks 0",
    "records: acks 1",
    "records: acks all",
    "records: a million bytes",
    "records: too large",
    "records: a write creates its topic",
    "records: append time",
    "records: timestamps too far off",
    "records: a compacted topic requires keys",
    "records: the topic chooses the codec",
    "records: offsets by time",
    "records: deleted up to an offset",
    "records: a position out of range",
    "records: small fetches",
    "records: a long poll ends when records come",
    "groups: two members with RangeAssignor",
    "groups: two members with RoundRobinAssignor",
    "groups: two members with StickyAssignor",
    "groups: two members with CooperativeStickyAssignor",
    "groups: every record once",
    "groups: reading continues at the committed offset",
    "groups: a static member returns",
    "groups: a static member is fenced",
    "groups: a static member is removed",
    "groups: committed offsets",
    "groups: a pattern finds new topics",
    "groups: described while alive",
    "groups: listed",
    "groups: changed by an administrator",
    "groups: deleted",
    "transactions: committed",
    "transactions: aborted",
    "transactions: an open one blocks readers",
    "transactions: a hundred in turn",
    "transactions: empty ones",
    "transactions: the second of two producers wins",
    "transactions: with offsets",
    "transactions: a consumer that lost its group",
    "transactions: fenced by an administrator",
    "transactions: aborted by an administrator",
    "transactions: the timeout has a limit",
    "transactions: described and listed",
]

Transcript = dict[str, dict[str, Any]]
EXERCISE_SECONDS = 200.0
KEPT = ROOT / "build" / "compat"


@pytest.fixture(scope="module")
def transcript() -> Callable[[Side, str], Transcript]:
    """What a Java client saw on one side, in all steps whose name begins with this word."""

    @cache
    def exercise(side: Side, word: str) -> Transcript:
        result = side.tools.run("Exercise", side.bootstrap_servers, word, seconds=EXERCISE_SECONDS)
        # Kept, so that a rare difference can still be read afterwards.
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / f"{side.name.replace(' ', '-')}-{word}.txt").write_text(result.out + result.err)
        assert result.code == 0, result.err
        lines = [json.loads(line) for line in result.lines]
        return {line["step"]: {"saw": line.get("saw"), "raised": _why(line)} for line in lines}

    return exercise


@pytest.fixture(scope="module")
def newest_side(
    tmp_path_factory: pytest.TempPathFactory, newest_client: JavaTools
) -> Iterator[Side]:
    """A broker of its own: the steps name their topics."""
    data = tmp_path_factory.mktemp("newest") / "data"
    options = ["--config", "group.initial.rebalance.delay.ms=0", "--trace", f"{data}.jsonl"]
    with FencepostProcess(data, options=options) as broker:
        yield Side("fencepost-newest", broker.bootstrap_servers, broker.data, newest_client)


def test_the_newest_java_client_uses_the_newest_versions(
    transcript: Callable[[Side, str], Transcript], newest_side: Side
) -> None:
    transcript(newest_side, "transactions")
    lines = map(json.loads, Path(f"{newest_side.data}.jsonl").read_text().splitlines())
    used = {(line["api"], line["api_version"]) for line in lines if line["kind"] == "request"}
    assert {("TxnOffsetCommit", 6), ("ApiVersions", 5)} <= used


def _why(line: dict[str, Any]) -> str | None:
    return f"{line['raised']}: {line['message']} {line['trace']}" if "raised" in line else None


@pytest.mark.timeout(450)
@pytest.mark.parametrize("step", STEPS)
def test_a_java_client_sees_the_same_as_on_apache_kafka(
    step: str,
    transcript: Callable[[Side, str], Transcript],
    apache_kafka: Side,
    fencepost_broker: Side,
) -> None:
    word = step.partition(":")[0]
    expected = transcript(apache_kafka, word)[step]
    assert expected["raised"] is None, "the step itself is wrong: Apache Kafka fails it"
    assert transcript(fencepost_broker, word)[step] == expected


@pytest.mark.timeout(450)
@pytest.mark.parametrize("step", STEPS)
def test_the_newest_java_client_sees_what_its_predecessor_sees_on_apache_kafka(
    step: str,
    transcript: Callable[[Side, str], Transcript],
    apache_kafka: Side,
    newest_side: Side,
) -> None:
    word = step.partition(":")[0]
    expected = transcript(apache_kafka, word)[step]
    assert transcript(newest_side, word)[step] == expected


def test_every_step_of_the_exercise_is_a_test(tools: JavaTools) -> None:
    assert tools.check("Exercise").splitlines() == STEPS
