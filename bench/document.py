"""Writes the figures of a run into docs/performance-details.md, with plots.

A measured part is between `<!-- measured: NAME -->` and `<!-- end of NAME -->`; the text around it
is written by hand and stays. Several result files can be given: where two have the same load, the
later one counts. What was not measured keeps its figures: the tables of other loads, their targets
and, unless all loads were measured, the table of the machine. docs/performance.md and
docs/guide/settings.md quote the details: `make docs` writes their tables again.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.loads import CHAPTERS, LOADS, Chapter
from bench.svg import Line, Point, line_plot, number_text

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "performance-details.md"
ALL: Final = {load.name for load in LOADS}
PART: Final = re.compile(r"(<!-- measured: ([a-z-]+) -->\n)(.*?)(<!-- end of \2 -->)", re.DOTALL)
SECTION: Final = re.compile(r"^### (.+)\n(?:(?!### ).*\n)*", re.MULTILINE)
"""The table of one load within a part."""

Json = dict[str, Any]


def write_page(runs: Sequence[Json], page: Path = PAGE) -> list[Path]:
    """Writes the measured parts of the page, and the plots; returns the files."""
    plots = folder_of_plots(page)
    loads = _merged(runs)
    written = [page]
    for load in loads.values():
        for plot in load.get("plots", []):
            if (picture := _picture(load, plot)) is not None:
                plots.mkdir(parents=True, exist_ok=True)
                target = plots / f"{plot['name']}.svg"
                target.write_text(picture)
                written.append(target)
    drawn = {path.stem for path in written if path.suffix == ".svg"}
    old = {part[2]: part[3] for part in PART.finditer(page.read_text())}
    parts = {"targets": _targets(old.get("targets", ""), loads.values())}
    if loads.keys() >= ALL or not old["machine"]:
        parts["machine"] = _machine(runs)
    for chapter in CHAPTERS:
        found = [loads[load.name] for load in chapter.loads if load.name in loads]
        if found:
            parts[chapter.name] = _chapter(chapter, old[chapter.name], found, plots.name, drawn)
    page.write_text(PART.sub(lambda part: _filled(part, parts), page.read_text()))
    return written


def folder_of_plots(page: Path) -> Path:
    """The folder beside the page."""
    return page.with_name("performance")


def read_runs(paths: Iterable[Path]) -> list[Json]:
    return [json.loads(path.read_text()) for path in paths]


def _filled(part: re.Match[str], parts: dict[str, str]) -> str:
    name = part[2]
    return part[1] + parts[name] + "\n" + part[4] if name in parts else part[0]


def _merged(runs: Sequence[Json]) -> dict[str, Json]:
    """The loads by name, each with the titles of its measured sides."""
    loads: dict[str, Json] = {}
    for run in runs:
        for load in run["loads"]:
            loads[load["name"]] = load | {"sides": run["sides"], "date": run["date"][:10]}
    return loads


def _machine(runs: Sequence[Json]) -> str:
    newest = runs[-1]
    machine = newest["machine"]
    dates = sorted({run["date"][:10] for run in runs})
    rows = {
        "date": ", ".join(dates),
        "machine": f"{machine['processor']}, {machine['cores']} cores, {machine['memory GB']} GB",
        "system": machine["system"],
        "Python": machine["python"],
        "Java": machine["java"],
        "librdkafka": machine["librdkafka"],
        "sides": ", ".join(dict.fromkeys(t for run in runs for t in run["sides"].values())),
        "load average before the run": ", ".join(
            f"{r['machine']['load average'][0]:.1f}" for r in runs
        ),
    }
    seconds = [load.get("seconds", 0.0) for run in runs for load in run["loads"]]
    rows["took"] = f"{sum(seconds) / 60:.0f} minutes, in {_counted(len(runs), 'command')}"
    if any(run["quick"] for run in runs):
        rows["note"] = "a quick run is among these: few and short rounds"
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())]
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _targets(old: str, loads: Collection[Json]) -> str:
    """The targets of these loads, after those of the loads that were not measured."""
    lines = ["| load | measure | wanted | measured | holds |", "|---|---|---:|---:|---|"]
    replaced = _titles(loads)
    kept = (line for line in old.splitlines()[2:] if line.startswith("| "))
    lines += [line for line in kept if line.split(" | ")[0].removeprefix("| ") not in replaced]
    for load in loads:
        for measure in load["measures"]:
            if (wished := _wished(measure)) and measure["holds"]:
                measured = _ratio(measure) if measure["wanted ratio"] is not None else ""
                ours = _cell(load, "fencepost", measure)
                measured = ", ".join(filter(None, [measured, ours]))
                lines.append(
                    f"| {load['title']} | {measure['unit']} | {wished} | {measured} | "
                    f"{measure['holds']} |"
                )
    return "\n".join(lines)


def _chapter(
    chapter: Chapter, old: str, loads: Sequence[Json], folder: str, drawn: set[str]
) -> str:
    """The tables of a chapter in the order of its loads; those not measured are as they were."""
    sections = {section[1]: section[0].strip() for section in SECTION.finditer(old)}
    for title in _titles(loads):
        sections.pop(_heading(title), None)
    order = {_heading(load.title): place for place, load in enumerate(chapter.loads)}
    places = {load.name: place for place, load in enumerate(chapter.loads)}
    by_place = [(order[title], text) for title, text in sections.items() if title in order]
    by_place += [(places[load["name"]], _section(load, folder, drawn)) for load in loads]
    return "\n\n".join(text for _, text in sorted(by_place)) + "\n"


def _titles(loads: Collection[Json]) -> set[str]:
    """What is replaced: a quick run has another title, and takes the place of the long one."""
    names = {load["name"] for load in loads}
    return {load["title"] for load in loads} | {long.title for long in LOADS if long.name in names}


def _heading(title: str) -> str:
    return f"{title[:1].upper()}{title[1:]}"


def _section(load: Json, folder: str, drawn: set[str]) -> str:
    rounds = max((len(each) for each in load["rounds"].values()), default=0)
    parts = [f"### {_heading(load['title'])}", ""]
    parts += [f"{load['date']}, {_counted(rounds, 'round')}", "", *_table(load)]
    for side, failure in load["failures"].items():
        parts += ["", f"{load['sides'].get(side, side)} failed: {failure}"]
    for plot in load.get("plots", []):
        if plot["name"] in drawn:
            parts += ["", f"![{plot['title']}]({folder}/{plot['name']}.svg)"]
    return "\n".join(parts)


def _table(load: Json) -> Iterator[str]:
    sides = {side: title for side, title in load["sides"].items() if load["rounds"].get(side)}
    yield f"| measure | ratio | {' | '.join(sides.values())} |"
    yield f"|---|---:|{'---:|' * len(sides)}"
    for measure in load["measures"]:
        cells = [_cell(load, side, measure) for side in sides]
        if any(cells):
            yield f"| {measure['unit']} | {_ratio(measure)} | {' | '.join(cells)} |"


def _ratio(measure: Json) -> str:
    each = measure["ratios"]
    if measure["ratio"] is None or not each:
        return ""
    return f"**{measure['ratio']:.2f}** ({min(each):.2f} .. {max(each):.2f})"


def _wished(measure: Json) -> str:
    sign = ">=" if measure["better"] == "more" else "<="
    ratio, limit = measure["wanted ratio"], measure["wanted"]
    wishes = [f"{sign} {ratio:g} x Kafka"] if ratio is not None else []
    return ", ".join(wishes + ([f"{sign} {limit:g}"] if limit is not None else []))


def _values(load: Json, side: str, name: str) -> list[float]:
    return [one[name] for one in load["rounds"].get(side, []) if name in one]


def _cell(load: Json, side: str, measure: Json) -> str:
    values = _values(load, side, measure["name"])
    if not values:
        return ""
    middle = number_text(statistics.median(values))
    least, most = (number_text(value) for value in (min(values), max(values)))
    return middle if least == most else f"{middle} ({least} .. {most})"


def _picture(load: Json, plot: Json) -> str | None:
    """The plot as SVG; None with fewer than two points."""
    lines = []
    for side, title in load["sides"].items():
        points = []
        for x, name in plot["points"]:
            if values := _values(load, side, name):
                points.append(Point(x, statistics.median(values), min(values), max(values)))
        lines.append(Line(title, points))
    if max((len(line.points) for line in lines), default=0) < 2:
        return None
    return line_plot(plot["title"], plot["x_label"], plot["y_label"], lines)
