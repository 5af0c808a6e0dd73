"""`tap show`: the story of a transactional id, from the traces of a tap and of brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import fencepost
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.client.failures import ClientError
from fencepost.forensics.tap.swimlane import show
from fencepost.forensics.tap.swimlane.conclusion import (
    FENCING_ERRORS,
    Conclusion,
    Outcome,
    conclude,
)
from fencepost.forensics.tap.swimlane.lanes import MAX_ROWS
from fencepost.forensics.tap.swimlane.story import Story, tell
from fencepost.records.opened import Record
from tests.cli.test_commands import fencepost_command
from tests.forensics.tap.traces import ID, Script, a_timeout, written
from tools.tap_process import TapProcess

SCREENS = Path(__file__).parents[2] / "cli" / "screens"


def fence_of(story: Story) -> Conclusion:
    """The first conclusion, which must be a fence."""
    found = conclude(story)[0]
    assert found.outcome is Outcome.FENCED
    assert found.call is not None
    return found


def is_fenced(story: Story) -> bool:
    return conclude(story)[0].outcome is Outcome.FENCED


def test_a_silence_longer_than_the_timeout_is_the_likely_cause() -> None:
    story = tell(a_timeout().lines, ID)
    fence = fence_of(story)
    assert fence.call is not None
    assert (fence.error, fence.call.api) == ("PRODUCER_FENCED", "EndTxn")
    (lost,) = fence.in_flight
    assert (lost.api, lost.broker) == ("Produce", "broker 2")
    assert fence.transaction is not None
    assert fence.transaction.timeout_ms == 30_000
    assert fence.wait is not None
    assert fence.wait.spent_us == 47_200_000 + 100
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
    fence = fence_of(tell(script.lines, ID))
    assert fence.wait is not None
    assert fence.wait.spent_us == 47_200_000 + 100
    assert fence.by.value == "its transaction timeout"
    assert fence.by.certainty.value == "estimated"
    said = "\n".join(show.drawing(tell(script.lines, ID), 120))
    assert (
        "Longest wait: 47.2 s before the call: no request after the reply to InitProducerId at "
        "08:00:00.001000, before EndTxn to broker 1."
    ) in said
    assert (
        "What opened its transaction is not in the trace; it was at most 47.2 s old; its timeout "
        "is 30 s; its coordinator is broker 1; ~fenced by its transaction timeout (see `fencepost "
        "txn why refunds-1`)."
    ) in said
    assert "... 47.2 s ..." in said


def test_a_newer_instance_is_named() -> None:
    script = Script()
    script.init(0)
    script.call("Produce", written(0, 0), {}, connection=2, broker=2)
    script.init(1, connection=11)
    script.call("Produce", written(0, 0, 5), {}, "INVALID_PRODUCER_EPOCH", connection=2, broker=2)
    story = tell(script.lines, ID)
    fence = fence_of(story)
    assert fence.by.value == "a newer instance, client id 'worker-1' at 127.0.0.1:50011"
    assert fence.by.certainty.value == "exact"
    assert [call.instance for call in story.calls] == [1, 1, 2, 1]


def test_without_evidence_the_cause_is_unknown() -> None:
    script = Script()
    script.init(0)
    script.end(0, "INVALID_PRODUCER_EPOCH")
    assert fence_of(tell(script.lines, ID)).by.value is None
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
    assert not is_fenced(story)


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


def test_a_broker_whose_id_was_learnt_later_is_the_same_broker() -> None:
    script = a_timeout()
    first = next(line for line in script.lines if line["kind"] == "request")
    del first["broker"]
    assert {call.broker for call in tell(script.lines, ID).calls} == {"broker 1", "broker 2"}


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
    assert max(map(len, drawn.partition("\n\n")[0].splitlines())) <= width
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
    assert not is_fenced(before)
    transaction = fence_of(after).transaction
    assert transaction is not None
    assert transaction.timeout_ms == 30_000, "what came before is still known"


def test_a_time_that_is_none_is_refused(trace: Path) -> None:
    with pytest.raises(ConfigError, match="--from is 'soon'"):
        show.read(str(trace), "soon", None)


def test_json_has_the_whole_story(trace: Path) -> None:
    done = fencepost_command("tap", "show", str(trace), "--json")
    told = json.loads(done.stdout)
    assert told["transactional_id"] == ID
    assert told["exchanges"][0]["api"] == "InitProducerId"
    assert told["exchanges"][-2]["duration_us"] is None
    (found,) = told["conclusions"]
    assert (found["outcome"], found["error"]) == ("fenced", "PRODUCER_FENCED")
    assert found["in_flight"][0]["api"] == "Produce"
    assert found["by"]["certainty"] == "estimated"
    assert found["longest_wait"]["place"] == "before the call"
    assert found["transaction"]["age_us"] == 47_202_000
    assert found["decided_at_us"] == found["transaction"]["opened_at_us"] + 30_000_000


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
    fence = fence_of(story)
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
