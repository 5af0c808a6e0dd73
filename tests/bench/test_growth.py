"""Which points of a growth curve are measured on which side, and how table and plot show it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from bench.load import Load, Scale, Values
from bench.loads import growth
from bench.sides import FENCEPOST, KAFKA, Side

FULL = Scale(quick=False)


class BrokerOnPaper:
    """A fake: a folder, and a process that uses no memory."""

    def __init__(self, data: Path) -> None:
        data.mkdir(parents=True)
        self.process = SimpleNamespace(resident_bytes=lambda: 0)

    def kill(self) -> None:
        """There is nothing to kill."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to stop."""


def one_round(load: Load, side: Side, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Values:
    """A round in which every transaction takes 100 us."""

    def figures(*_: object, **__: Any) -> dict[str, float]:
        return {"transactions_per_second": 1e4, "broker_us": 90.0, "transaction_p50_ms": 1.0}

    monkeypatch.setattr(growth, "generate", figures)
    monkeypatch.setattr(side, "start", BrokerOnPaper)
    with load.session(side, FULL, folder) as run:
        return run(0)


@pytest.mark.parametrize("load", growth.LOADS, ids=lambda load: load.name)
def test_fencepost_is_measured_at_every_point(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = one_round(load, FENCEPOST, tmp_path, monkeypatch)

    assert {measure.name for measure in load.measures} <= set(values)


@pytest.mark.parametrize("load", growth.LOADS, ids=lambda load: load.name)
def test_the_table_and_the_plot_mark_points_not_measured_on_apache_kafka(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = one_round(load, KAFKA, tmp_path, monkeypatch)

    missing = {measure.name for measure in load.measures if measure.name not in values}
    marked = {measure.name for measure in load.measures if "fencepost only" in measure.unit}
    assert missing == marked
    (plot,) = load.plots
    left_out = [f"{x:,.0f}" for x, name in plot.points if name in missing]
    said = f"(at {', '.join(left_out)}: fencepost only)"
    assert (said in plot.x_label) == bool(left_out)


@pytest.mark.parametrize("load", growth.LOADS, ids=lambda load: load.name)
def test_both_sides_are_measured_at_the_ends(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = one_round(load, KAFKA, tmp_path, monkeypatch)

    (plot,) = load.plots
    assert {plot.points[0][1], plot.points[-1][1]} <= set(values)
    assert values["cost growth"] == pytest.approx(
        values[plot.points[-1][1]] / values[plot.points[0][1]]
    )
