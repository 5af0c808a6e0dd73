"""Random moves, writes and deletions keep the logs, the metadata and what clients were told alike.

Method: hypothesis chooses the steps on a broker beside another one that is only a name. In a burst
the steps follow each other without waiting, so moves meet writes that are not durable, unfinished
openings and deletions. The model knows what was acknowledged. After every burst a partition is open
exactly if the metadata says that this broker leads it, at the leader epoch of the metadata, with
exactly the acknowledged records; batches that were refused are not in it.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fencepost.base.errors import ErrorCode
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.broker.moves.moving import OTHER, THIS, Change, in_a_turn, join_other, start_move
from tests.broker.node_stage import FOLDER, Line, Stage
from tests.broker.requests import batch_of, produce_request, read_topic
from tests.halves import examples

TOPICS: Final = ("a", "b")
PRODUCE_VERSION: Final = 11
REFUSALS: Final = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

topics = st.sampled_from(TOPICS)
steps = st.one_of(
    st.tuples(st.just("write"), topics),
    st.tuples(st.just("away"), topics),
    st.tuples(st.just("back"), topics),
    st.tuples(st.just("turn"), topics),
    st.tuples(st.just("delete"), topics),
)


class Moves(RuleBasedStateMachine):
    """One broker, its two topics, and what it has acknowledged."""

    durability = "fsync"

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, dict[int, bytes]] = {}
        """The acknowledged values of each topic by their offset."""
        self.count = 0

    @initialize()
    def start(self) -> None:
        self.stage = Stage(durability=self.durability).start()
        for topic in TOPICS:
            self.create(topic)
        join_other(self.stage)

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            self.stage.stop()
            assert not self.stage.fatal, self.stage.fatal
            assert not self.stage.problems, self.stage.problems

    # -- steps

    def create(self, topic: str) -> None:
        new = NewTopic(topic, assignments=[(0, [THIS])])
        with in_a_turn(self.stage):
            self.stage.node.controller.create([new], lambda _: None, validate_only=False)
        self.stage.settle()
        self.values[topic] = {}

    @rule(chosen=st.lists(steps, min_size=1, max_size=12))
    def burst(self, chosen: list[tuple[str, str]]) -> None:
        line, admin = self.stage.connect(), self.stage.connect()
        sent: list[tuple[int, str, bytes]] = []
        changes: list[Change] = []
        deletions: list[int] = []
        for step, topic in chosen:
            exists = topic in self.stage.node.metadata.topics
            if step == "write":
                sent.append(self._write(line, topic))
            elif step == "turn":
                self.stage.loop.turn()
            elif step == "delete":
                request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)])
                deletions.append(admin.send(ApiKey.DELETE_TOPICS, 6, request))
            elif exists:
                to = OTHER if step == "away" else THIS
                changes.append(start_move(self.stage, topic, to=to))
        self.stage.settle()
        assert all(change.is_done for change in changes)
        for number in deletions:
            admin.reply(ApiKey.DELETE_TOPICS, 6, number)
        for topic in TOPICS:
            if topic not in self.stage.node.metadata.topics:
                self.values.pop(topic, None)
        self._hear(line, sent)
        self.check()

    def _write(self, line: Line, topic: str) -> tuple[int, str, bytes]:
        self.count += 1
        value = b"%d" % self.count
        request = produce_request(topic, batch_of(value))
        return line.send(ApiKey.PRODUCE, PRODUCE_VERSION, request), topic, value

    def _hear(self, line: Line, sent: list[tuple[int, str, bytes]]) -> None:
        for number, topic, value in sent:
            assert number in line.replies, "every request is answered"
            reply: Any = line.reply(ApiKey.PRODUCE, PRODUCE_VERSION, number)
            part = reply.responses[0].partition_responses[0]
            if part.error_code != ErrorCode.NONE:
                assert part.error_code in REFUSALS, ErrorCode(part.error_code)
            elif topic in self.values:
                self.values[topic][part.base_offset] = value

    @precondition(lambda self: len(self.values) < len(TOPICS))
    @rule()
    def create_again(self) -> None:
        for topic in TOPICS:
            if topic not in self.values:
                self.create(topic)
        self.check()

    @rule(how=st.sampled_from(["stop", "kill", "power"]))
    def restart(self, how: str) -> None:
        if how == "stop":
            self.stage.stop()
        elif how == "kill" or self.durability == "os":
            self.stage.kill()
        else:
            self.stage.lose_power()
        self.stage = self.stage.again()
        self.stage.settle()
        self.check()

    # -- what must hold

    def check(self) -> None:
        node = self.stage.node
        assert not self.stage.fatal, self.stage.fatal
        assert not self.stage.problems, self.stage.problems
        assert not node.effects._jobs
        assert not node.host.store._leaving
        for topic in TOPICS:
            state = node.metadata.partition(topic, 0)
            opened = node.partitions.get(topic, 0)
            assert (state is not None) == (topic in self.values)
            if state is None or state.leader != THIS:
                assert opened is None
                assert state is not None or not self.stage.disk.exists(f"{FOLDER}/{topic}-0")
                continue
            assert opened is not None
            assert opened.leader_epoch == state.leader_epoch
            assert opened.topic_id == node.metadata.topic_id(topic)
            values = self.values[topic]
            assert sorted(values) == list(range(len(values)))
            assert read_topic(self.stage, topic) == [values[offset] for offset in sorted(values)]


class MovesWithoutSync(Moves):
    durability = "os"


@pytest.mark.usefixtures("one_step_per_turn", "quiet")
@pytest.mark.parametrize("machine", [Moves, MovesWithoutSync])
def test_logs_and_metadata_agree_after_any_moves_writes_and_deletions(machine: type[Moves]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples(60), stateful_step_count=12, deadline=None)
    )
