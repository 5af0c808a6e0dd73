"""The order in which offsets are fixed, against a pipeline that moves between any two requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition
from fencepost.client.blocking import Cluster
from fencepost.client.groups import CommittedOffset
from fencepost.client.reading import EARLIEST
from fencepost.spark.auditing.bounds import Bounds, Sleep, fix_bounds
from fencepost.spark.auditing.question import Asked, read_question
from fencepost.spark.auditing.tables import Rows, TableReader

INPUT, OUTPUT = TopicPartition("in", 0), TopicPartition("out", 0)


class LivePipeline:
    """A cluster on which a right pipeline runs: output n is of input n.

    A transaction writes its outputs, then its markers, in either order. Before each answer the
    pipeline makes some steps.
    """

    def __init__(self, steps: list[int], *, offsets_first: bool) -> None:
        self._steps = iter(steps)
        self._offsets_first = offsets_first
        self.inputs = self.written = self.visible = self.committed = 4
        self._phase = 0

    def advance(self) -> None:
        for _ in range(next(self._steps, 0)):
            self.step()

    def step(self) -> None:
        match self._phase:
            case 0:
                self.inputs += 2
            case 1:
                self.written = self.inputs
            case 2:
                self._mark(offsets=self._offsets_first)
            case _:
                self._mark(offsets=not self._offsets_first)
        self._phase = (self._phase + 1) % 4

    def _mark(self, *, offsets: bool) -> None:
        if offsets:
            self.committed = self.written
        else:
            self.visible = self.written

    def metadata(self, topics: Collection[str] = (), *, missing_ok: bool = False) -> Any:
        self.advance()
        view = SimpleNamespace(partitions=[SimpleNamespace(index=0)], topic_id=ZERO_TOPIC_ID)
        return SimpleNamespace(topics=dict.fromkeys(("in", "out"), view))

    def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation: str | None = None
    ) -> dict[TopicPartition, Any]:
        self.advance()
        ends = {INPUT: self.inputs}
        ends[OUTPUT] = self.visible if isolation == "read_committed" else self.written
        return {
            tp: SimpleNamespace(offset=0 if time_ms == EARLIEST else ends[tp])
            for tp, time_ms in times.items()
        }

    def offset_fetch(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        self.advance()
        # As with require_stable: it waits for the marker of a transaction that has one.
        while self.visible > self.committed:
            self.step()
        return {INPUT: CommittedOffset(self.committed)}

    def describe_configs(self, *_: object) -> dict[str, Any]:
        return {}


@given(st.lists(st.integers(0, 5), max_size=25), st.booleans(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_no_offsets_contradict_each_other_whatever_the_pipeline_does_meanwhile(
    steps: list[int], offsets_first: bool, has_group: bool
) -> None:
    pipeline = LivePipeline(steps, offsets_first=offsets_first)
    found = _fixed(pipeline, "group" if has_group else None, lambda _: pipeline.step())
    (read,), (written,) = found.inputs, found.outputs
    if has_group:
        assert found.required[0] <= written.end, "an input must have an output that is not read"
        assert found.committed is not None
        assert written.settled <= found.committed[0], "a right output is ahead"
        assert found.problems == ()
    assert found.required[0] <= read.end
    assert written.end <= read.end, "an output has no input"
    assert written.settled <= written.end


class LiveTables:
    """The tables of the same pipeline, which works on between any two looks at them."""

    def __init__(self, pipeline: LivePipeline, *, are_inputs: bool) -> None:
        self._pipeline = pipeline
        self._are_inputs = are_inputs
        self._due = 0
        self.moments: dict[str, datetime] = {}

    def begin(self) -> None:
        self._pipeline.advance()
        self._due = self._pipeline.inputs

    def read(self, *, is_input: bool) -> list[Rows]:
        self._pipeline.advance()
        if is_input != self._are_inputs:
            return []
        size = self._pipeline.inputs if is_input else self._pipeline.visible
        nothing = np.zeros((0, 3), np.uint64)
        due = self._due if is_input else 0
        return [Rows("table", is_input, size, due, 0, nothing, pa.chunked_array([], pa.binary()))]


@given(st.lists(st.integers(0, 5), max_size=25), st.booleans())
@settings(max_examples=200, deadline=None)
def test_tables_are_read_in_the_order_in_which_offsets_are_fixed(
    steps: list[int], has_group: bool
) -> None:
    # The database commits the outputs, and then the offsets follow.
    pipeline = LivePipeline(steps, offsets_first=False)
    asked: Asked = {"input": "in", "table": "table", "table_key": "id", "postgres": "dbname=x"}
    asked["group"] = "group" if has_group else None
    question = read_question(**asked)
    tables = cast(TableReader, LiveTables(pipeline, are_inputs=False))
    found = fix_bounds(cast(Cluster, pipeline), question, lambda _: pipeline.step(), tables)
    (read,), (written,) = found.inputs, found.outputs
    if has_group:
        assert found.required[0] <= written.end, "an input must have an output that is not read"
    assert written.end <= read.end, "an output has no input"
    assert list(found.tables) == [1]

    pipeline = LivePipeline(steps, offsets_first=False)
    asked = {"input_table": "table", "output": "out", "table_key": "id", "postgres": "dbname=x"}
    tables = cast(TableReader, LiveTables(pipeline, are_inputs=True))
    found = fix_bounds(
        cast(Cluster, pipeline), read_question(**asked), lambda _: pipeline.step(), tables
    )
    (read,), (written,) = found.inputs, found.outputs
    assert written.end <= read.end, "an output has no input"
    assert found.required[0] <= read.end
    assert found.tables[0].is_input


def test_the_audit_waits_for_markers_that_are_on_their_way() -> None:
    pipeline = LivePipeline([], offsets_first=True)
    pipeline.inputs = pipeline.written = pipeline.committed = 6
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        pipeline.visible = 6

    found = _fixed(pipeline, "group", sleep)
    assert len(waited) == 1
    assert found.outputs[0].settled == found.required[0] == 6


def _fixed(pipeline: LivePipeline, group: str | None, sleep: Sleep) -> Bounds:
    question = read_question(input="in", output="out", group=group)
    return fix_bounds(cast(Cluster, pipeline), question, sleep)
