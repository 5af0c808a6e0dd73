"""Plots are well-formed SVG with a description for screen readers."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.redraw import redraw
from bench.svg import BOTTOM, HEIGHT, WIDTH, Line, Point, line_plot, nice_ticks
from fencepost.base.svg import text_width

SVG = "{http://www.w3.org/2000/svg}"


def point(x: float, y: float) -> Point:
    return Point(x, y, y * 0.9, y * 1.1)


def drawn(*lines: Line) -> ET.Element:
    return ET.fromstring(line_plot("A <title> & more", "ids", "µs", lines))


def test_a_plot_is_well_formed_and_describes_itself() -> None:
    picture = drawn(Line("ours", [point(10, 300), point(1000, 310)]), Line("a & b", [point(10, 5)]))

    assert picture.findtext(f"{SVG}title") == "A <title> & more"
    assert picture.findtext(f"{SVG}desc") == (
        "µs against ids. ours: 300 at 10, 310 at 1,000. a & b: 5 at 10."
    )
    assert len(picture.findall(f"{SVG}polyline")) == 1, "a single point makes no line"
    assert len(picture.findall(f"{SVG}circle")) == 3


@pytest.mark.parametrize(
    "places",
    [(1, 4, 16, 64), (10, 1000, 100_000), (0, 10, 100, 10_000), (0, 100, 500), (5,), (0,)],
    ids=str,
)
def test_all_points_are_inside_the_plot_and_in_order(places: tuple[int, ...]) -> None:
    picture = drawn(Line("ours", [point(x, 100 + x) for x in places]))

    centres = [
        (float(circle.attrib["cx"]), float(circle.attrib["cy"]))
        for circle in picture.iter(f"{SVG}circle")
    ]
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in centres)
    assert sorted({x for x, _ in centres}) == [x for x, _ in centres]


def test_labels_of_lines_that_end_together_do_not_overlap() -> None:
    picture = drawn(Line("ours", [point(1, 100)]), Line("theirs", [point(1, 101)]))

    first, second = sorted(float(name.attrib["y"]) for name in names(picture))
    assert second - first >= 16


def names(picture: ET.Element) -> list[ET.Element]:
    return [text for text in picture.iter(f"{SVG}text") if "strong" in text.get("class", "")]


def test_labels_of_lines_at_the_bottom_do_not_touch_the_axis() -> None:
    lines = [Line(name, [point(1, 1000), point(2, 1)]) for name in ("ours", "theirs", "others")]
    places = [float(name.attrib["y"]) - 4 for name in names(drawn(*lines))]
    assert max(places) <= HEIGHT - BOTTOM
    assert len(set(places)) == 3


def test_a_long_label_stays_inside_the_picture() -> None:
    name = "a side whose name is long (interpreted, without a compiler)"
    (label,) = names(drawn(Line(name, [point(1, 12_345), point(64, 123_456)])))
    assert label.text == f"{name}: 123,456"
    assert float(label.attrib["x"]) + text_width(label.text, bold=True) <= WIDTH


def test_no_line_is_drawn_across_missing_points() -> None:
    ours = Line("ours", [point(x, 10) for x in (1, 10, 100, 1000)])
    theirs = Line("theirs", [point(1, 70), point(100, 80), point(1000, 90)])
    picture = drawn(ours, theirs)
    whole, part = (line.attrib["points"].split() for line in picture.iter(f"{SVG}polyline"))
    assert (len(whole), len(part)) == (4, 2)
    assert part[0].split(",")[0] == whole[2].split(",")[0]
    assert len(list(picture.iter(f"{SVG}circle"))) == 7, "every point is still drawn"
    assert names(picture)[0].text == "70", "a single point shows its value"


PAGE = """
### 1 record per transaction

| measure | ratio | fencepost | Apache Kafka 4.3.0 |
|---|---:|---:|---:|
| 1 x TV2: transactions/s | **33.85** (30.1 .. 34.2) | 3,044 (2,900 .. 3,100) | 89.9 |
| 4 x TV2: transactions/s |  | 7,990 (7,107 .. 8,878) |  |
| 64 x TV2: transactions/s | **3.61** | 12,519 | 3,465 (2,465 .. 3,500) |
"""


def test_plots_are_redrawn_from_the_tables_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "performance-details.md"
    page.write_text(PAGE)
    (tmp_path / "performance").mkdir()
    assert redraw(page) == [tmp_path / "performance" / "small-transactions.svg"]
    description = ET.fromstring(redraw(page)[0].read_text()).findtext(f"{SVG}desc")
    assert description == (
        "transactions/s against producers. fencepost: 3,044 at 1, 7,990 at 4, 12,519 at 64. "
        "Apache Kafka 4.3.0: 89.9 at 1, 3,465 at 64."
    )


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [
        (0, [0, 1]),
        (10, [0, 2, 4, 6, 8, 10]),
        (11, [0, 2, 4, 6, 8, 10, 12]),
        (0.9, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_an_axis_has_round_numbers_up_to_the_highest_value(
    highest: float, ticks: list[float]
) -> None:
    assert nice_ticks(highest) == pytest.approx(ticks)
