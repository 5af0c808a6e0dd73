"""Writes the figures of a run into docs/performance-details.md, with plots.

A measured part is between `<!-- measured: NAME -->` and `<!-- end of NAME -->`; the text around it
is written by hand and stays. Several result files can be given: where two have the same load, the
later one counts. A part without figures is left unchanged. docs/performance.md and
docs/guide/settings.md quote the details: `make docs` writes their tables again.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.loads import CHAPTERS
from bench.svg import Line, Point, line_plot, number_text

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "performance-details.md"
PART: Final = re.compile(r"(<!-- measured: ([a-z-]+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)

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
    parts = {"machine": _machine(runs), "targets": _targets(loads.values())}
    for chapter in CHAPTERS:
        found = [loads[load.name] for load in chapter.loads if load.name in loads]
        if found:
            parts[chapter.name] = _chapter(found, plots.name, drawn)
    page.write_text(PART.sub(lambda part: _filled(part, parts), page.read_text()))
    return written


def folder_of_plots(page: Path) -> Path:
    """The folder beside the page."""
    return page.with_name("performance")


def read_runs(paths: Iterable[Path]) -> list[Json]:
    return [json.loads(path.read_text()) for path in paths]


def _filled(part: re.Match[str], parts: dict[str, str]) -> str:
    name = part[2]
    return part[1] + parts[name] + "\n" + part[3] if name in parts else part[0]


def _merged(runs: Sequence[Json]) -> dict[str, Json]:
    """The loads by name, each with the titles of its measured sides."""
    loads: dict[str, Json] = {}
    for run in runs:
        for load in run["loads"]:
            loads[load["name"]] = load | {"sides": run["sides"]}
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


def _targets(loads: Iterable[Json]) -> str:
    lines = ["| load | measure | wanted | measured | holds |", "|---|---|---:|---:|---|"]
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


def _chapter(loads: Sequence[Json], folder: str, drawn: set[str]) -> str:
    parts: list[str] = []
    for load in loads:
        parts += ["", f"### {load['title'][:1].upper()}{load['title'][1:]}", "", *_table(load)]
        for side, failure in load["failures"].items():
            parts += ["", f"{load['sides'].get(side, side)} failed: {failure}"]
        for plot in load.get("plots", []):
            if plot["name"] in drawn:
                parts += ["", f"![{plot['title']}]({folder}/{plot['name']}.svg)"]
    return "\n".join([*parts[1:], ""])


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
