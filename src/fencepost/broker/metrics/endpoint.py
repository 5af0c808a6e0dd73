"""/metrics, /healthz and /readyz of one broker.

    /healthz   200 while the process and its loop are alive
    /readyz    200 while clients are served and the coordinators are loaded; 503 with the reason
    /metrics   Prometheus' text format

Scrapes that come while one is being collected get its result: a hundred scrapers cost as much as
one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from http import HTTPStatus
from typing import TYPE_CHECKING

from fencepost.base.failures import ConfigError
from fencepost.broker.metrics.collector import CONTENT_TYPE, Collector
from fencepost.broker.metrics.http import Answer, Responder
from fencepost.broker.metrics.stalls import StallWatch

if TYPE_CHECKING:
    from fencepost.broker.core import BrokerCore

log = logging.getLogger(__name__)


class MetricsEndpoint:
    """The HTTP endpoint of one broker, for scrapers and health checks."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._stalls = StallWatch(asyncio.get_running_loop())
        self._collector = Collector(broker, self._stalls)
        self._collecting: asyncio.Task[bytes] | None = None
        self.port = 0
        self._responder = Responder(
            {"/metrics": self._metrics, "/healthz": health, "/readyz": self._readiness}
        )

    async def start(self, host: str, port: int) -> int:
        """Listens from now on; returns the port. ConfigError if the address cannot be used."""
        self.port = await open_port(self._responder, host, port)
        self._stalls.start()
        return self.port

    def descriptors(self) -> list[int]:
        """The file descriptors of its sockets, which a forked process has to close."""
        return self._responder.descriptors()

    async def stop(self) -> None:
        """Closes the port."""
        self._stalls.stop()
        await self._responder.close()
        if self._collecting is not None:
            self._collecting.cancel()

    async def _metrics(self) -> Answer:
        if self._collecting is None or self._collecting.done():
            loop = asyncio.get_running_loop()
            self._collecting = loop.create_task(self._collector.collect())
        # Shielded: a scraper that leaves must not end the scrape of the others.
        return Answer(await asyncio.shield(self._collecting), content_type=CONTENT_TYPE)

    async def _readiness(self) -> Answer:
        return readiness(self._broker.why_not_ready())


async def health() -> Answer:
    """That this is answered at all is the answer."""
    return Answer(b"ok\n")


def readiness(reason: str | None) -> Answer:
    """The answer of /readyz."""
    if reason is None:
        return Answer(b"ready\n")
    return Answer(f"{reason}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)


async def open_port(responder: Responder, host: str, port: int) -> int:
    """Listens and says where; ConfigError if the address cannot be used."""
    try:
        found = await responder.listen(host, port)
    except OSError as problem:
        number = problem.errno or 0
        reason = os.strerror(number) if number > 0 else problem.strerror
        raise ConfigError(
            f"Metrics cannot be served at {url_of(host, port)}: {reason}. Choose another address "
            "with --metrics; port 0 picks a free port."
        ) from problem
    log.info("metrics at %s/metrics", url_of(host, found), extra={"metrics_port": found})
    return found


def url_of(host: str, port: int) -> str:
    """The address as a URL."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
