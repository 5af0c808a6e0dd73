"""A scrape as a dictionary: `scraped["fencepost_transactions{state=Ongoing}"]`."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from fencepost.broker.metrics.collector import Collector
from fencepost.broker.metrics.stalls import StallWatch
from tests.broker.node_stage import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

K = TypeVar("K")


class MeasuredStage(Stage):
    """A broker on a virtual clock that can be scraped."""

    def __init__(self, **options: Any) -> None:
        super().__init__(counts_requests=True, **{"durability": "os", **options})
        self.collector = Collector(self.node, StallWatch(self.loop))

    def scrape(self) -> dict[str, float]:
        return samples_of(self.run(self.collector.collect()).decode())


def samples_of(text: str) -> dict[str, float]:
    """The samples by name and labels, without those of buckets."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                found[sample.name + _labels(sample.labels)] = sample.value
    return found


def _labels(labels: Mapping[str, str]) -> str:
    shown = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return f"{{{shown}}}" if shown else ""


def scrape(url: str) -> dict[str, float]:
    """The samples of a broker on a real socket."""
    return samples_of(get(f"{url}/metrics"))


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return str(reply.read().decode())


def moved(before: Mapping[K, float], after: Mapping[K, float]) -> dict[K, float]:
    """What has changed between two scrapes, as differences."""
    return {
        name: value - before.get(name, 0.0)
        for name, value in after.items()
        if value != before.get(name, 0.0)
    }
