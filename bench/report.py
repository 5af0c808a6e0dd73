"""Results for people (a table, ratios first) and for machines (JSON)."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.load import Measure
from bench.run import Result
from bench.sides import FENCEPOST, KAFKA, Side


def values_of(result: Result, side: Side, measure: Measure) -> list[float]:
    """The numbers of a side's rounds; a measure may be missing where it would take too long."""
    rounds = result.rounds.get(side.name, [])
    return [one[measure.name] for one in rounds if measure.name in one]


def median(result: Result, side: Side, measure: Measure) -> float | None:
    values = values_of(result, side, measure)
    return statistics.median(values) if values else None


def ratios(result: Result, measure: Measure) -> list[float]:
    """Ours divided by theirs, round by round: the two of a round ran right after each other."""
    ours, theirs = (values_of(result, side, measure) for side in (FENCEPOST, KAFKA))
    return [our / their for our, their in zip(ours, theirs, strict=False) if their]


def ratio(result: Result, measure: Measure) -> float | None:
    """The median of ours divided by the median of theirs."""
    ours, theirs = (median(result, side, measure) for side in (FENCEPOST, KAFKA))
    return ours / theirs if ours is not None and theirs else None


def verdict(result: Result, measure: Measure) -> str:
    """Whether the goal is met, and by all rounds; empty without a goal.

    A median that passes while some rounds fail proves little, least of all on a shared machine.
    """
    holds = [
        value >= wish if measure.better == "more" else value <= wish
        for values, wish in _wished(result, measure)
        for value in values
    ]
    if not holds:
        return ""
    if all(holds) or not any(holds):
        return "yes" if holds[0] else "NO"
    medians = [
        statistics.median(values) >= wish
        if measure.better == "more"
        else statistics.median(values) <= wish
        for values, wish in _wished(result, measure)
    ]
    return "unclear, rather yes" if all(medians) else "unclear, rather no"


def _wished(result: Result, measure: Measure) -> list[tuple[list[float], float]]:
    """The numbers of all rounds beside the goal."""
    ours = values_of(result, FENCEPOST, measure)
    wishes = [(ratios(result, measure), measure.ratio), (ours, measure.limit)]
    return [(values, wish) for values, wish in wishes if values and wish is not None]


def show(results: Sequence[Result], sides: Sequence[Side], console: Console) -> None:
    """The table."""
    table = Table(title="fencepost : Apache Kafka", title_justify="left", header_style="bold")
    table.add_column("load")
    table.add_column("measure")
    table.add_column("ratio", justify="right", style="bold")
    table.add_column("wanted", justify="right")
    table.add_column("holds")
    for side in sides:
        table.add_column(f"{side.title}\nmedian (least .. most)", justify="right")
    for result in results:
        if result.left_out:
            continue
        for number, measure in enumerate(_shown(result, sides)):
            table.add_row(
                result.load.title_at(result.scale) if number == 0 else "",
                measure.unit,
                _ratio_text(result, measure),
                _wish_text(measure),
                verdict(result, measure),
                *(_cell(result, side, measure) for side in sides),
            )
        table.add_section()
    console.print(table)


def _shown(result: Result, sides: Sequence[Side]) -> list[Measure]:
    """The measures that some side has, or has failed at."""
    shown = [m for m in result.load.measures if any(values_of(result, s, m) for s in sides)]
    return shown or list(result.load.measures)


def _ratio_text(result: Result, measure: Measure) -> str:
    value, each = ratio(result, measure), ratios(result, measure)
    return "" if value is None or not each else f"{value:.2f} ({min(each):.2f} .. {max(each):.2f})"


def _wish_text(measure: Measure) -> str:
    sign = ">=" if measure.better == "more" else "<="
    wishes = [f"{sign} {measure.ratio:g} x"] if measure.ratio is not None else []
    wishes += [f"{sign} {measure.limit:g}"] if measure.limit is not None else []
    return ", ".join(wishes)


def _cell(result: Result, side: Side, measure: Measure) -> str:
    if side.name in result.failures:
        return "failed"
    values = values_of(result, side, measure)
    if not values:
        return ""
    return (
        f"{_number(statistics.median(values))} ({_number(min(values))} .. {_number(max(values))})"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_json(results: Sequence[Result], sides: Sequence[Side], *, quick: bool) -> dict[str, Any]:
    """All results, with machine and time."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "quick": quick,
        "sides": {side.name: side.title for side in sides},
        "loads": [_load_json(result) for result in results if not result.left_out],
    }


def _load_json(result: Result) -> dict[str, Any]:
    return {
        "name": result.load.name,
        "title": result.load.title_at(result.scale),
        "seconds": round(result.seconds, 1),
        "rounds": result.rounds,
        "failures": result.failures,
        "measures": [
            {
                "name": measure.name,
                "unit": measure.unit,
                "better": measure.better,
                "ratio": ratio(result, measure),
                "ratios": ratios(result, measure),
                "wanted ratio": measure.ratio,
                "wanted": measure.limit,
                "holds": verdict(result, measure),
            }
            for measure in result.load.measures
        ],
        "plots": [asdict(plot) for plot in result.load.plots],
    }


def busy() -> str | None:
    """A warning if other work runs on this machine."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < cores / 2:
        return None
    return (
        f"this machine is busy (load {load:.1f} on {cores} cores): the numbers will vary, "
        "and prove little"
    )


def machine() -> dict[str, Any]:
    """The machine."""
    import confluent_kafka

    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load average": os.getloadavg(),
        "memory GB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "python": platform.python_version(),
        "java": _java(),
        "librdkafka": confluent_kafka.libversion()[0],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _java() -> str:
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return "none"
    return said.stderr.splitlines()[0] if said.stderr else "none"


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
