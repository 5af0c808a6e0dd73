"""`tap show`: screens, JSON, pictures, and what is not a trace."""

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
from fencepost.forensics.tap.swimlane.conclusion import FENCING_ERRORS
from fencepost.forensics.tap.swimlane.story import Story
from fencepost.records.opened import Record
from tests.cli.running import fencepost_command
from tests.forensics.tap.traces import ID, a_timeout, fence_of, is_fenced
from tools.tap_process import TapProcess

SCREENS = Path(__file__).parents[3] / "cli" / "screens"


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
    with pytest.raises(FencepostError, match="it is not text"):
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
    assert "fencepost tap show FILE ID" in done.stdout


def test_the_picture_is_sound_and_has_every_row(trace: Path, tmp_path: Path) -> None:
    svg = tmp_path / "x.svg"
    done = fencepost_command("tap", "show", str(trace), "--svg", str(svg))
    assert done.returncode == 0
    texts = ["".join(each.itertext()) for each in ET.parse(svg).iter() if each.tag.endswith("text")]
    assert {"producer", "broker 1", "broker 2", "InitProducerId"} <= set(texts)
    assert "… 47.2 s …" in texts
    assert any(text.startswith("PRODUCER_FENCED") for text in texts)
    assert "prefers-color-scheme: dark" in svg.read_text()


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


def test_brokers_show_the_markers_that_they_sent_each_other(fenced: tuple[Path, Path, str]) -> None:
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
