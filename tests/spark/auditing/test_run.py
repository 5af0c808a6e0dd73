"""Audits of topics on a broker: what is found, and what must never be."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient

from fencepost.base.failures import ConfigError
from fencepost.client.blocking import Cluster
from fencepost.client.topics import create_partitions
from fencepost.records.opened import Record
from tests.spark.auditing.topics import NOW_MS, Topics, numbered
from tests.spark.conftest import on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = on_spark()

LATER_MS = 1 << 50
"""All inputs are older."""


@pytest.fixture
def topics(
    cluster: Cluster, bootstrap: str, spark: SparkSession, new_topic: Callable[..., str]
) -> Topics:
    return Topics(cluster, bootstrap, spark, new_topic)


def test_every_kind_of_finding_is_counted_and_named(topics: Topics) -> None:
    read, first, second = topics.new(2, "in"), topics.new(2, "first"), topics.new(1, "second")
    topics.put(read, 0, numbered(100))
    topics.put(read, 1, numbered(100, "m"))
    topics.put(first, 0, [key for key in numbered(100) if key not in ("k5", "k7")])
    topics.put(first, 1, [*numbered(100, "m"), "m3", "alien"])
    swapped = ["k0", "k2", "k1", *numbered(100)[3:]]
    topics.put(second, 0, [k for k in swapped if k != "k5"] + numbered(99, "m"))
    topics.transact(second, 0, ["k5", "m99", "k8"], commit=False)
    group = f"group-{read}"
    topics.commit(group, read, 100, 50)

    found = topics.audit(input=read, output=[first, second], group=group)

    assert found.counts == {
        "missing": 1,
        "torn": 1,
        "doubled": 1,
        "unexpected": 1,
        "reordered": 1,
        "ahead": 99,
    }
    assert found.is_exactly_once is False
    assert {each.kind: each.certainty for each in found.findings} == dict.fromkeys(
        found.counts, "proven"
    )
    examples = {each.kind: [str(one) for one in each.examples] for each in found.findings}
    assert examples["missing"] == [f"key k5, input {read}:0:5"]
    assert examples["torn"] == [f"key k7, input {read}:0:7, nothing in {first}"]
    assert examples["doubled"] == [f"key m3, input {read}:1:3, output {first}:1:100"]
    assert examples["unexpected"] == [f"key alien, output {first}:1:101"]
    assert examples["reordered"] == [f"key k1, input {read}:0:1, output {second}:0:2"]
    assert len(examples["ahead"]) == 5
    assert (found.outputs.records, found.outputs.aborted) == (398, 3)
    # m99 has no output in the second topic, and is not committed.
    assert found.not_judged == ((1, f"inputs without output beyond the offsets of {group}"),)
    assert str(found).startswith("Not exactly-once by key: 1 missing, 1 torn, ")
    assert "<b>Not exactly-once by key" in found._repr_html_()

    rows = {
        (row.kind, bytes(row.key)): row for row in found.rows().where("kind != 'ahead'").collect()
    }
    assert set(rows) == {
        ("missing", b"k5"),
        ("torn", b"k7"),
        ("doubled", b"m3"),
        ("unexpected", b"alien"),
        ("reordered", b"k1"),
    }
    assert rows["torn", b"k7"].lacking == [first]
    assert rows["unexpected", b"alien"].inputTopic is None
    assert rows["doubled", b"m3"].outputOffset == 100


def test_a_copier_that_starts_again_before_its_offset_was_committed_doubles(topics: Topics) -> None:
    """At least once: it wrote 60, had committed 40, died, and wrote from 40 on again."""
    read, written = topics.new(1, "in"), topics.new(1, "out")
    topics.put(read, 0, numbered(100))
    topics.put(written, 0, numbered(60))
    topics.put(written, 0, numbered(100)[40:])
    found = topics.audit(input=read, output=written, until_ms=LATER_MS)
    assert found.counts == {"doubled": 20}
    assert found.judged == 100


def test_without_a_group_only_inputs_before_the_last_one_with_an_output_are_judged(
    topics: Topics,
) -> None:
    read, written = topics.new(2, "in"), topics.new(2, "out")
    topics.put(read, 0, numbered(100))
    topics.put(read, 1, numbered(100, "m"))
    topics.put(written, 0, [key for key in numbered(50) if key != "k20"])
    found = topics.audit(input=read, output=written)
    assert found.counts == {"missing": 1}
    assert [each.certainty for each in found.findings] == ["likely"]
    assert found.not_judged[0][0] == 150
    assert found.judged == 50
    # A repeated key makes it read a second time, with the same result.
    topics.put(read, 1, ["m0"])
    again = topics.audit(input=read, output=written)
    assert again.counts == {"missing": 1}
    assert again.not_judged[0][0] == 151


def test_outputs_in_an_open_transaction_are_neither_missing_nor_there(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.spark.auditing.bounds.MARKER_WAIT_SECONDS", 0.1)
    read, written = topics.new(1, "in"), topics.new(2, "out")
    topics.put(read, 0, numbered(30))
    topics.put(written, 0, numbered(10))
    end = topics.transact(written, 1, numbered(20)[10:], commit=None)
    group = f"group-{read}"
    topics.commit(group, read, 20)
    found = topics.audit(input=read, output=written, group=group)
    assert found.counts == {}
    assert found.outputs.undecided == 10
    assert (10, "inputs whose outputs are in an open transaction") in found.not_judged
    end(False)
    assert topics.audit(input=read, output=written, group=group).counts == {"missing": 10}


def test_topics_may_be_empty_or_have_one_record(topics: Topics) -> None:
    read, written = topics.new(2, "in"), topics.new(1, "out")
    empty = topics.audit(input=read, output=written)
    assert (empty.is_exactly_once, empty.judged) == (None, 0)
    assert empty.verdict == "Cannot tell: no input could be judged."
    topics.put(read, 1, ["k"])
    assert topics.audit(input=read, output=written, until_ms=LATER_MS).counts == {"missing": 1}
    topics.put(written, 0, ["k"])
    found = topics.audit(input=read, output=written, until_ms=LATER_MS)
    assert (found.is_exactly_once, found.judged) == (True, 1)


def test_what_has_no_key_is_counted_and_not_judged(topics: Topics) -> None:
    read, written = topics.new(1, "in"), topics.new(1, "out")
    values = [b'{"id": 1}', b"\xff\x00 no json", b'{"id": null}', None, b'{"id": "2"}']
    headers = [Record(timestamp_ms=NOW_MS, key=None, value=v) for v in values]
    topics.put(read, 0, headers)
    topics.put(
        written, 0, [Record(timestamp_ms=NOW_MS, key=k, value=b"") for k in (b"2", b"1", None)]
    )
    found = topics.audit(
        input=read,
        output=written,
        input_key="value:id",
        output_key="key",
        order="none",
        until_ms=LATER_MS,
    )
    assert found.counts == {}
    assert found.judged == 2
    assert set(found.not_judged) == {
        (3, "inputs without the key value:id"),
        (1, "outputs without the key key"),
    }


def test_equal_keys_are_counted_and_headers_can_be_keys(topics: Topics) -> None:
    read, written = topics.new(2, "in"), topics.new(1, "out")
    same = [Record(timestamp_ms=NOW_MS, value=b"v", headers=(("id", b"7"),))] * 500
    topics.put(read, 0, same)
    topics.put(read, 1, same)
    topics.put(written, 0, same + same[:490])
    asked: dict[str, Any] = {"key": "header:id", "input": read, "output": written}
    found = topics.audit(**asked, until_ms=LATER_MS)
    assert found.counts == {"missing": 10}
    assert "or another input with this key" in str(found)
    topics.put(written, 0, same[:13])
    assert topics.audit(**asked, until_ms=LATER_MS).counts == {"doubled": 3}


def test_a_lost_and_a_doubled_record_of_one_key_are_not_called_exactly_once(
    topics: Topics,
) -> None:
    """Withdraw, deposit, withdraw: the deposit is lost, a withdrawal is there twice."""

    def moved(*values: bytes) -> list[Record]:
        return [Record(timestamp_ms=NOW_MS, key=b"account-7", value=value) for value in values]

    read, written = topics.new(1, "in"), topics.new(1, "out")
    topics.put(read, 0, moved(b"-10", b"+100", b"-20"))
    topics.put(written, 0, moved(b"-10", b"-20", b"-20"))
    asked: dict[str, Any] = {"input": read, "output": written, "until_ms": LATER_MS}
    found = topics.audit(**asked)
    assert found.is_exactly_once is None
    assert found.verdict.startswith("Cannot tell by key: 3 inputs share their key with others")
    assert "counts_per_key" in str(found)
    assert found.as_json()["is_exactly_once"] is None

    # By the whole value it shows, and whoever wants counts gets them by that name.
    assert topics.audit(**asked, key="value").counts == {"missing": 1, "doubled": 1}
    counted = topics.audit(**asked, counts_per_key=True)
    assert counted.is_exactly_once is True
    assert counted.verdict == (
        "Exactly-once by counts per key as far as it was judged: 3 inputs. "
        "Values were not compared."
    )


def test_one_topic_or_the_other_may_have_the_output(topics: Topics) -> None:
    read, yes, no = topics.new(1, "in"), topics.new(1, "yes"), topics.new(1, "no")
    topics.put(read, 0, numbered(20))
    topics.put(yes, 0, numbered(8))
    topics.put(no, 0, [*numbered(20)[8:], "k3"])
    asked: dict[str, Any] = {"input": read, "output": [yes, no], "until_ms": LATER_MS}
    assert topics.audit(**asked, expect="one").counts == {"doubled": 1}
    # As a filter into both, the ones that only one topic has are torn.
    assert topics.audit(**asked, expect="all-or-none", order="none").counts == {"torn": 19}


def test_what_retention_has_deleted_is_not_judged(topics: Topics) -> None:
    read, written = topics.new(1, "in"), topics.new(1, "out")
    topics.put(read, 0, numbered(100))
    topics.put(written, 0, [key for key in numbered(100) if key != "k80"])
    delete_below(topics.bootstrap, written, 50)
    found = topics.audit(input=read, output=written, until_ms=LATER_MS)
    assert found.counts == {"missing": 1}
    assert [each.certainty for each in found.findings] == ["likely"]
    assert found.not_judged[0][0] == 50
    assert found.outputs.deleted == 50
    delete_below(topics.bootstrap, read, 60)
    found = topics.audit(input=read, output=written, until_ms=LATER_MS)
    assert found.counts == {"missing": 1}
    assert found.not_judged[0][0] == 10
    assert "deleted inputs" in found.not_judged[0][1]


def delete_below(bootstrap: str, topic: str, offset: int) -> None:
    # The client must live until the reply arrives.
    client = AdminClient({"bootstrap.servers": bootstrap})
    place = Position(topic, 0, offset)
    client.delete_records([place])[place].result(30)


def test_offsets_that_a_partition_cannot_have_are_found(topics: Topics) -> None:
    read, written = topics.new(2, "in"), topics.new(1, "out")
    topics.put(read, 0, numbered(10))
    topics.put(read, 1, numbered(10, "m"))
    topics.put(written, 0, numbered(10) + numbered(10, "m"))
    group = f"group-{read}"
    topics.commit(group, read, 3, 500)
    delete_below(topics.bootstrap, read, 6)
    found = topics.audit(input=read, output=written, group=group)
    assert found.counts["offsets"] == 2
    shown = [str(one) for each in found.findings if each.kind == "offsets" for one in each.examples]
    assert "deleted unread" in shown[0]
    assert "the partition ends at 10" in shown[1]


def test_what_happens_after_the_offsets_were_fixed_changes_nothing(topics: Topics) -> None:
    from fencepost.spark.auditing.question import read_question
    from fencepost.spark.auditing.run import prepare_audit

    read, written = topics.new(1, "in"), topics.new(1, "out")
    topics.put(read, 0, numbered(20))
    topics.put(written, 0, numbered(20))
    prepared = prepare_audit(
        topics.bootstrap, {}, read_question(input=read, output=written, until_ms=LATER_MS)
    )
    topics.put(read, 0, numbered(5, "late"))
    for topic in (read, written):
        topics.cluster.run(create_partitions(topics.cluster.core, topic, 3))
    topics.put(read, 2, numbered(5, "new"))
    topics.put(written, 2, numbered(9, "other"))
    found = prepared.run(topics.spark)
    assert (found.counts, found.judged) == ({}, 20)
    assert topics.audit(input=read, output=written, until_ms=LATER_MS).counts == {
        "missing": 10,
        "unexpected": 9,
    }


def test_a_live_pipeline_of_our_sink_has_no_findings(
    topics: Topics, tmp_path: Path, spark: SparkSession
) -> None:
    from fencepost.spark import TransactionalSink

    read, written = topics.new(2, "in"), topics.new(3, "out")
    topics.put(read, 0, numbered(50))
    source = (
        spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", topics.bootstrap)
        .option("subscribe", read)
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
    )
    sink = TransactionalSink(topics.bootstrap, transactional_id=written, topic=written)
    query = (
        source.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        group = f"fencepost-{written}"
        wait_for(lambda: bool(topics.cluster.offset_fetch(group)))
        for number in range(3):
            topics.put(read, 0, numbered(50, f"a{number}-"))
            topics.transact(read, 1, numbered(50, f"b{number}-"), commit=number != 1)
            found = topics.audit(input=read, output=written, group=group)
            assert found.counts == {}, str(found)
            assert found.judged >= 50
    finally:
        query.stop()


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"output": "no-such-topic"}, "no topic 'no-such-topic'"),
        ({"group": "no-such-group"}, "group 'no-such-group' has no committed offset"),
        ({"output": "IN"}, "is an input and an output"),
        ({"expect": "evry"}, "expect must be one of every, one, all-or-none, any"),
        ({"order": "key"}, "order must be one of partition, none"),
        ({"per_input": 0}, "per_input must be from 1"),
        ({"group": "g", "until_ms": 1}, "give one of them"),
        ({"output": []}, "name at least one output topic"),
    ],
)
def test_a_wrong_question_is_refused_with_a_reason(
    topics: Topics, options: dict[str, Any], sentence: str
) -> None:
    read, written = topics.new(1, "in"), topics.new(1, "out")
    given = {name: read if value == "IN" else value for name, value in options.items()}
    with pytest.raises(ConfigError, match=sentence):
        topics.audit(**{"input": read, "output": written} | given)
