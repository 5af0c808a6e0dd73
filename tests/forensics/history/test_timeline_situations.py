"""`fencepost txn timeline` on prepared situations, on a fencepost broker."""

from __future__ import annotations

import pytest

import fencepost
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from tests.broker.raw import RawClient
from tests.forensics import situations
from tests.forensics.running import run, timeline
from tests.transactions.protocol import TV1
from tests.transactions.wire import WireProducer, retried


@pytest.mark.usefixtures("no_read")
def test_the_timeline_needs_the_log_and_says_so(servers: str) -> None:
    with pytest.raises(fencepost.base.failures.FencepostError, match="grant READ"):
        run(servers, "txn", "timeline", "refunds")


@pytest.mark.parametrize("protocol", [1, 2])
def test_the_timeline_has_every_state_and_the_marker_of_each_end(
    protocol: int, servers: str
) -> None:
    found = situations.timed_out(servers, protocol)
    row = timeline(servers, found.transactional_id)
    steps = row["steps"]
    assert [step["state"] for step in steps] == [
        "Empty",
        "Ongoing",
        "PrepareAbort",
        "CompleteAbort",
    ]
    assert [step["producer_epoch"] for step in steps] == [0, 0, 1, 1]
    assert steps[1]["added"] == [str(found.partition)]
    assert steps[2]["since_previous_ms"] >= situations.SHORT_TIMEOUT_MS
    assert "its timeout was 1,500 ms" in steps[2]["notes"][0]
    (marker,) = steps[2]["markers"]
    assert (marker["partition"], marker["outcome"], marker["offset"]) == (
        str(found.partition),
        "abort",
        2,
    )
    assert marker["producer_epoch"] == 1
    # Only the records around the marker were read, and the transaction began long before.
    assert (marker["first_offset"], marker["is_first_offset_exact"]) == (None, False)
    assert row["is_complete"]
    assert row["stray_markers"] == []


def test_a_marker_that_no_record_explains_is_shown_as_such(servers: str) -> None:
    found = situations.aborted_by_markers(servers)
    row = timeline(servers, found.transactional_id)
    (stray,) = row["stray_markers"]
    assert (stray["partition"], stray["outcome"]) == (str(found.partition), "abort")


def test_a_topic_that_was_deleted_is_said_and_the_rest_is_shown(servers: str) -> None:
    found = situations.committed(servers)
    with connect(servers) as cluster:
        cluster.delete_topics([found.partition.topic])
    row = timeline(servers, found.transactional_id)
    assert len(row["steps"]) == 4
    (problem,) = row["problems"]
    assert "no longer exists" in problem


def test_only_the_last_states_are_shown_if_asked(servers: str) -> None:
    found = situations.aborted_by_client(servers, 2)
    row = timeline(servers, found.transactional_id, "--last", "3")
    assert [step["state"] for step in row["steps"]] == [
        "Ongoing",
        "PrepareCommit",
        "CompleteCommit",
    ]
    assert row["hidden_steps"] == 4


def test_rapid_transactions_of_one_epoch_each_get_their_own_marker(servers: str) -> None:
    """TV1: producer id, epoch and outcome are the same; only order and time tell them apart."""
    with connect(servers) as cluster:
        cluster.create_topics([NewTopic("rapid", 1)])
    producer = WireProducer(RawClient(servers), "rapid", TV1).initialise()
    for number in range(8):
        producer.send("rapid", b"v")
        retried(producer.client, lambda: producer.end(commit=number % 2 == 0))  # noqa: B023
    row = timeline(servers, "rapid")
    ends = [step for step in row["steps"] if step["state"].startswith("Prepare")]
    offsets = [marker["offset"] for step in ends for marker in step["markers"]]
    assert sorted(offsets) == list(range(1, 16, 2))
    assert all(len(step["markers"]) == 1 for step in ends)
    assert row["stray_markers"] == []
