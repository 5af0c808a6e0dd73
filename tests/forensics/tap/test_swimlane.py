"""`tap show`: the story of a transactional id, from the traces of a tap and of brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import fencepost
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.failures import ClientError
from fencepost.forensics.tap.swimlane import show
from fencepost.forensics.tap.swimlane.fencing import FENCING_ERRORS, find_fence
from fencepost.forensics.tap.swimlane.lanes import MAX_ROWS
from fencepost.forensics.tap.swimlane.story import Story, tell
from fencepost.records.opened import Record
from tests.cli.test_commands import fencepost_command
from tools.tap_process import TapProcess

SCREENS = Path(__file__).parents[2] / "cli" / "screens"
ID = "refunds-1"
START_US = 1_800_000_000_000_000


class Script:
    """The lines of a trace, written by hand."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.number = 0
        self.lines: list[dict[str, Any]] = [
            {"format": "fencepost-tap", "version": 1, "kind": "start", "time_us": START_US}
        ]

    def wait(self, seconds: float) -> None:
        self.now_us += int(seconds * 1_000_000)

    def ask(self, api: str, body: dict[str, Any], connection: int = 1, broker: int = 1) -> int:
        self.number += 1
        self.now_us += 100
        self._add("request", api, connection, broker, self.number, body=body)
        return self.number

    def answer(self, number: int, body: dict[str, Any], *errors: str) -> None:
        self.now_us += 900
        sent = next(
            line
            for line in self.lines
            if line["kind"] == "request" and line["correlation_id"] == number
        )
        self._add(
            "reply",
            sent["api"],
            sent["connection"],
            sent["broker"],
            number,
            duration_us=self.now_us - sent["time_us"],
            errors=list(errors),
            body=body,
        )

    def call(
        self, api: str, body: dict[str, Any], reply: dict[str, Any], *errors: str, **where: int
    ) -> None:
        self.answer(self.ask(api, body, **where), reply, *errors)

    def init(self, epoch: int, **where: int) -> None:
        asked = {"transactional_id": ID, "transaction_timeout_ms": 30_000}
        self.call("InitProducerId", asked, {"producer_id": 7, "producer_epoch": epoch}, **where)

    def end(self, epoch: int, *errors: str, **where: int) -> None:
        body = {"transactional_id": ID, "producer_id": 7, "producer_epoch": epoch}
        self.call("EndTxn", {**body, "committed": True}, {}, *errors, **where)

    def _add(
        self, kind: str, api: str, connection: int, broker: int, number: int, **more: Any
    ) -> None:
        self.lines.append(
            {
                "time_us": self.now_us,
                "kind": kind,
                "connection": connection,
                "client": f"127.0.0.1:{50_000 + connection}",
                "address": f"kafka-{broker}:9092",
                "broker": broker,
                "client_id": f"worker-{connection % 10}",
                "api": api,
                "api_version": 4,
                "correlation_id": number,
                "size_bytes": 100,
                **more,
            }
        )


def written(partition: int, epoch: int, sequence: int = 0) -> dict[str, Any]:
    batch = {
        "record_count": 5,
        "producer_id": 7,
        "producer_epoch": epoch,
        "base_sequence": sequence,
    }
    data = {"index": partition, "records": {"size_bytes": 99, "batches": [batch]}}
    return {
        "transactional_id": ID,
        "topic_data": [{"name": "payments", "partition_data": [data]}],
    }


def a_timeout() -> Script:
    """A producer writes, is silent for 47.2 s, and comes too late."""
    script = Script()
    script.init(0)
    script.call("Produce", written(0, 0), {}, connection=2, broker=2)
    script.end(0)
    script.call("Produce", written(0, 0, 5), {}, connection=2, broker=2)
    script.wait(47.2)
    script.ask("Produce", written(0, 0, 10), connection=2, broker=2)
    script.end(0, "PRODUCER_FENCED")
    return script


def test_a_silence_longer_than_the_timeout_is_the_likely_cause() -> None:
    story = tell(a_timeout().lines, ID)
    fence = find_fence(story)
    assert fence is not None
    assert (fence.error, fence.call.api) == ("PRODUCER_FENCED", "EndTxn")
    (lost,) = fence.in_flight
    assert (lost.api, lost.broker) == ("Produce", "broker 2")
    assert fence.timeout_ms == 30_000
    assert fence.silence_us == 47_200_000 + 1_000
    assert (fence.by.value, fence.by.certainty.value) == ("its transaction timeout", "estimated")
    assert story.coordinators == ["broker 1"]
    assert story.leaders == {"payments-0": "broker 2"}
    said = "\n".join(show.drawing(story, 120))
    assert "EndTxn got PRODUCER_FENCED from broker 1" in said
    assert "Produce: no reply" in said


def test_the_silence_is_measured_to_the_request_that_ended_it() -> None:
    script = Script()
    script.init(0)
    script.wait(47.2)
    script.end(0, "INVALID_PRODUCER_EPOCH")
    fence = find_fence(tell(script.lines, ID))
    assert fence is not None
    assert fence.silence_us == 47_200_000 + 1_000
    assert fence.by.value == "its transaction timeout"
    assert fence.by.certainty.value == "estimated"
    said = "\n".join(show.drawing(tell(script.lines, ID), 120))
    assert (
        "47.2 s without a request from this producer; its transaction timeout is 30 s; "
        "~fenced by its transaction timeout (see `fencepost txn why refunds-1`)."
    ) in said
    assert "... 47.2 s ..." in said


def test_a_newer_instance_is_named() -> None:
    script = Script()
    script.init(0)
    script.call("Produce", written(0, 0), {}, connection=2, broker=2)
    script.init(1, connection=11)
    script.call("Produce", written(0, 0, 5), {}, "INVALID_PRODUCER_EPOCH", connection=2, broker=2)
    story = tell(script.lines, ID)
    fence = find_fence(story)
    assert fence is not None
    assert fence.by.value == "a newer instance, client id 'worker-1' at 127.0.0.1:50011"
    assert fence.by.certainty.value == "exact"
    assert [call.instance for call in story.calls] == [1, 1, 2, 1]


def test_without_evidence_the_cause_is_unknown() -> None:
    script = Script()
    script.init(0)
    script.end(0, "INVALID_PRODUCER_EPOCH")
    fence = find_fence(tell(script.lines, ID))
    assert fence is not None
    assert fence.by.value is None
    assert "what fenced it is not in the trace" in "\n".join(
        show.drawing(tell(script.lines, ID), 80)
    )


def test_an_epoch_that_a_commit_returned_belongs_to_the_same_producer() -> None:
    """TV2: every EndTxn raises the epoch."""
    script = Script()
    script.init(0)
    body = {"transactional_id": ID, "producer_id": 7, "producer_epoch": 0, "committed": True}
    script.call("EndTxn", body, {"producer_id": 7, "producer_epoch": 1})
    script.call("Produce", written(0, 1), {}, connection=12, broker=2)
    story = tell(script.lines, ID)
    assert {call.instance for call in story.calls} == {1}
    assert find_fence(story) is None


def test_markers_are_inferred_from_a_commit_and_marked() -> None:
    script = Script()
    script.init(0)
    script.call("Produce", written(0, 0), {}, connection=2, broker=2)
    script.call("Produce", written(1, 0), {}, connection=3, broker=3)
    script.end(0)
    story = tell(script.lines, ID)
    assert [(m.partition, m.broker, m.source) for m in story.markers] == [
        ("payments-0", "broker 2", "inferred"),
        ("payments-1", "broker 3", "inferred"),
    ]
    drawn = "\n".join(show.drawing(story, 120))
    assert "~COMMIT payments-0" in drawn


def test_other_ids_are_left_out() -> None:
    script = a_timeout()
    other = {"transactional_id": "other", "producer_id": 8, "producer_epoch": 0}
    script.call("EndTxn", other, {}, "PRODUCER_FENCED")
    assert len(tell(script.lines, "other").calls) == 1
    assert all(call.body["transactional_id"] == ID for call in tell(script.lines, ID).calls)


def test_a_long_story_is_cut_around_the_fence() -> None:
    script = Script()
    script.init(0)
    for number in range(MAX_ROWS):
        script.call("Produce", written(0, 0, number), {}, connection=2, broker=2)
    script.end(0, "PRODUCER_FENCED")
    for number in range(MAX_ROWS):
        script.call("Produce", written(0, 0, number), {}, connection=2, broker=2)
    drawn = show.drawing(tell(script.lines, ID), 120)
    assert len(drawn) < MAX_ROWS + 20
    assert any("rows are not shown" in line for line in drawn)
    assert any("PRODUCER_FENCED" in line for line in drawn)


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in a_timeout().lines))
    return path


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_of_a_fenced_producer(trace: Path, width: int) -> None:
    drawn = "\n".join(show.drawing(show.story(show.read(str(trace), None, None), ID), width))
    assert max(map(len, drawn.splitlines()[:-4])) <= width
    screen = SCREENS / f"tap-show-{width}.txt"
    assert drawn + "\n" == screen.read_text(), "write the new screen if it is right"


def test_the_last_line_of_a_killed_process_may_be_incomplete(trace: Path) -> None:
    whole = show.story(show.read(str(trace), None, None), ID)
    with trace.open("a") as file:
        file.write('{"time_us": 18000000')
    assert len(show.story(show.read(str(trace), None, None), ID).calls) == len(whole.calls)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no request"),
        ('{"format": "fencepost-tap", "version": 2}\n', "has version 2 of the trace format"),
        ('{"time_ms": 5, "api": "EndTxn"}\n', "its first line does not name the format"),
        ("not json\n", "line 1 is no JSON object"),
        ("[1]\n", "line 1 is no JSON object"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    done = fencepost_command("tap", "show", str(path), "--transactional-id", ID)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_missing_or_binary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FencepostError, match="cannot be read"):
        show.read(str(tmp_path / "missing"), None, None)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FencepostError, match="it is no text"):
        show.read(str(tmp_path / "binary"), None, None)


@pytest.mark.parametrize(
    "text", ["08:00:10", "08:00:10.5", "2027-01-15T08:00:10Z", "2027-01-15T09:00:10+01:00"]
)
def test_the_time_can_be_narrowed(trace: Path, text: str) -> None:
    before = show.story(show.read(str(trace), None, text), ID)
    after = show.story(show.read(str(trace), text, None), ID)
    assert [call.api for call in before.shown_calls] == [
        "InitProducerId",
        "Produce",
        "EndTxn",
        "Produce",
    ]
    assert [call.api for call in after.shown_calls] == ["Produce", "EndTxn"]
    assert find_fence(before) is None
    fence = find_fence(after)
    assert fence is not None
    assert fence.timeout_ms == 30_000, "what came before is still known"


def test_a_time_that_is_none_is_refused(trace: Path) -> None:
    with pytest.raises(ConfigError, match="--from is 'soon'"):
        show.read(str(trace), "soon", None)


def test_json_has_the_whole_story(trace: Path) -> None:
    done = fencepost_command("tap", "show", str(trace), "--json")
    told = json.loads(done.stdout)
    assert told["transactional_id"] == ID
    assert told["exchanges"][0]["api"] == "InitProducerId"
    assert told["exchanges"][-2]["duration_us"] is None
    assert told["fence"]["error"] == "PRODUCER_FENCED"
    assert told["fence"]["in_flight"][0]["api"] == "Produce"
    assert told["fence"]["by"]["certainty"] in ("estimated", "unknown")


def test_without_an_id_the_ids_of_the_trace_are_listed(trace: Path) -> None:
    script = a_timeout()
    script.call("EndTxn", {"transactional_id": "other"}, {}, "NOT_COORDINATOR")
    trace.write_text("".join(json.dumps(line) + "\n" for line in script.lines))
    done = fencepost_command("tap", "show", str(trace))
    assert done.returncode == 0
    assert re.search(r"^other +1 ", done.stdout, re.MULTILINE)
    assert re.search(r"^refunds-1 +6 ", done.stdout, re.MULTILINE)
    assert "--transactional-id" in done.stdout


def test_the_picture_is_sound_and_has_every_row(trace: Path, tmp_path: Path) -> None:
    svg = tmp_path / "x.svg"
    done = fencepost_command("tap", "show", str(trace), "--svg", str(svg))
    assert done.returncode == 0
    texts = ["".join(each.itertext()) for each in ET.parse(svg).iter() if each.tag.endswith("text")]
    assert {"producer", "broker 1", "broker 2", "InitProducerId"} <= set(texts)
    assert "… 47.2 s …" in texts
    assert any(text.startswith("PRODUCER_FENCED") for text in texts)
    assert "prefers-color-scheme: dark" in svg.read_text()


# -- on brokers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fenced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, str]]:
    """A producer that a newer one fences: the traces of the tap and of three brokers."""
    folder = tmp_path_factory.mktemp("fenced")
    broker_trace = folder / "brokers.jsonl"
    with (
        fencepost.Cluster(3, trace=broker_trace) as cluster,
        TapProcess(cluster.bootstrap_servers, folder / "tap.jsonl") as tap,
    ):
        with (
            connect(tap.bootstrap_servers, {"client.id": "old"}) as old,
            connect(tap.bootstrap_servers, {"client.id": "new"}) as new,
        ):
            old.create_topics([NewTopic("payments", partitions=3)])
            identity = old.init_producer_id(ID)
            with old.writer(identity) as writer:
                for partition in range(3):
                    writer.write_records(
                        TopicPartition("payments", partition), [Record(value=b"v")]
                    )
                writer.flush()
                identity = old.end_txn(writer.identity, commit=True)
            new.init_producer_id(ID)
            with pytest.raises(ClientError), old.writer(identity) as writer:
                writer.write_records(TopicPartition("payments", 0), [Record(value=b"late")])
                writer.flush()
        tap.wait_for(lambda line: set(line.get("errors", ())) & FENCING_ERRORS)
        yield tap.out, broker_trace, cluster.bootstrap_servers


def story_of(path: Path) -> Story:
    return show.story(show.read(str(path), None, None), ID)


@pytest.mark.parametrize("which", [0, 1], ids=["tap", "brokers"])
def test_a_fenced_producer_is_explained(fenced: tuple[Path, Path, str], which: int) -> None:
    story = story_of(Path(fenced[which]))
    fence = find_fence(story)
    assert fence is not None
    assert fence.error in ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
    assert "newer instance, client id 'new'" in fence.by.value
    assert sorted(story.clients.values()) == ["new", "old"]
    assert len(set(story.leaders.values())) == 3


def test_brokers_show_the_markers_that_they_sent_each_other(
    fenced: tuple[Path, Path, str],
) -> None:
    story = story_of(fenced[1])
    commits = {marker.partition: marker.source for marker in story.markers if marker.commit}
    # A coordinator writes to its own partition without a request.
    assert sorted(commits) == ["payments-0", "payments-1", "payments-2"]
    assert sorted(commits.values()) == ["inferred", "trace", "trace"]


def test_the_markers_of_a_tap_are_read_from_the_partitions(fenced: tuple[Path, Path, str]) -> None:
    tap, _, servers = fenced
    arguments = ("--transactional-id", ID, "--bootstrap-servers", servers, "--json")
    told = json.loads(fencepost_command("tap", "show", str(tap), *arguments).stdout)
    assert {(each["partition"], each["commit"], each["source"]) for each in told["markers"]} == {
        (f"payments-{partition}", True, "log") for partition in range(3)
    }
