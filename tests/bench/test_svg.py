"""Plots are well-formed pictures that a reader without eyes can read too."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from bench.svg import HEIGHT, WIDTH, Line, Point, line_plot, nice_ticks

SVG = "{http://www.w3.org/2000/svg}"


def point(x: float, y: float) -> Point:
    return Point(x, y, y * 0.9, y * 1.1)


def drawn(*lines: Line) -> ET.Element:
    return ET.fromstring(line_plot("A <title> & more", "ids", "us", lines))


def test_a_plot_is_well_formed_and_says_what_it_shows() -> None:
    picture = drawn(Line("ours", [point(10, 300), point(1000, 310)]), Line("a & b", [point(10, 5)]))

    assert picture.findtext(f"{SVG}title") == "A <title> & more"
    assert picture.findtext(f"{SVG}desc") == (
        "us against ids. ours: 300 at 10, 310 at 1,000. a & b: 5 at 10."
    )
    assert len(picture.findall(f"{SVG}polyline")) == 2
    assert len(picture.findall(f"{SVG}circle")) == 3


@pytest.mark.parametrize(
    "places",
    [(1, 4, 16, 64), (10, 1000, 100_000), (0, 10, 100, 10_000), (0, 100, 500), (5,), (0,)],
    ids=str,
)
def test_every_point_is_inside_and_they_stand_in_order(places: tuple[int, ...]) -> None:
    picture = drawn(Line("ours", [point(x, 100 + x) for x in places]))

    centres = [
        (float(circle.attrib["cx"]), float(circle.attrib["cy"]))
        for circle in picture.iter(f"{SVG}circle")
    ]
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in centres)
    assert sorted({x for x, _ in centres}) == [x for x, _ in centres]


def test_names_of_lines_that_end_together_do_not_cover_each_other() -> None:
    picture = drawn(Line("ours", [point(1, 100)]), Line("theirs", [point(1, 101)]))

    names = [text for text in picture.iter(f"{SVG}text") if "name" in text.get("class", "")]
    first, second = sorted(float(name.attrib["y"]) for name in names)
    assert second - first >= 16


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [
        (0, [0, 1]),
        (10, [0, 2, 4, 6, 8, 10]),
        (11, [0, 2, 4, 6, 8, 10, 12]),
        (0.9, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_an_axis_has_round_numbers_and_room_for_the_highest(
    highest: float, ticks: list[float]
) -> None:
    assert nice_ticks(highest) == pytest.approx(ticks)


def test_a_plot_without_points_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="nothing to draw"):
        line_plot("empty", "x", "y", [Line("ours", [])])
