"""The story of a transactional id, from the traces of a tap and of brokers."""

from __future__ import annotations

from fencepost.forensics.tap.swimlane import show
from fencepost.forensics.tap.swimlane.story import read_story
from tests.forensics.tap.traces import ID, Script, a_timeout, fence_of, is_fenced, written


def test_a_silence_longer_than_the_timeout_is_the_likely_cause() -> None:
    story = read_story(a_timeout().lines, ID)
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
    fence = fence_of(read_story(script.lines, ID))
    assert fence.wait is not None
    assert fence.wait.spent_us == 47_200_000 + 100
    assert fence.by.value == "its transaction timeout"
    assert fence.by.certainty.value == "estimated"
    said = "\n".join(show.drawing(read_story(script.lines, ID), 120))
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
    story = read_story(script.lines, ID)
    fence = fence_of(story)
    assert fence.by.value == "a newer instance, client id 'worker-1' at 127.0.0.1:50011"
    assert fence.by.certainty.value == "exact"
    assert [call.instance for call in story.calls] == [1, 1, 2, 1]


def test_without_evidence_the_cause_is_unknown() -> None:
    script = Script()
    script.init(0)
    script.end(0, "INVALID_PRODUCER_EPOCH")
    assert fence_of(read_story(script.lines, ID)).by.value is None
    assert "what fenced it is not in the trace" in "\n".join(
        show.drawing(read_story(script.lines, ID), 80)
    )


def test_an_epoch_that_a_commit_returned_belongs_to_the_same_producer() -> None:
    """TV2: every EndTxn raises the epoch."""
    script = Script()
    script.init(0)
    body = {"transactional_id": ID, "producer_id": 7, "producer_epoch": 0, "committed": True}
    script.call("EndTxn", body, {"producer_id": 7, "producer_epoch": 1})
    script.call("Produce", written(0, 1), {}, connection=12, broker=2)
    story = read_story(script.lines, ID)
    assert {call.instance for call in story.calls} == {1}
    assert not is_fenced(story)


def test_markers_are_inferred_from_a_commit_and_marked() -> None:
    script = Script()
    script.init(0)
    script.call("Produce", written(0, 0), {}, connection=2, broker=2)
    script.call("Produce", written(1, 0), {}, connection=3, broker=3)
    script.end(0)
    story = read_story(script.lines, ID)
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
    assert {call.broker for call in read_story(script.lines, ID).calls} == {"broker 1", "broker 2"}


def test_other_ids_are_left_out() -> None:
    script = a_timeout()
    other = {"transactional_id": "other", "producer_id": 8, "producer_epoch": 0}
    script.call("EndTxn", other, {}, "PRODUCER_FENCED")
    assert len(read_story(script.lines, "other").calls) == 1
    assert all(call.body["transactional_id"] == ID for call in read_story(script.lines, ID).calls)
