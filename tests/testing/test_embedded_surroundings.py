"""The broker in the surroundings where tests run: asyncio, a notebook, unittest, pytest-xdist."""

from __future__ import annotations

import asyncio
import os
import unittest
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

import fencepost
from tools.fencepost_process import ROOT

pytest_plugins = ["pytester"]


async def write_and_read(servers: str) -> bytes | None:
    async with (
        AIOKafkaProducer(bootstrap_servers=servers, transactional_id="t") as producer,
        producer.transaction(),
    ):
        await producer.send_and_wait("refunds", b"s-1")
    async with AIOKafkaConsumer(
        "refunds",
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        found: bytes | None = (await consumer.getone()).value
        return found


@pytest.fixture
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop as a notebook has it: the main thread's, which runs one cell after the other."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_a_cell_of_a_notebook_uses_a_broker_that_another_cell_has_started(
    running_loop: asyncio.AbstractEventLoop,
) -> None:
    async def first_cell() -> fencepost.Broker:
        broker = fencepost.Broker()
        broker.start()  # Blocks the running loop: it must not need it.
        broker.create_topic("refunds")
        return broker

    async def next_cell(broker: fencepost.Broker) -> None:
        assert await write_and_read(broker.bootstrap_servers) == b"s-1"
        broker.produce("refunds", "s-2")
        broker.clock.advance(minutes=5)
        broker.restart()
        assert [record.value for record in broker.committed("refunds")] == [b"s-1", b"s-2"]

    async def last_cell(broker: fencepost.Broker) -> None:
        broker.close()

    made = running_loop.run_until_complete(first_cell())
    running_loop.run_until_complete(next_cell(made))
    running_loop.run_until_complete(last_cell(made))


def test_a_program_of_asyncio_waits_for_a_fault_while_its_client_goes_on() -> None:
    async def main() -> None:
        with fencepost.Broker() as broker:
            broker.create_topic("refunds")
            commit = broker.faults.on("EndTxn").hold()
            service = asyncio.create_task(write_and_read(broker.bootstrap_servers))
            await asyncio.to_thread(commit.wait)
            assert broker.committed("refunds") == []
            commit.release()
            assert await service == b"s-1"

    asyncio.run(main())


class OfUnittest(unittest.IsolatedAsyncioTestCase):
    """What a suite of unittest looks like; pytest does not collect it by this name."""

    __test__ = False

    def setUp(self) -> None:
        self.broker = self.enterContext(fencepost.Broker())

    def test_a_first(self) -> None:
        self.broker.produce("refunds", "s-1")
        assert len(self.broker.committed("refunds")) == 1

    async def test_b_second(self) -> None:
        self.broker.create_topic("refunds")
        assert self.broker.committed("refunds") == []
        assert await write_and_read(self.broker.bootstrap_servers) == b"s-1"


def test_unittest_has_a_broker_per_test() -> None:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(OfUnittest).run(result)
    assert result.testsRun == 2
    assert result.errors + result.failures == []


XDIST_SUITE = """
import os
import pytest

@pytest.mark.parametrize("number", range(4))
def test_of_its_own(fencepost_broker, number):
    fencepost_broker.produce("refunds", str(number))
    assert len(fencepost_broker.committed("refunds")) == 1

@pytest.mark.parametrize("number", range(4))
def test_shared_by_the_workers(fencepost_namespace, number):
    import fencepost
    shared = fencepost.Contents(os.environ["FENCEPOST_TEST_SHARED"])
    for _ in range(2):
        shared.produce(fencepost_namespace + "refunds", str(number))
    assert len(shared.committed(fencepost_namespace + "refunds")) == 2
"""


def test_workers_of_xdist_have_brokers_of_their_own_and_names_of_their_own_on_a_shared_one(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    # Two workers of this run must not be taken for workers of the outer one.
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeconftest('pytest_plugins = ["fencepost.testing.pytest_plugin"]')
    pytester.makepyfile(XDIST_SUITE)
    with fencepost.Broker() as broker:
        monkeypatch.setenv("FENCEPOST_TEST_SHARED", broker.bootstrap_servers)
        ended = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "xdist", "-n2")
        ended.assert_outcomes(passed=8)
