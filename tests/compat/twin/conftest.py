"""A separate Apache Kafka and fencepost, with the same settings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.api_versions import ApiVersionsRequest
from fencepost.wire.forms.describe_groups import DescribeGroupsRequest
from fencepost.wire.forms.describe_transactions import DescribeTransactionsRequest
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest
from tests.broker.raw import ClosedError, RawClient
from tests.compat.conftest import Side
from tests.compat.twin.talk import Ask, Talk, Twins
from tools.apache_kafka import START_SECONDS, ApacheKafka
from tools.fencepost_process import FencepostProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.java_tools import JavaTools

SETTINGS = {
    "node.id": "1",
    # By default a transaction past its timeout is aborted up to ten seconds late.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    # A member that does not return within a script must not delay its group for long.
    "group.min.session.timeout.ms": "500",
}


@pytest.fixture(scope="package")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory, tools: JavaTools) -> Iterator[Side]:
    with ApacheKafka(tmp_path_factory.mktemp("twin-kafka") / "data", settings=SETTINGS) as broker:
        yield Side("apache kafka", broker.bootstrap_servers, broker.data, tools)


@pytest.fixture(scope="package")
def fencepost_broker(tmp_path_factory: pytest.TempPathFactory, tools: JavaTools) -> Iterator[Side]:
    options = [word for each in SETTINGS.items() for word in ("--config", "=".join(each))]
    data = tmp_path_factory.mktemp("twin-fencepost") / "data"
    with FencepostProcess(data, options=options) as broker:
        yield Side("fencepost", broker.bootstrap_servers, broker.data, tools)


@pytest.fixture(scope="package")
def twins(apache_kafka: Side, fencepost_broker: Side) -> Twins:
    """Both brokers, with their coordinators loaded."""
    for side in (apache_kafka, fencepost_broker):
        _wake(side)
    return Twins(apache_kafka, fencepost_broker)


def _await_an_answer(side: Side) -> None:
    """Apache Kafka sometimes loses a connection made while it starts: try others too."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        with RawClient(side.bootstrap_servers) as client:
            client._socket.settimeout(2.0)
            try:
                client.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            except (TimeoutError, ClosedError):
                assert time.monotonic() < deadline, f"{side.name} does not answer"
            else:
                return


def _wake(side: Side) -> None:
    """The first request for a coordinator creates its topic; its partitions load one by one."""
    _await_an_answer(side)
    with Talk(side) as talk:
        for key_type in (0, 1):
            question = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["anybody"])
            talk.until(
                Ask(ApiKey.FIND_COORDINATOR, question), lambda r: r.coordinators[0].error_code == 0
            )
        # Enough names for every partition to get one of them.
        names = [f"wake-{number}" for number in range(500)]
        talk.until(
            Ask(ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest(transactional_ids=names)),
            lambda r: all(
                state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
                for state in r.transaction_states
            ),
        )
        talk.until(
            Ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=names)),
            lambda r: all(group.error_code == ErrorCode.GROUP_ID_NOT_FOUND for group in r.groups),
        )
        # The first producer id of a broker must be reserved too.
        talk.until(
            Ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None)),
            lambda r: r.error_code == 0,
        )
