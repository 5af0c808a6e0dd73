"""Metrics and health of a cluster's parent process, and where those of its brokers are.

Each process answers for itself, so that a broker that is dead or stands still is a target that does
not answer, as scrapers expect. The parent adds what no broker knows:

    /metrics   brokers, how many of them serve, restarts; the process itself
    /healthz   200 while the parent and its loop are alive
    /readyz    200 while all brokers serve; 503 with those that do not
    /targets   the addresses of all metrics, for Prometheus' http_sd_configs
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector
from prometheus_client.exposition import generate_latest

from fencepost.broker.core import address_of
from fencepost.broker.metrics import catalogue
from fencepost.broker.metrics.collector import CONTENT_TYPE, family_of, registry_of
from fencepost.broker.metrics.endpoint import health, open_port, readiness
from fencepost.broker.metrics.http import Answer, Responder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric as Family

    from fencepost.cluster.parent.parent import Parent


class ParentEndpoint:
    """The HTTP endpoint of the parent."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._process = ProcessCollector(registry=None)
        self._address = ""
        self._responder = Responder(
            {
                "/metrics": self._metrics,
                "/healthz": health,
                "/readyz": self._readiness,
                "/targets": self._targets,
            }
        )

    async def start(self, host: str, port: int) -> None:
        """Listens from now on; ConfigError if the address cannot be used."""
        self._address = address_of(host, await open_port(self._responder, host, port))

    async def stop(self) -> None:
        """Closes the port."""
        await self._responder.close()

    async def _metrics(self) -> Answer:
        text = generate_latest(registry_of(*self._families())) + generate_latest(self._process)
        return Answer(text, content_type=CONTENT_TYPE)

    def _families(self) -> Iterator[Family]:
        brokers = list(self._parent.brokers.values())
        found = [(str(each.broker_id), self._parent.describe(each)) for each in brokers]
        yield family_of(
            catalogue.CLUSTER_BROKERS,
            [((broker_id,), float(broker["state"] == "serving")) for broker_id, broker in found],
        )
        yield family_of(
            catalogue.CLUSTER_RESTARTS,
            [((broker_id,), broker["restarts"]) for broker_id, broker in found],
        )

    async def _readiness(self) -> Answer:
        return readiness(self._parent.why_not_ready())

    async def _targets(self) -> Answer:
        found = {"parent": self._address}
        for broker in self._parent.brokers.values():
            if broker.hello is not None and "metrics" in broker.hello:
                found[str(broker.broker_id)] = broker.hello["metrics"]
        targets = [
            {"targets": [address], "labels": {"broker": name}} for name, address in found.items()
        ]
        return Answer(json.dumps(targets).encode(), content_type="application/json")
