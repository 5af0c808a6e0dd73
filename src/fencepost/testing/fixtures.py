"""pytest fixtures with brokers, which pytest finds wherever fencepost is installed.

    def test_a_refund_is_emitted_once(fencepost_broker):
        servers = fencepost_broker.bootstrap_servers
        producer = confluent_kafka.Producer({"bootstrap.servers": servers})

A test that passes fails in the end if one of its faults never fired (`Faults.check`), on a broker
or a cluster; not on the shared broker, whose faults may be another test's.

If FENCEPOST_TEST_BOOTSTRAP names a cluster, such as Apache Kafka, `fencepost_broker` and
`fencepost_shared_broker` are that cluster behind a proxy with faults (`named_cluster.py`).

To change the broker settings, override the fixture `fencepost_config`. `fencepost_cluster` has
as many brokers as `fencepost_cluster_size` says. If a test fails, its report has a section
with the log of the clusters that ran.

Every pytest run in an environment with fencepost imports this module, so it imports the broker only
when a test needs one.
"""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pytest

from fencepost.testing.arguments import QUICK_CONFIG

if TYPE_CHECKING:
    from fencepost.testing.cluster import Cluster
    from fencepost.testing.embedded import Broker
    from fencepost.testing.named_cluster import NamedCluster
    from fencepost.testing.security import Security

_NAMED_BY: Final = "FENCEPOST_TEST_BOOTSTRAP"
SECTION: Final = "fencepost cluster"
_HAS_NOT_PASSED: Final = pytest.StashKey[bool]()
_SHOWN_LINES: Final = 500
_LONGEST_NAME: Final = 100
"""Of a namespace: topics have up to 249 characters, and want some of their own."""


@pytest.fixture(scope="session")
def fencepost_config() -> Mapping[str, object]:
    """Broker settings by Kafka's names; override it to change them."""
    return {}


@pytest.fixture
def fencepost_broker(
    request: pytest.FixtureRequest, fencepost_config: Mapping[str, object]
) -> Iterator[Broker | NamedCluster]:
    """A fresh broker for one test, which may stop, crash and restart it."""
    with _broker(fencepost_config) as broker:
        yield broker
        _check_faults(request, broker)


@pytest.fixture(scope="session")
def fencepost_shared_broker(
    fencepost_config: Mapping[str, object],
) -> Iterator[Broker | NamedCluster]:
    """One broker for the run: faster, but tests share topics, groups and transactional ids."""
    with _broker(fencepost_config) as broker:
        yield broker


def _broker(config: Mapping[str, object]) -> Broker | NamedCluster:
    if named := os.environ.get(_NAMED_BY):
        from fencepost.testing.named_cluster import NamedCluster

        return NamedCluster(named)
    from fencepost.testing.embedded import Broker

    return Broker(config={**QUICK_CONFIG, **config})


@pytest.fixture
def fencepost_namespace(request: pytest.FixtureRequest) -> str:
    """A prefix for the names of topics, groups and transactional ids, of this test alone.

    With it tests can share a broker, and so can the workers of pytest-xdist.
    """
    name = re.sub("[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-")
    return f"{name[:_LONGEST_NAME]}-{uuid.uuid4().hex[:8]}-"


@pytest.fixture(scope="session")
def fencepost_security() -> Security:
    """Users and ACLs of `fencepost_secure_broker`; override it to have others."""
    from fencepost.testing.security import Security

    return Security(users={"alice": "alice-secret"})


@pytest.fixture
def fencepost_secure_broker(
    request: pytest.FixtureRequest,
    fencepost_security: Security,
    fencepost_config: Mapping[str, object],
) -> Iterator[Broker]:
    """A fresh broker with TLS, users and ACLs for one test."""
    if os.environ.get(_NAMED_BY):
        pytest.skip(f"{_NAMED_BY} names a cluster, whose users and ACLs are not this test's own")
    from fencepost.testing.embedded import Broker

    config = {**QUICK_CONFIG, **fencepost_config}
    with Broker(config=config, security=fencepost_security) as broker:
        yield broker
        _check_faults(request, broker)


@pytest.fixture(scope="session")
def fencepost_cluster_size() -> int:
    """How many brokers `fencepost_cluster` has; override it to change that."""
    return 3


@pytest.fixture
def fencepost_cluster(
    request: pytest.FixtureRequest,
    fencepost_cluster_size: int,
    fencepost_config: Mapping[str, object],
) -> Iterator[Cluster]:
    """A fresh cluster for one test, which may kill and move its brokers."""
    if os.environ.get(_NAMED_BY):
        pytest.skip(f"{_NAMED_BY} names a cluster, whose brokers a test cannot kill and move")
    from fencepost.testing.cluster import Cluster

    config = {**QUICK_CONFIG, **fencepost_config}
    with Cluster(fencepost_cluster_size, config=config) as cluster:
        yield cluster
        _check_faults(request, cluster)


def _check_faults(request: pytest.FixtureRequest, broker: Broker | Cluster | NamedCluster) -> None:
    if not request.node.stash.get(_HAS_NOT_PASSED, False):
        broker.faults.check()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes that a test has not passed, and adds the logs of the running clusters to its report."""
    report = yield
    if not report.passed:  # A test that was skipped half-way need not have met its faults.
        item.stash[_HAS_NOT_PASSED] = True
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
