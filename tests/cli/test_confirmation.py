"""Questions before a change: one plain sentence, and nothing happens without a yes."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

import fencepost
from fencepost.base.failures import FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.cli.confirmation import confirm
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.groups import CommittedOffset
from fencepost.records.opened import Record
from tests.cli.running import Commands
from tests.cli.screen import on_terminal
from tools.fencepost_process import ROOT

SENTENCES: Final = {
    "topic delete t1": "This will delete topic 't1': 3 partitions and all records.",
    "topic delete t1 t2": "This will delete 2 topics and all their records: 't1' (3 partitions), "
    "'t2' (1 partition).",
    "group delete g1": "This will delete group 'g1': 2 committed offsets.",
    "group delete g1 g2": "This will delete 2 groups: 'g1' (2 committed offsets), 'g2' (1 "
    "committed offset).",
    "group reset g1 --topic t1:0 --to-offset 0": "This will move 1 committed offset of group 'g1'.",
    "txn fence id-1": "This will abort the transaction of 'id-1' on t1-0, and fence its producer "
    "(producer N, epoch N).",
    "txn abort id-1": "This will abort the transaction of 'id-1' on t1-0, and fence its producer "
    "(producer N, epoch N).",
    "txn commit id-1": "This will commit the transaction of 'id-1' on t1-0 as far as it was "
    "written, be it complete or not, and fence its producer (producer N, epoch N).",
    "txn fence idle --idle": "This will fence the producer of 'idle' (producer N, epoch N), which "
    "has no open transaction.",
}


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with fencepost.Broker() as broker:
        with connect(broker.bootstrap_servers) as cluster:
            cluster.create_topics([NewTopic("t1", 3), NewTopic("t2", 1)])
            write_and_commit(cluster)
        yield broker.bootstrap_servers


def write_and_commit(cluster: Cluster) -> None:
    cluster.init_producer_id("idle")
    with cluster.writer(cluster.init_producer_id("id-1")) as writer:
        writer.write_records(TopicPartition("t1", 0), [Record(timestamp_ms=0, value=b"v")])
        writer.flush()
    one, two = CommittedOffset(1), CommittedOffset(2)
    cluster.offset_commit("g1", {TopicPartition("t1", 0): one, TopicPartition("t1", 1): two})
    cluster.offset_commit("g2", {TopicPartition("t2", 0): one})


@pytest.mark.parametrize("command", SENTENCES)
def test_a_question_is_one_plain_sentence_and_no_means_no(
    servers: str, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    shown = Commands(servers, capsys).run(*command.split(), code=1)
    question, _, refusal = shown.splitlines()[-1].partition(" Continue? [y/N]:")
    assert re.sub(r"(producer|epoch) \d+", r"\1 N", question) == SENTENCES[command]
    assert refusal == "fencepost: Nothing was changed."


def test_without_an_answer_the_command_says_how_to_go_on(servers: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for stdin in ("< /dev/null", "<&-"):
        command = f"{sys.executable} -m fencepost topic delete t1 -b {servers} {stdin}"
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=60, env=environment
        )
        question, refusal = done.stderr.splitlines()
        assert (done.returncode, question.startswith("This will delete topic 't1'")) == (1, True)
        assert refusal == (
            "fencepost: Nothing was changed, as there was no answer; --yes goes on without a "
            "question."
        )


@pytest.mark.parametrize("answer", ["\n", "no\n", "maybe\nn\n"])
def test_anything_but_yes_changes_nothing(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    with pytest.raises(FencepostError, match="Nothing was changed"):
        confirm(False, "This will do something.")


def test_a_narrow_terminal_breaks_the_question_between_words(servers: str) -> None:
    code, shown = on_terminal(
        "topic", "delete", "t1", "t2", "-b", servers, columns=40, answer="n\n"
    )
    assert code == 1
    assert max(map(len, shown.splitlines()[:-1])) <= 40
    assert "all their\nrecords" in shown
    assert shown.rstrip().endswith("Nothing was changed.")
