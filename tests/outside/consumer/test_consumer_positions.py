"""A position that does not fit its topic is refused with the statement that accepts it."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from fencepost.outside import ConsumerFenced, PositionRefused
from fencepost.outside.consumer.rule import Found, Partition
from fencepost.outside.failures import KafkaRefused
from tests.outside.consumer.stage import DEADLINE_SECONDS, Stage, apply


def accept(stage: Stage, refused: PositionRefused) -> None:
    """Runs the statement that the message ends with."""
    _, found, statement = str(refused).partition(", run ")
    assert found
    stage.query(statement)


def recreate(stage: Stage) -> None:
    stage.delete_topic()
    stage.create_topic()


def delete_before(stage: Stage, offset: int) -> None:
    asked = TopicPartition(stage.topic, 0, offset)
    stage.admin.delete_records([asked])[asked].result(DEADLINE_SECONDS)


def test_a_topic_that_was_created_again_is_refused_at_the_start(stage: Stage) -> None:
    stage.send("a", "b")
    with stage.consumer() as consumer:
        apply(next(consumer))
    recreate(stage)
    stage.send("c", "d", "e")
    consumer = stage.consumer()
    for _ in range(2):
        with pytest.raises(PositionRefused, match="deleted and created again") as caught:
            next(consumer)
    assert stage.query("SELECT epoch, next_offset FROM fencepost_offsets") == [(1, 2)]
    accept(stage, caught.value)
    apply(next(consumer))
    assert stage.applied() == ["a", "b", "c", "d", "e"]
    [(topic_id,)] = stage.query("SELECT topic_id FROM fencepost_offsets")
    assert topic_id == stage.topic_id()


def test_a_topic_that_is_created_again_under_a_consumer_is_refused(stage: Stage) -> None:
    """librdkafka would go on at the next offset, in the middle of the new topic."""
    stage.send("a", "b")
    consumer = stage.consumer()
    apply(next(consumer))
    recreate(stage)
    stage.send("c", "d", "e")
    with pytest.raises(PositionRefused, match="deleted and created again") as caught:
        next(consumer)
    assert (stage.applied(), stage.position()) == (["a", "b"], 2)
    accept(stage, caught.value)
    apply(next(consumer))
    assert stage.applied() == ["a", "b", "c", "d", "e"]


def test_a_topic_that_is_deleted_under_a_consumer_is_named(stage: Stage) -> None:
    stage.send("a")
    consumer = stage.consumer(config={"topic.metadata.refresh.interval.ms": 200})
    apply(next(consumer))
    stage.delete_topic()
    with pytest.raises(KafkaRefused, match=stage.topic):
        next(consumer)


@pytest.mark.parametrize("when", ["before the start", "while it runs"])
def test_retention_beyond_the_position_is_refused(stage: Stage, when: str) -> None:
    stage.send("a", "b", "c", "d")
    consumer = stage.consumer(max_records=1, config={"queued.min.messages": 1})
    apply(next(consumer))
    if when == "before the start":
        consumer.close()
        consumer = stage.consumer()
        delete_before(stage, 3)
    else:
        delete_before(stage, 3)
        # Goes back to the log, of which the client may hold a part.
        stage.query("UPDATE fencepost_offsets SET epoch = epoch + 1")
        with pytest.raises(ConsumerFenced):
            apply(next(consumer))
    with pytest.raises(PositionRefused, match="begins at offset 3, but 1 is the next") as caught:
        next(consumer)
    assert stage.applied() == ["a"]
    accept(stage, caught.value)
    apply(next(consumer))
    assert stage.applied() == ["a", "d"]


def test_a_position_that_expires_before_it_is_read_is_refused(stage: Stage) -> None:
    stage.send("a", "b", "c")
    consumer = stage.consumer()

    def expire(step: str) -> None:
        if step == "before the seek":
            delete_before(stage, 2)

    consumer.on_step = expire
    with pytest.raises(PositionRefused, match="begins at offset 2, but 0 is the next"):
        next(consumer)
    assert stage.applied() == []


def test_a_position_beyond_the_end_is_refused(stage: Stage) -> None:
    stage.send("a", "b")
    with stage.consumer() as consumer:
        apply(next(consumer))
    stage.query("UPDATE fencepost_offsets SET next_offset = 3")
    consumer = stage.consumer()
    with pytest.raises(PositionRefused, match="ends at offset 2, but 3 is the next") as caught:
        next(consumer)
    accept(stage, caught.value)
    stage.send("c")
    apply(next(consumer))
    assert stage.applied() == ["a", "b", "c"]


def test_a_position_that_a_person_changes_is_used_from_then_on(stage: Stage) -> None:
    stage.send("a", "b")
    consumer = stage.consumer()
    apply(next(consumer))
    stage.query("UPDATE fencepost_offsets SET next_offset = 1")
    stage.send("c")
    with pytest.raises(ConsumerFenced, match="says 1, not 2"):
        apply(next(consumer))
    assert stage.applied() == ["a", "b"]
    apply(next(consumer))
    assert stage.applied() == ["a", "b", "b", "c"]


def test_a_row_that_was_deleted_begins_anew(stage: Stage) -> None:
    stage.send("a")
    consumer = stage.consumer()
    batch = next(consumer)
    stage.query("DELETE FROM fencepost_offsets")
    with pytest.raises(ConsumerFenced, match="is gone"):
        apply(batch)
    apply(next(consumer))
    assert (stage.applied(), stage.position()) == (["a"], 1)


@pytest.mark.parametrize("moment", ["before the claim", "before the decision"])
def test_a_position_that_moves_during_a_claim_is_not_beyond_the_end(
    stage: Stage, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its former owner applies what arrives after the end of the log was asked."""
    stage.send("a")
    with stage.consumer() as former:
        apply(next(former))
    consumer = stage.consumer()
    ask = consumer._member.find
    moves = iter([True])

    def go_on() -> None:
        if next(moves, False):
            stage.send("b", "c")
            stage.query("UPDATE fencepost_offsets SET next_offset = 2")

    if moment == "before the claim":
        consumer.on_step = lambda step: go_on() if step == moment else None
    else:

        def find_then_go_on(wanted: list[Partition]) -> dict[Partition, Found]:
            found = ask(wanted)
            go_on()
            return found

        monkeypatch.setattr(consumer._member, "find", find_then_go_on)
    apply(next(consumer))
    assert (stage.applied(), stage.position()) == (["a", "c"], 3)
