"""Which rows of a long story are shown."""

from __future__ import annotations

from fencepost.forensics.tap.swimlane import show
from fencepost.forensics.tap.swimlane.lanes import MAX_ROWS
from fencepost.forensics.tap.swimlane.story import read_story
from tests.forensics.tap.traces import ID, Script, written


def test_a_long_story_is_cut_around_the_fence() -> None:
    script = Script()
    script.init(0)
    for number in range(MAX_ROWS):
        script.call("Produce", written(0, 0, number), {}, connection=2, broker=2)
    script.end(0, "PRODUCER_FENCED")
    for number in range(MAX_ROWS):
        script.call("Produce", written(0, 0, number), {}, connection=2, broker=2)
    drawn = show.drawing(read_story(script.lines, ID), 120)
    assert len(drawn) < MAX_ROWS + 20
    assert any("rows are not shown" in line for line in drawn)
    assert any("PRODUCER_FENCED" in line for line in drawn)
