"""pytest fixtures with brokers, which pytest finds wherever fencepost is installed.

    def test_a_refund_is_emitted_once(fencepost_broker):
        servers = fencepost_broker.bootstrap_servers
        producer = confluent_kafka.Producer({"bootstrap.servers": servers})

To change the broker settings, override the fixture `fencepost_config`. `fencepost_cluster` has
as many brokers as `fencepost_cluster_size` says. If a test fails, its report has a section
with the log of the clusters that ran.

Every pytest run in an environment with fencepost imports this module, so it imports the broker only
when a test needs one.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from fencepost.testing.cluster import Cluster
    from fencepost.testing.embedded import Broker
    from fencepost.testing.security import Security

SECTION: Final = "fencepost cluster"
_SHOWN_LINES: Final = 500


@pytest.fixture(scope="session")
def fencepost_config() -> Mapping[str, object]:
    """Broker settings by Kafka's names; override it to change them."""
    return {}


@pytest.fixture
def fencepost_broker(fencepost_config: Mapping[str, object]) -> Iterator[Broker]:
    """A fresh broker for one test, which may stop and restart it."""
    from fencepost.testing.embedded import Broker

    with Broker(config=fencepost_config) as broker:
        yield broker


@pytest.fixture(scope="session")
def fencepost_shared_broker(fencepost_config: Mapping[str, object]) -> Iterator[Broker]:
    """One broker for the run: faster, but tests share topics, groups and transactional ids."""
    from fencepost.testing.embedded import Broker

    with Broker(config=fencepost_config) as broker:
        yield broker


@pytest.fixture(scope="session")
def fencepost_security() -> Security:
    """Users and ACLs of `fencepost_secure_broker`; override it to have others."""
    from fencepost.testing.security import Security

    return Security(users={"alice": "alice-secret"})


@pytest.fixture
def fencepost_secure_broker(
    fencepost_security: Security, fencepost_config: Mapping[str, object]
) -> Iterator[Broker]:
    """A fresh broker with TLS, users and ACLs for one test."""
    from fencepost.testing.embedded import Broker

    with Broker(config=fencepost_config, security=fencepost_security) as broker:
        yield broker


@pytest.fixture(scope="session")
def fencepost_cluster_size() -> int:
    """How many brokers `fencepost_cluster` has; override it to change that."""
    return 3


@pytest.fixture
def fencepost_cluster(
    fencepost_cluster_size: int, fencepost_config: Mapping[str, object]
) -> Iterator[Cluster]:
    """A fresh cluster for one test, which may kill and move its brokers."""
    from fencepost.testing.cluster import Cluster

    with Cluster(fencepost_cluster_size, config=fencepost_config) as cluster:
        yield cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the logs of the running clusters to the report of a test that fails."""
    report = yield
    module: Any = sys.modules.get("fencepost.testing.cluster")
    # This hook runs twice if the plugin is loaded under both of its names.
    if report.failed and module is not None and SECTION not in dict(report.sections):
        for cluster in module.running_clusters():
            report.sections.append((SECTION, _last_lines(cluster.log_text())))
    return report


def _last_lines(log: str) -> str:
    lines = log.splitlines()
    left_out = max(0, len(lines) - _SHOWN_LINES)
    shown = "\n".join(lines[left_out:])
    return f"({left_out} earlier lines are left out)\n{shown}" if left_out else shown
