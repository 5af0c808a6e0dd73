"""The demo's picture."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from fencepost.base.svg import FONT_SIZE, text_width
from fencepost_examples.demo.picture import LEFT, RIGHT, WIDTH, draw
from fencepost_examples.demo.plan import (
    Victim,
)
from tests.demo.histories import a_history


def test_the_picture_shows_every_kill_and_the_overpaid_amount() -> None:
    drawing = draw(*a_history(doubled=7))
    texts = {element.text: element for element in ET.fromstring(drawing).iter() if element.text}
    assert {"driver", "broker", "loader", "exactly once", "at least once"} <= texts.keys()
    assert any("7 too many: 7.35 rupees" in text for text in texts)
    # The two are half a second apart: their labels must not overlap.
    assert float(texts["broker"].attrib["x"]) - float(texts["driver"].attrib["x"]) >= FONT_SIZE
    assert all(
        LEFT <= float(texts[v.value].attrib["x"]) <= RIGHT for v in Victim if v.value in texts
    )


def test_duplicates_have_their_own_colour_in_the_bar() -> None:
    picture = ET.fromstring(draw(*a_history(doubled=7)))
    bars = {each.get("class"): each for each in picture.iter("{http://www.w3.org/2000/svg}rect")}
    doubled, once = bars["bad"], bars["f0"]
    share = float(doubled.attrib["width"]) / float(once.attrib["width"])
    assert share == pytest.approx(7 / 60, rel=0.02)
    assert "bad" not in draw(*a_history()).partition("</style>")[2]


@pytest.mark.parametrize("doubled", [0, 1, 7_000_000])
def test_no_text_in_the_picture_is_cut_off(doubled: int) -> None:
    history, options = a_history(doubled=doubled)
    history.seconds = 60.0  # Puts the last label at the edge.
    for each in ET.fromstring(draw(history, options)).iter("{http://www.w3.org/2000/svg}text"):
        assert each.text is not None
        width = text_width(each.text, bold="strong" in each.attrib["class"])
        before = {"start": 0.0, "middle": width / 2, "end": width}[each.attrib["text-anchor"]]
        left = float(each.attrib["x"]) - (0 if "transform" in each.attrib else before)
        assert left >= 0, each.text
        assert left + (0 if "transform" in each.attrib else width) <= WIDTH, each.text
