"""The catalogue, the documentation, the dashboard and the alert rules name the same metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.broker.metrics.catalogue import METRICS, Metric, Type
from tests.broker.metrics.scraped import MeasuredStage
from tests.broker.requests import create_topic
from tests.transactions.wire import WireProducer

DOCS = Path(__file__).parents[3] / "docs"
NAME = re.compile(r"\b((?:fencepost|process)_[a-z_]+)")
ROW = re.compile(r"\| `(fencepost_\w+)` \| (\w+) \| (.+?) \| (.+?) \| (.+?) \|")
PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total"}


def sample_names(metric: Metric) -> Iterator[str]:
    if metric.type is Type.HISTOGRAM:
        yield from (f"{metric.name}{suffix}" for suffix in ("_bucket", "_count", "_sum"))
    else:
        yield _documented_name(metric)


def _documented_name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type is Type.COUNTER else metric.name


KNOWN = {name for metric in METRICS for name in sample_names(metric)} | PROCESS


@pytest.fixture(scope="module")
def text() -> str:
    with MeasuredStage() as stage:
        create_topic(stage, "refunds")
        writer = WireProducer(stage, "a").initialise()
        writer.produce("refunds", b"refused")
        writer.send("refunds", b"x")
        return str(stage.run(stage.collector.collect()).decode())


def test_a_scrape_has_every_metric_of_a_broker_and_no_other(text: str) -> None:
    families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    served = {name: kind for name, kind in families.items() if name.startswith("fencepost_")}
    assert served == {
        _documented_name(metric): metric.type.value
        for metric in METRICS
        if not metric.name.startswith("fencepost_cluster_")
    }


def test_the_documentation_has_a_row_for_every_metric_and_no_other() -> None:
    page = (DOCS / "reference/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `(fencepost_\w+)` \| (\w+) \| (.+?) \| (.+?) \| (.+?) \|$", page, re.MULTILINE
    )
    assert sorted(rows) == sorted(
        (
            _documented_name(metric),
            metric.type.value,
            ", ".join(f"`{label}`" for label in metric.labels) or "-",
            metric.help,
            f"`{metric.kafka}`" if metric.kafka else "-",
        )
        for metric in METRICS
    )


def test_the_dashboard_can_be_imported_and_names_only_metrics_that_exist() -> None:
    dashboard = json.loads((DOCS / "monitoring/dashboard.json").read_text(encoding="utf-8"))
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    named = {name for each in expressions for name in NAME.findall(each)}
    assert named <= KNOWN
    assert not list(_overlaps(dashboard["panels"]))
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - {"__rate_interval"}
    assert used == variables


def _overlaps(panels: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if (x, y) in taken:
                    yield taken[x, y], panel["title"]
                taken[x, y] = panel["title"]


def test_alert_rules_name_only_metrics_that_exist_and_the_guide_has_every_alert() -> None:
    rules = (DOCS / "monitoring/alerts.yml").read_text(encoding="utf-8")
    assert set(NAME.findall(rules)) <= KNOWN
    alerts = re.findall(r"- alert: (\w+)", rules)
    guide = (DOCS / "guide/monitoring.md").read_text(encoding="utf-8")
    assert set(alerts) == set(re.findall(r"\bFencepost[A-Z]\w+", guide))


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def _promtool(*arguments: str, text: str | None = None) -> str:
    done = subprocess.run(
        ["promtool", *arguments],
        cwd=DOCS / "monitoring",
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_alert_rules_and_they_fire_as_they_should() -> None:
    assert "SUCCESS: 8 rules found" in _promtool("check", "rules", "alerts.yml")
    assert "SUCCESS" in _promtool("test", "rules", "alerts_test.yml")


@needs_promtool
def test_promtool_has_nothing_to_say_about_a_scrape(text: str) -> None:
    assert _promtool("check", "metrics", text=text) == ""
