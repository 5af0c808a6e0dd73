"""Medians, ratios and verdicts, as text, JSON and pages."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from bench.document import write_page
from bench.load import Load, Measure, Plot, Round, Scale, Values
from bench.loads import CHAPTERS, LOADS
from bench.report import as_json, ratio, show, verdict
from bench.run import Result, run_load, steps, taking_part
from bench.sides import FENCEPOST, INTERPRETED, KAFKA, Side
from tools.apache_kafka import UnavailableError

RATE = Measure("rate", "records/s", "more", ratio=1.5)
TIME = Measure("time", "ms", "less", limit=10.0)
QUICK = Scale(quick=True)


@contextmanager
def _nothing(_: Side, __: Scale, ___: Path) -> Iterator[Round]:
    yield lambda _: {}


def load(*measures: Measure, name: str = "small", plots: tuple[Plot, ...] = ()) -> Load:
    return Load(name, "some load", measures, _nothing, plots=plots)


def result(ours: list[float], theirs: list[float], measure: Measure = RATE) -> Result:
    rounds: dict[str, list[Values]] = {
        "fencepost": [{measure.name: value} for value in ours],
        "kafka": [{measure.name: value} for value in theirs],
    }
    return Result(load(measure), QUICK, rounds)


def test_the_ratio_is_computed_from_the_medians() -> None:
    assert ratio(result([10, 30, 20], [5, 10, 10]), RATE) == 2.0


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ([30, 40], [10, 10], "yes"),
        ([10, 10], [10, 10], "NO"),
        ([30, 30, 10], [10, 10, 10], "unclear, rather yes"),
        ([30, 10, 10], [10, 10, 10], "unclear, rather no"),
        ([30], [], ""),
    ],
)
def test_a_target_holds_if_all_rounds_agree(
    ours: list[float], theirs: list[float], said: str
) -> None:
    assert verdict(result(ours, theirs), RATE) == said


def test_a_limit_applies_to_fencepost_only() -> None:
    assert verdict(result([9, 8], [], TIME), TIME) == "yes"
    assert verdict(result([11, 12], [], TIME), TIME) == "NO"


def test_a_measure_missing_from_a_round_is_not_printed() -> None:
    both = Result(load(RATE, TIME), QUICK, {"fencepost": [{"rate": 1.0}], "kafka": [{"rate": 2.0}]})
    out = io.StringIO()

    show([both], [FENCEPOST, KAFKA], Console(file=out, width=200))

    assert "records/s" in out.getvalue()
    assert " ms " not in out.getvalue()


def test_a_failing_side_is_reported_and_the_other_continues() -> None:
    @contextmanager
    def session(side: Side, _: Scale, __: Path) -> Iterator[Round]:
        if side is KAFKA:
            raise OSError("no such broker")
        yield lambda number: {"rate": float(number)}

    said: list[str] = []
    uneven = Load("uneven", "uneven", (RATE,), session, quick_warmup_seconds=0)
    done = run_load(uneven, [FENCEPOST, KAFKA], QUICK, said.append)

    assert done.failures == {"kafka": "OSError: no such broker"}
    assert done.rounds["fencepost"] == [{"rate": 0.0}, {"rate": 1.0}, {"rate": 2.0}]
    assert len(said) <= steps(uneven, [FENCEPOST, KAFKA], QUICK)


def test_a_load_for_fencepost_only_does_not_run_on_other_sides() -> None:
    asked: list[Side] = []

    @contextmanager
    def session(side: Side, _: Scale, __: Path) -> Iterator[Round]:
        asked.append(side)
        yield lambda _: {"time": 1.0}

    ours = Load("ours", "ours", (TIME,), session, quick_warmup_seconds=0, only_ours=True)
    run_load(ours, [FENCEPOST, KAFKA], QUICK, lambda _: None)

    assert asked == [FENCEPOST]


def test_an_unavailable_load_is_skipped_with_its_reason() -> None:
    def session(_: Side, __: Scale, ___: Path) -> AbstractContextManager[Round]:
        raise UnavailableError("Spark is not here")

    result = run_load(
        Load("spark", "spark", (RATE,), session), [FENCEPOST, KAFKA], QUICK, lambda _: None
    )

    assert result.left_out == "Spark is not here"
    assert not result.failures
    assert as_json([result], [FENCEPOST, KAFKA], quick=True)["loads"] == []


def test_the_interpreted_build_is_measured_where_builds_are_compared() -> None:
    sides = [FENCEPOST, KAFKA, INTERPRETED]
    compared = Load("compared", "compared", (RATE,), _nothing, compares_builds=True)

    assert taking_part(load(RATE), sides, QUICK) == [FENCEPOST, KAFKA]
    assert taking_part(compared, sides, QUICK) == sides


def test_every_load_has_a_unique_name_and_the_measures_its_plots_use() -> None:
    names = [one.name for one in LOADS]
    assert len(set(names)) == len(names)
    plots = [plot.name for one in LOADS for plot in one.plots]
    assert len(set(plots)) == len(plots)


# The page.

PAGE = """# By hand
<!-- measured: machine -->
<!-- end of machine -->
between
<!-- measured: targets -->
<!-- end of targets -->
<!-- measured: commits -->
<!-- end of commits -->
<!-- measured: growth -->
kept
<!-- end of growth -->
end
"""


def run_of(value: float) -> dict[str, object]:
    plot = Plot("curve", "A curve", "x", "y", ((1.0, "rate"), (2.0, "time")))
    rounds: dict[str, list[Values]] = {
        "fencepost": [{"rate": value, "time": 4.0}],
        "kafka": [{"rate": 1.0, "time": 5.0}],
    }
    done = Result(load(RATE, TIME, plots=(plot,)), QUICK, rounds)
    content: dict[str, object] = json.loads(
        json.dumps(as_json([done], [FENCEPOST, KAFKA], quick=True))
    )
    return content


def test_the_page_gets_figures_and_plots_and_keeps_handwritten_text(tmp_path: Path) -> None:
    page = tmp_path / "performance-details.md"
    page.write_text(PAGE)

    written = write_page([run_of(3.0)], page)

    text = page.read_text()
    assert written == [page, tmp_path / "performance" / "curve.svg"]
    assert text.startswith("# By hand\n<!-- measured: machine -->\n| | |\n")
    assert "| records/s | **3.00** (3.00 .. 3.00) | 3 | 1 |" in text
    assert "![A curve](performance/curve.svg)" in text
    assert "kept" in text
    assert text.endswith("end\n")


def test_writing_the_page_twice_changes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "performance-details.md"
    page.write_text(PAGE)
    run = run_of(3.0)

    write_page([run], page)
    once = page.read_text()
    write_page([run], page)

    assert page.read_text() == once


def test_the_later_of_two_runs_is_used(tmp_path: Path) -> None:
    page = tmp_path / "performance-details.md"
    page.write_text(PAGE)

    write_page([run_of(3.0), run_of(7.0)], page)

    assert "| records/s | **7.00** (7.00 .. 7.00) | 7 | 1 |" in page.read_text()


def test_a_run_of_one_load_keeps_the_figures_of_the_others(tmp_path: Path) -> None:
    page = tmp_path / "performance-details.md"
    idle = next(one for one in LOADS if one.name == "idle")
    other, row = f"### {idle.title[:1].upper()}{idle.title[1:]}", "| clients | 1 |"
    page.write_text(PAGE.replace("kept", f"{other}\n\n{row}").replace("growth", "several"))
    write_page([run_of(3.0)], page)
    failover = next(one for one in LOADS if one.name == "failover")
    run = run_of(7.0)
    run["loads"][0] |= {"name": failover.name, "title": failover.title}  # type: ignore[index]

    write_page([run], page)

    text = page.read_text()
    assert "| records/s | **3.00** (3.00 .. 3.00) | 3 | 1 |" in text
    assert "| records/s | **7.00** (7.00 .. 7.00) | 7 | 1 |" in text
    assert f"{other}\n\n{row}\n" in text


def test_the_page_of_this_repository_has_a_section_for_every_chapter() -> None:
    text = (Path(__file__).parents[2] / "docs" / "performance-details.md").read_text()

    for name in ("machine", "targets", *(chapter.name for chapter in CHAPTERS)):
        assert f"<!-- measured: {name} -->\n" in text
        assert f"<!-- end of {name} -->" in text


def test_a_quick_run_replaces_the_table_of_the_long_one(tmp_path: Path) -> None:
    page = tmp_path / "performance-details.md"
    title = next(one.title for one in LOADS if one.name == "small")
    row = f"| {title} | records/s | 1.5 x | **3.00** | yes |\n"
    page.write_text(
        PAGE.replace(
            "<!-- end of targets -->", f"| load |\n|---|\n{row}<!-- end of targets -->"
        ).replace("<!-- end of commits -->", f"### {title}\nlong\n<!-- end of commits -->")
    )

    write_page([run_of(3.0)], page)

    assert "### Some load" in page.read_text()
    assert title not in page.read_text()
